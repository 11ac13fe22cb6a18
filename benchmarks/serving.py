"""Throughput, latency and memory of `heed serve` with many clients, and with one request at a time.

Server and clients are two processes, which share the machine's cores. Each request is a short text from a run's
held-out pairs, on a connection that stays open. HEED_BENCHMARK_RUN names the run; without it a small one on numbers is
trained first.

- one at a time: each request is sent after the answer to the last.
- all at once: all clients do so without a pause; the server is fully loaded.
- paced: the clients together send two and four times the rate of one at a time, at random times.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
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

import numpy as np

from benchmarks.results import Row
from benchmarks.turns import SMALLER, bar
from benchmarks.worker import memory_of

_ALONE, _TEXTS, _LONGEST = 500, 200, 60
Pipes = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_CLIENTS, _REQUESTS = (4, 200) if SMALLER else (32, 10_000)


@dataclass
class Figures:
    """The results of one way of sending requests."""

    seconds: float = 0.0  # from the first request to the last answer
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0  # answers that differ from that to a single request

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies) / self.seconds

    def percentile(self, percent: int) -> float:
        """Return a percentile of the latencies, in milliseconds."""
        return 1e3 * float(np.percentile(self.latencies, percent))


async def ask(pipes: Pipes, text: str) -> tuple[int, str]:
    """Return the status, and the translation or the error, that a server answers on an open connection."""
    reader, writer = pipes
    body = json.dumps({"texts": [text]}).encode()
    writer.write(
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
    answer = json.loads(await reader.readexactly(length))
    status = int(head.split(" ", 2)[1])
    return status, answer["translations"][0]["text"] if status == 200 else str(answer)


async def ask_all(
    url: str, texts: list[str], clients: int, known: dict[str, str], rate: float | None = None
) -> Figures:
    """Ask for each text once, over as many connections as clients; translations that are not yet known are added.

    The rate is that of all clients together, at random times; None sends each request after the last answer.
    """
    figures, queue, where = Figures(), iter(texts), urlsplit(url)
    opened = [await asyncio.open_connection(where.hostname, where.port) for _ in range(clients)]
    pause = random.Random(0)

    async def work(pipes: Pipes) -> None:
        free = due = time.perf_counter()
        for text in queue:
            due = free if rate is None else due + pause.expovariate(rate / clients)
            sent = due  # waiting for the connection counts
            if due > free:
                await asyncio.sleep(due - free)
                sent = time.perf_counter()  # a late timer does not count
            status, answer = await ask(pipes, text)
            free = time.perf_counter()
            figures.latencies.append(free - sent)
            figures.statuses[status] += 1
            figures.wrong += known.setdefault(text, answer) != answer

    begin = time.perf_counter()
    await asyncio.gather(*map(work, opened))
    figures.seconds = time.perf_counter() - begin
    for _, writer in opened:
        writer.close()
    return figures


@contextmanager
def _serving(run: Path) -> Iterator[tuple[str, int]]:
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


def _texts_of(run: Path) -> list[str]:
    """Return short held-out texts of the run."""
    from heed.seq2seq import RunFolder

    found = [item.text for item in RunFolder.open(run).task().evaluation_items() if not item.cut]
    return list(dict.fromkeys(text for text in found if 0 < len(text) <= _LONGEST))[:_TEXTS]


def measure(rounds: int) -> Iterator[Row]:
    """Yield the answers per second, the latencies and the memory."""
    del rounds  # each request is a sample
    with tempfile.TemporaryDirectory() as folder:
        run = Path(os.environ.get("HEED_BENCHMARK_RUN") or Path(folder) / "numbers")
        if not run.exists():
            command = [sys.executable, "-m", "heed", "train", "numbers", "--steps", "300"]
            done = [*command, "--run", str(run)]
            subprocess.run(done, check=True, stdout=subprocess.DEVNULL)
        yield from _measure(run)


def _measure(run: Path) -> Iterator[Row]:
    texts = _texts_of(run)
    requested = list(itertools.islice(itertools.cycle(texts), max(_REQUESTS, _ALONE)))
    known: dict[str, str] = {}
    with _serving(run) as (url, process):

        def send(count: int, clients: int, rate: float | None = None) -> Figures:
            return asyncio.run(ask_all(url, requested[:count], clients, known, rate))

        send(_ALONE, 1)
        send(_REQUESTS // 10, _CLIENTS)
        before = memory_of(process)
        alone = send(_ALONE, 1)
        several = f"{_CLIENTS} clients"
        ways = {"one at a time": alone, f"{several}, all at once": send(_REQUESTS, _CLIENTS)}
        for times in (2.0, 4.0):
            paced = send(_REQUESTS // 2, _CLIENTS, times * alone.rate)
            ways[f"{several}, paced {times:g} times"] = paced
        after = memory_of(process)
    single = alone.percentile(50)
    for name, found in ways.items():
        bad = sum(count for status, count in found.statuses.items() if status != 200)
        note = (
            f"{len(found.latencies):,} requests; median {found.percentile(50):.1f} ms, 99 % within "
        )
        note += f"{found.percentile(99):.1f} ms"
        yield Row(f"{name}: answers per second", found.rate, note=note)
        title = f"{name}: errors and texts that differ from those of single requests"
        yield Row(title, bad + found.wrong, 0, at_most=True)
    busy = ways[f"{several}, all at once"]
    yield Row(
        f"throughput of {several} / one at a time", busy.rate / alone.rate, bar(4.0), unit="times"
    )
    for name, found in ways.items():
        title = f"{name}: 99th percentile / median of one at a time"
        paced_most = bar(3.0) if found is paced else None
        yield Row(title, found.percentile(99) / single, paced_most, at_most=True, unit="times")
    yield Row(
        "memory of the server, at the end / at the start", after / before, note=f"{after:.0f} MiB"
    )
