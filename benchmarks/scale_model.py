"""Predict traffic, memory and failures of N workers, by formulas and by simulation.

python -m benchmarks.scale_model            prints the tables of docs/measurements/scaling.md
python -m benchmarks.scale_model --measure  also predicts a run of two processes on this machine, and runs it

All figures but those of --measure follow from the formulas here and from the assumptions that the tables name. A FLOP
is a multiplication or an addition.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import random
import statistics
import threading
from collections.abc import Iterable, Sequence

FLOAT = 4  # bytes
HOUR = 3600.0


@dataclasses.dataclass(frozen=True)
class Machine:
    """A worker and its link.

    Attributes:
        flops: FLOP/s that it reaches in a training step.
        bandwidth: bytes/s of its link, each way.
        latency: seconds of a message.
    """

    flops: float = 1e12
    bandwidth: float = 10e9 / 8
    latency: float = 50e-6


@dataclasses.dataclass(frozen=True)
class Model:
    """A decoder without an encoder.

    Attributes:
        width: D = N * H; value heads are as wide as key heads.
        heads, kv_heads: N and K.
    """

    layers: int = 12
    width: int = 768
    feed_forward_width: int = 3072
    vocabulary_size: int = 32_000
    heads: int = 12
    kv_heads: int = 12

    @property
    def head_width(self) -> int:
        """H."""
        return self.width // self.heads

    @property
    def parameters(self) -> int:
        """The weights, without biases and normalisation, with a tied output layer."""
        attention = 2 * self.width**2 + 2 * self.width * self.kv_heads * self.head_width
        layer = attention + 2 * self.width * self.feed_forward_width
        return self.layers * layer + self.vocabulary_size * self.width

    def product_flops(self, tokens: float) -> float:
        """FLOPs of a step in products with weights: 2 a weight and token forward, 4 backward."""
        return 6.0 * self.parameters * tokens

    def attention_flops(self, rows: int, length: int) -> float:
        """FLOPs of a step in causal attention: 2 products of T^2 / 2 pairs forward, 5 backward."""
        pairs = length**2 / 2
        return self.layers * rows * (2 + 5) * 2 * pairs * self.width


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What attention over a split sequence sends in a step, in bytes.

    Attributes:
        ring: by all workers together, all layers, forward and backward.
        gather: the same if each worker gathers all keys and values, and their gradients are summed and scattered.
        ring_memory, gather_memory: keys and values of others in a worker's memory, one layer.
    """

    ring: float
    gather: float
    ring_memory: float
    gather_memory: float


def causal_moves(workers: int) -> tuple[int, int]:
    """How often stretches move on in a pass under a causal mask, and how many return: see `_routes.py`.

    Early stretches visit all other workers; the late stretch of worker r visits those below it.
    """
    early = workers * (workers - 1)
    return early + early // 2, 2 * workers - 1 if workers > 1 else 0


def sequence_traffic(model: Model, rows: int, length: int, workers: int) -> Traffic:
    """Return the traffic of one training step with a sequence of `length` tokens split across workers."""
    stretch = length / (2 * workers)
    payload = rows * stretch * model.kv_heads * 2 * model.head_width * FLOAT
    moves, returns = causal_moves(workers)
    everything = 2 * workers * (workers - 1)
    return Traffic(
        ring=model.layers * payload * (3 * moves + returns),
        gather=model.layers * payload * 3 * everything,
        ring_memory=payload * 2 * min(2, workers - 1),
        gather_memory=payload * 2 * (workers - 1),
    )


def all_reduce_bytes(parameters: int, workers: int) -> float:
    """Bytes that each worker sends (and receives) to sum gradients in a ring."""
    return 2 * (workers - 1) / workers * parameters * FLOAT


def all_reduce_seconds(parameters: int, workers: int, machine: Machine) -> float:
    """Seconds of that sum."""
    steps = 2 * (workers - 1)
    return all_reduce_bytes(parameters, workers) / machine.bandwidth + steps * machine.latency


def ring_seconds(
    model: Model, rows: int, length: int, workers: int, machine: Machine
) -> tuple[float, float]:
    """Seconds of attention in a step, with the keys in a ring and gathered.

    In the ring a turn's messages travel during the computation of the turn before; gathered keys must be there first.
    """
    compute = model.attention_flops(rows, length) / workers / machine.flops
    if workers == 1:
        return compute, compute
    traffic = sequence_traffic(model, rows, length, workers)
    turns = 3 * model.layers * (workers - 1)
    ring = traffic.ring / workers / machine.bandwidth + turns * machine.latency
    gather = traffic.gather / workers / machine.bandwidth + turns * machine.latency
    # The first of R turns hides the messages of the second, and so on: all but one turn.
    hidden = compute * (workers - 1) / workers
    return compute - hidden + max(hidden, ring), compute + gather


