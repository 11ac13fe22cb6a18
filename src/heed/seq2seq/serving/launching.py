"""Serves runs by this process, or by several behind one socket."""

from __future__ import annotations

import functools
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from heed.errors import TaskError
from heed.processes.child import Channel, count_threads
from heed.seq2seq.options.decoding import DecodingOptions
from heed.seq2seq.options.serving import ServingOptions
from heed.seq2seq.runs.run_folder import RunFolder
from heed.seq2seq.serving import _sockets
from heed.seq2seq.serving._processes import serve_in_processes
from heed.seq2seq.serving.hosts import Hosts
from heed.seq2seq.translating.opening import open_translator


@dataclass(frozen=True)
class Server:
    """What to serve, and how."""

    runs: Mapping[str, Path]  # folders by name; the first is the default
    limits: ServingOptions
    decoding: DecodingOptions  # for all that requests do not set
    host: str
    allowed_hosts: Sequence[str]  # that clients use, besides localhost and addresses; "*" for all
    examples: Sequence[str]  # texts to try on the page; none: see `choose_all_examples`
    note: Callable[[str], object]  # takes lines for the user; picklable

    def run(self, port: int, processes: int, on_start: Callable[[str], object]) -> None:
        """Answer requests until SIGINT, SIGTERM or SIGHUP, at a port, or at any free one if it is 0.

        `on_start` is called with the page's address when requests are answered.

        Raises:
            TaskError: if a run or an address cannot be used, or the system shares no socket among processes.
            KeyboardInterrupt: after SIGINT.
        """
        if processes > 1 and os.name != "posix":
            raise TaskError(
                f"several server processes need Linux or macOS. Received: {processes} processes"
            )
        for path in self.runs.values():  # before TensorFlow loads, which takes seconds
            RunFolder.open(path)
        with _sockets.bind(self.host, port) as listener:
            Hosts.of(listener, self.host, self.allowed_hosts)
            if not _sockets.is_loopback(listener):
                self.note(
                    f"{self.host}: other machines can reach this server, which has no authentication"
                )
            if processes == 1:
                self._serve(listener, None, on_start, self.note)
                return
            program = functools.partial(self._serve_in_child, count_threads(None, processes))
            serve_in_processes(listener, processes, program, self.limits.drain, on_start, self.note)

    def _serve(
        self,
        listener: socket.socket,
        threads: int | None,
        on_start: Callable[[str], object],
        note: Callable[[str], object],
        shared: bool = False,
    ) -> None:
        """Load the runs, and answer requests."""
        hosts = Hosts.of(listener, self.host, self.allowed_hosts)
        translators = {
            name: open_translator(path, note, threads=threads) for name, path in self.runs.items()
        }
        from heed.seq2seq.serving._server import serve

        serve(
            listener,
            translators,
            self.limits,
            self.decoding,
            hosts,
            on_start,
            shared,
            self.examples,
        )

    def _serve_in_child(self, threads: int, number: int, descriptor: int, channel: Channel) -> None:
        """Serve in a process; the first one notes what is to be said of the runs."""
        channel.on_end = lambda: os.kill(os.getpid(), signal.SIGTERM)  # answers its last requests
        note = self.note if number == 0 else lambda _: None
        try:
            with socket.socket(fileno=descriptor) as listener:
                self._serve(listener, threads, lambda _: channel.send(None), note, shared=True)
        except TaskError as error:
            channel.send(error)
