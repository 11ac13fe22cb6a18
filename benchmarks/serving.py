"""Measures throughput, latency and memory of `heed serve` with many clients, and with one request at a time.

    python -m benchmarks.serving [RUN] [--clients 32] [--requests 10000]

Server and clients are two processes, which share the machine's cores. Each request is a short text from the run's
held-out pairs, on a connection that stays open. Without RUN, a small run on numbers is trained first.

- one at a time: each request is sent after the answer to the last.
- all at once: all clients do so without a pause; the server is fully loaded.
- paced: the clients together send two and four times the rate of one at a time, at random times.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

ALONE, TEXTS, LONGEST = 500, 200, 60
FASTER, SLOWER = 4.0, 3.0  # the bars on throughput and on the 99th percentile of latency
ROOT = Path(__file__).parents[1]


@dataclass
class Figures:
    """The results of one way of sending requests.

    Attributes:
        seconds: from the first request to the last answer.
        latencies: the seconds of each request.
        statuses: the number of answers with each status.
        wrong: the number of answers that differ from that to a single request.
    """

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies) / self.seconds

    def percentile(self, percent: int) -> float:
        """Return a percentile of the latencies, in milliseconds."""
        return 1e3 * statistics.quantiles(self.latencies, n=100)[percent - 1]


class Client:
    """One connection to a server."""

    def __init__(self, url: str) -> None:
        self._where = urlsplit(url)

    async def open(self) -> Client:
        """Connect; return the client."""
        self._reader, self._writer = await asyncio.open_connection(
            self._where.hostname, self._where.port
        )
        return self

    async def ask(self, text: str) -> tuple[int, str]:
        """Return the status, and the translation or the error."""
        body = json.dumps({"texts": [text]}).encode()
        self._writer.write(
            b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        answer = json.loads(await self._reader.readexactly(length))
        status = int(head.split(" ", 2)[1])
        return status, answer["translations"][0]["text"] if status == 200 else str(answer)

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


async def ask_all(
    url: str, texts: list[str], clients: int, known: dict[str, str], rate: float | None = None
) -> Figures:
    """Asks for each text once.

    Args:
        url: the server.
        texts: the texts to translate.
        clients: the number of connections that share them.
        known: the translations; new ones are added.
        rate: requests per second of all clients together, at random times; None sends each after the last answer.
    """
    figures, queue = Figures(), iter(texts)
    opened = [await Client(url).open() for _ in range(clients)]
    pause = random.Random(0)

    async def work(client: Client) -> None:
        free = due = time.perf_counter()
        for text in queue:
            due = free if rate is None else due + pause.expovariate(rate / clients)
            sent = due  # waiting for the connection counts
            if due > free:
                await asyncio.sleep(due - free)
                sent = time.perf_counter()  # a late timer does not count
            status, answer = await client.ask(text)
            free = time.perf_counter()
            figures.latencies.append(free - sent)
            figures.statuses[status] += 1
            figures.wrong += known.setdefault(text, answer) != answer

    begin = time.perf_counter()
    await asyncio.gather(*map(work, opened))
    figures.seconds = time.perf_counter() - begin
    for client in opened:
        client.close()
    return figures


@contextmanager
def serving(run: Path) -> Iterator[tuple[str, int]]:
    """Start a server of a run; give its address and process id."""
    command = [sys.executable, "-m", "heed", "serve", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            line = server.stdout.readline() if server.stdout else ""
            if " at http" not in line:
                raise SystemExit(f"the server did not start: {line}")
            yield line.split(" at ")[1].split()[0], server.pid
        finally:
            server.terminate()


def memory(process: int) -> float:
    """Return the resident memory of a process, in MiB."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("the server has ended")


def texts_of(run: Path) -> list[str]:
    """Short held-out texts of the run."""
    from heed.seq2seq import RunFolder

    found = [item.text for item in RunFolder.open(run).task().evaluation_items() if not item.cut]
    return list(dict.fromkeys(text for text in found if 0 < len(text) <= LONGEST))[:TEXTS]


def measure(run: Path, clients: int, requests: int) -> bool:
    """Print a table in Markdown; return whether the bars are met."""
    texts = texts_of(run)
    requested = list(itertools.islice(itertools.cycle(texts), max(requests, ALONE)))
    known: dict[str, str] = {}
    with serving(run) as (url, process):

        def ask(count: int, clients: int, rate: float | None = None) -> Figures:
            return asyncio.run(ask_all(url, requested[:count], clients, known, rate))

        ask(ALONE, 1)
        ask(1000, clients)
        before = memory(process)
        alone = ask(ALONE, 1)
        busy = ask(requests, clients)
        paced = {times: ask(requests // 2, clients, times * alone.rate) for times in (2.0, FASTER)}
        after = memory(process)
    ways = {"one at a time": alone, f"{clients} clients, all at once": busy}
    ways |= {f"{clients} clients, paced {times:g} times": one for times, one in paced.items()}
    print("| | requests | answers per second | median, ms | 99 %, ms | errors | wrong texts |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, found in ways.items():
        bad = sum(count for status, count in found.statuses.items() if status != 200)
        row = [f"{len(found.latencies):,}", f"{found.rate:,.0f}"]
        row += [f"{found.percentile(50):.1f}", f"{found.percentile(99):.1f}"]
        row += [str(bad), str(found.wrong)]
        print(f"| {name} | {' | '.join(row)} |")
    single, faster = alone.percentile(50), busy.rate / alone.rate
    slower = {name: found.percentile(99) / single for name, found in ways.items()}
    print(f"\nthroughput: {faster:.1f} times that of one at a time (bar: {FASTER:g})")
    ratios = ", ".join(f"{value:.1f} {name}" for name, value in slower.items())
    print(f"99th percentile / median of one at a time (bar: below {SLOWER:g}): {ratios}")
    print(f"memory: {before:.0f} MiB, then {after:.0f} MiB")
    right = all(set(one.statuses) == {200} and not one.wrong for one in ways.values())
    return right and faster >= FASTER and [*slower.values()][-1] < SLOWER


def main(arguments: list[str] | None = None) -> int:
    """Measures; the status is 0 if the bars are met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, nargs="?", help="a finished run")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=10_000)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or Path(folder) / "numbers"
        if options.run is None:
            command = [sys.executable, "-m", "heed", "train", "numbers", "--steps", "300"]
            subprocess.run([*command, "--run", str(run)], cwd=ROOT, check=True)
        return 0 if measure(run, options.clients, options.requests) else 1


if __name__ == "__main__":
    sys.exit(main())