def hiding_bandwidth(model: Model, length: int, workers: int, machine: Machine) -> float:
    """Bytes/s above which the ring's traffic hides behind computation. The number of rows does not matter."""
    compute = model.attention_flops(1, length) / workers / machine.flops
    traffic = sequence_traffic(model, 1, length, workers).ring / workers
    return traffic / (compute * (workers - 1) / workers)


def checkpoint_interval(cost: float, between_failures: float) -> float:
    """Seconds between checkpoints that lose the least time.

    Source: Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", 2006; the first term
        is that of Young, "A first order approximation to the optimum checkpoint interval", 1974.
    """
    if cost >= 2 * between_failures:
        return between_failures
    ratio = cost / (2 * between_failures)
    first = math.sqrt(2 * cost * between_failures)
    return first * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


def useful_share(interval: float, cost: float, restart: float, between_failures: float) -> float:
    """Return the share of time in which steps are computed that are not lost, by the same paper."""
    m = between_failures
    return interval / (m * math.exp(restart / m) * math.expm1((interval + cost) / m))


def simulated_share(
    interval: float, cost: float, restart: float, between_failures: float, seed: int = 0
) -> float:
    """Return the same by simulation of 50,000 intervals, with failures at any time, restarts included."""
    draw = random.Random(seed)
    clock, done = 0.0, 0
    failure = draw.expovariate(1 / between_failures)
    pending = 0.0  # of a restart
    while done < 50_000:
        needed = pending + interval + cost
        if failure >= clock + needed:
            clock, done, pending = clock + needed, done + 1, 0.0
        else:
            clock, pending = failure, restart
            failure = clock + draw.expovariate(1 / between_failures)
    return done * interval / clock


def straggler_factor(workers: int, spread: float, steps: int = 200, seed: int = 0) -> float:
    """Return the mean over steps of the slowest worker's time, by simulation.

    Args:
        spread: the standard deviation of a worker's step, relative to its mean. Times are log-normal.
    """
    draw = random.Random(seed)
    sigma = math.sqrt(math.log1p(spread**2))
    times = lambda: (draw.lognormvariate(-(sigma**2) / 2, sigma) for _ in range(workers))  # noqa: E731
    return statistics.fmean(max(times()) for _ in range(steps))


# Tables

Row = Sequence[str]
GPT = Model()
COUNTS = (1, 2, 8, 64, 256, 1000)
SPREAD = 0.05
# 419 unexpected interruptions of 16,384 accelerators in 54 days: "The Llama 3 Herd of Models", 2024, section 3.3.4.
HOURS_BETWEEN_FAILURES = 54 * 24 * 16_384 / 419
CHECKPOINT, RESTART = 30.0, 300.0


