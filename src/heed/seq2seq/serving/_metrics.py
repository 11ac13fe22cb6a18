"""The metrics of a server, in Prometheus' format."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from heed.seq2seq.serving._metrics_folder import SHARED_FOLDER

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The metrics of one server, or of all processes of a server if they share a folder."""

    def __init__(self, waiting: Callable[[], int]) -> None:
        self._registry = self._own = CollectorRegistry()
        if SHARED_FOLDER in os.environ:
            self._registry = CollectorRegistry()
            MultiProcessCollector(self._registry)
        self._requests = Counter(
            "heed_requests",
            "Requests by path and status",
            ["path", "status"],
            registry=self._own,
        )
        self._seconds = Histogram(
            "heed_request_seconds",
            "From the head of a request to the end of its answer",
            ["path"],
            buckets=_SECONDS,
            registry=self._own,
        )
        self.batch = Histogram(
            "heed_batch_size", "Texts decoded together", buckets=_SIZES, registry=self._own
        )
        self._queue = Gauge(
            "heed_queue_length", "Texts that wait", registry=self._own, multiprocess_mode="livesum"
        )
        self._waiting = waiting

    def update(self) -> None:
        """Note how many texts wait now, for other processes that are asked."""
        self._queue.set(self._waiting())

    def text(self) -> bytes:
        """Return all metrics in Prometheus' format; those of this process alone if others' files cannot be read."""
        self.update()
        try:
            return generate_latest(self._registry)
        except (OSError, RuntimeError, ValueError, struct.error):
            return generate_latest(self._own)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)


class RequestCounter:
    """ASGI middleware: counts every answer, whatever gave it.

    Paths other than these are "other", or clients could make up endless labels.
    """

    def __init__(self, app: Any, metrics: Metrics, paths: frozenset[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        begin, status = time.perf_counter(), 500
        path = scope["path"] if scope["path"] in self._paths else "other"

        async def send_and_note(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            self._metrics.count_request(path, status, time.perf_counter() - begin)
        return None
