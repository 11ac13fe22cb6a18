"""Training a language model whose sequence is split across worker processes on this machine: memory and time.

A worker's memory is the peak of its resident memory (ru_maxrss) less that after a step over a short sequence: it is
what the length costs, without TensorFlow, the weights and the optimizer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.results import Row

# Of the step that sets the base.
_SHORT = 256
# A worker that waits for another one prints nothing.
_TIMEOUT = 1800


@dataclasses.dataclass(frozen=True)
class Setting:
    """A language model and its training step.

    Attributes:
        length: T, tokens of the whole sequence.
        batch: B.
        layers, width, heads, feed_forward_width, vocabulary_size: of the model.
        steps: how many are timed.
    """

    length: int = 32768
    batch: int = 1
    layers: int = 2
    width: int = 128
    heads: int = 4
    feed_forward_width: int = 512
    vocabulary_size: int = 256
    steps: int = 1


@dataclasses.dataclass(frozen=True)
class Result:
    """What one worker measured.

    Attributes:
        seconds: of the fastest step.
        mib: the peak memory that the length costs.
        losses: of all steps over the whole sequence.
    """

    seconds: float
    mib: float
    losses: list[float]


def measure(setting: Setting, workers: int) -> list[Result]:
    """Train on `workers` processes of one thread each; return the result of each.

    Raises:
        RuntimeError: if a worker fails, with the end of its messages.
    """
    addresses = _free_addresses(workers)
    processes = []
    for index in range(workers):
        environment = {**os.environ, "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}
        # glibc keeps freed tensors for the thread that freed them, and a worker with messages has many threads.
        environment["MALLOC_MMAP_THRESHOLD_"] = str(2**20)
        # With oneDNN, TensorFlow takes memory in regions that double in size, and returns none.
        environment["TF_ENABLE_ONEDNN_OPTS"] = "0"
        environment.pop("TF_CONFIG", None)
        if workers > 1:
            task = {"type": "worker", "index": index}
            cluster = {"cluster": {"worker": addresses}, "task": task}
            environment["TF_CONFIG"] = json.dumps(cluster)
        command = [sys.executable, "-m", "benchmarks.scale_ring"]
        command.append(json.dumps(dataclasses.asdict(setting)))
        pipe = subprocess.PIPE
        processes.append(
            subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)
        )
    results = []
    try:
        for process in processes:
            out, messages = process.communicate(timeout=_TIMEOUT)
            if process.returncode:
                raise RuntimeError(f"A worker failed: {messages[-3000:]}")
            results.append(Result(**json.loads(out.splitlines()[-1])))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return results


def measure_memory(rounds: int) -> Iterator[Row]:
    """Yield the memory of one worker and of each of two, their ratio, and the seconds of a step."""
    setting = Setting(steps=max(1, rounds // 5))
    one, two = (measure(setting, workers) for workers in (1, 2))
    alone, largest = one[0].mib, max(result.mib for result in two)
    tokens = f"{setting.length:,} tokens"
    yield Row(f"peak memory for {tokens}, one worker", alone, unit="MiB")
    yield Row(f"peak memory for {tokens}, each of two workers", largest, unit="MiB")
    yield Row("each of two workers / one", largest / alone, bar=0.6, at_most=True)
    yield Row("a step of one worker", one[0].seconds, unit="s")
    yield Row("a step of two workers", max(result.seconds for result in two), unit="s")


def _free_addresses(count: int) -> list[str]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _run_worker(setting: Setting) -> Result:
    """Train, in this process."""
    import keras
    import numpy as np
    import tensorflow as tf

    from heed.distributed import split_sequence
    from heed.models import LanguageModel, LanguageModelConfig
    from heed.ops import softmax_cross_entropy

    several = "TF_CONFIG" in os.environ
    strategy = (
        tf.distribute.MultiWorkerMirroredStrategy() if several else tf.distribute.get_strategy()
    )
    workers = strategy.num_replicas_in_sync
    worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"] if several else 0
    keras.utils.set_random_seed(0)
    config = LanguageModelConfig(
        setting.vocabulary_size,
        layers=setting.layers,
        width=setting.width,
        num_heads=setting.heads,
        feed_forward_width=setting.feed_forward_width,
    )
    with strategy.scope():
        model = LanguageModel(config, sequence_parallel=True)
        model.build()
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

    def train(tokens: Any, labels: Any) -> Any:
        variables = model.trainable_variables
        with tf.GradientTape() as tape:
            losses = softmax_cross_entropy(model(tokens, training=True), labels)
            # The mean over the tokens of all workers: their gradients are summed.
            loss = tf.reduce_sum(losses) / tf.cast(tf.size(labels) * workers, tf.float32)
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    @tf.function(autograph=False)
    def step(tokens: Any, labels: Any) -> Any:
        losses = strategy.run(train, args=(tokens, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    def parts_of(length: int) -> list[Any]:
        # Counts of a byte that depend on the position: a text that can be learned.
        text = np.cumsum(np.arange(setting.batch * (length + 1)) % 7) % setting.vocabulary_size
        text = text.reshape(setting.batch, -1).astype("int32")
        parts = [split_sequence(x, workers, worker) for x in (text[:, :-1], text[:, 1:])]
        return [tf.constant(part) for part in parts]

    def run(length: int) -> float:
        return float(step(*parts_of(length)))

    step.get_concrete_function(*parts_of(setting.length))  # the graph is not what the length costs
    run(_SHORT)
    base = _peak_mib()
    losses, seconds = [run(setting.length)], []
    for _ in range(setting.steps):
        start = time.perf_counter()
        losses.append(run(setting.length))
        seconds.append(time.perf_counter() - start)
    return Result(min(seconds, default=0.0), _peak_mib() - base, losses)


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(_run_worker(Setting(**json.loads(sys.argv[1]))))))