def table(head: Row, rows: Iterable[Row]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def data_parallel_table(tokens: int = 4096) -> str:
    """Return a step of each worker on its own `tokens`: seconds and share of computation, by bandwidth."""
    rows = []
    compute = GPT.product_flops(tokens) / Machine().flops
    for workers in COUNTS:
        sent = all_reduce_bytes(GPT.parameters, workers)
        cells = [f"{workers:,}", f"{sent / 1e6:,.0f} MB"]
        for gigabits in (1, 10, 100):
            machine = Machine(bandwidth=gigabits * 1e9 / 8)
            whole = compute + all_reduce_seconds(GPT.parameters, workers, machine)
            cells.append(f"{whole:.2f} s ({compute / whole:.0%})")
        rows.append(cells)
    head = ["workers", "sent by each", "1 Gbit/s", "10 Gbit/s", "100 Gbit/s"]
    return table(head, rows)


def sequence_table() -> str:
    """Attention of one row of T tokens, by workers."""
    rows = []
    machine = Machine()
    for length, workers in (
        (8192, 2),
        (32768, 2),
        (32768, 8),
        (131072, 8),
        (131072, 64),
        (1048576, 64),
    ):
        traffic = sequence_traffic(GPT, 1, length, workers)
        ring, gather = ring_seconds(GPT, 1, length, workers, machine)
        alone = GPT.attention_flops(1, length) / machine.flops
        rows.append(
            [
                f"{length:,}",
                f"{workers}",
                f"{traffic.ring / workers / 1e6:,.0f} MB",
                f"{traffic.gather / workers / 1e6:,.0f} MB",
                f"{traffic.ring_memory / 2**20:,.0f} MiB",
                f"{traffic.gather_memory / 2**20:,.0f} MiB",
                f"{alone / workers / ring:.0%}",
                f"{alone / workers / gather:.0%}",
                f"{hiding_bandwidth(GPT, length, workers, machine) * 8 / 1e9:.2g} Gbit/s",
            ]
        )
    head = ["T", "workers", "sent by each: ring", "gathering", "others' keys: ring", "gathered"]
    return table([*head, "efficiency: ring", "gathering", "hidden from"], rows)


def fault_table() -> str:
    """Restarts, the interval of checkpoints and the share of useful time, by workers."""
    rows = []
    for workers in COUNTS[1:]:
        between = HOURS_BETWEEN_FAILURES * HOUR / workers
        interval = checkpoint_interval(CHECKPOINT, between)
        share = useful_share(interval, CHECKPOINT, RESTART, between)
        simulated = simulated_share(interval, CHECKPOINT, RESTART, between)
        slowest = straggler_factor(workers, SPREAD)
        rows.append(
            [
                f"{workers:,}",
                f"{HOUR / between:.4f}",
                f"{interval / 60:,.0f} min",
                f"{share:.2%}",
                f"{simulated:.2%}",
                f"{slowest:.3f}",
                f"{share / slowest:.1%}",
            ]
        )
    head = ["workers", "restarts an hour", "checkpoint every", "useful time", "simulated"]
    return table([*head, "slowest worker", "together"], rows)


def measured_table() -> str:
    """Predicts a step of a split sequence on two processes from runs of one, and measures it.

    Two processes share what a machine has, so the rate is that of two processes that run at once and do not talk.
    """
    from benchmarks.scale_ring import Result, Setting, measure

    setting = Setting(length=8192, steps=3)
    model = Model(
        setting.layers,
        setting.width,
        setting.feed_forward_width,
        setting.vocabulary_size,
        setting.heads,
        setting.heads,
    )
    found: list[Result] = []
    both = [threading.Thread(target=lambda: found.extend(measure(setting, 1))) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    alone = statistics.fmean(result.seconds for result in found)
    flops = model.product_flops(setting.length) + model.attention_flops(1, setting.length)
    machine = Machine(flops / alone, _loopback_bandwidth(), 0.0)
    sent = sequence_traffic(model, 1, setting.length, 2).ring / 2
    sent += all_reduce_bytes(model.parameters, 2)
    predicted = alone / 2 + sent / machine.bandwidth
    seconds = max(result.seconds for result in measure(setting, 2))
    rows = [
        ["a step of one process, with another one beside it", f"{alone:.2f} s"],
        ["its rate", f"{machine.flops / 1e9:.0f} GFLOP/s"],
        ["loopback", f"{machine.bandwidth / 1e6:.0f} MB/s each way"],
        ["sent by each of two workers", f"{sent / 1e6:.1f} MB"],
        ["a step of two workers, predicted", f"{predicted:.2f} s"],
        ["measured", f"{seconds:.2f} s"],
        ["measured / predicted", f"{seconds / predicted:.2f}"],
    ]
    return table(
        [f"T = {setting.length:,}, width {setting.width}, {setting.layers} layers", ""], rows
    )


def _loopback_bandwidth(mebibytes: int = 64) -> float:
    """Bytes/s of a socket on this machine."""
    import socket
    import time

    sender, receiver = socket.socketpair()
    block, left = bytes(2**20), mebibytes * 2**20

    def send() -> None:
        for _ in range(mebibytes):
            sender.sendall(block)

    thread = threading.Thread(target=send)
    start = time.perf_counter()
    thread.start()
    while left > 0:
        left -= len(receiver.recv(2**20))
    thread.join()
    seconds = time.perf_counter() - start
    sender.close()
    receiver.close()
    return mebibytes * 2**20 / seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--measure", action="store_true", help="run two processes, too")
    options = parser.parse_args(arguments)
    for text in (data_parallel_table(), sequence_table(), fault_table()):
        print(f"{text}\n")
    if options.measure:
        print(measured_table())


if __name__ == "__main__":
    main()
