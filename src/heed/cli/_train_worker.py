"""One worker of a training on several, as `heed train` starts it: `python -m heed.cli._train_worker RUN`.

TF_CONFIG names the workers. The supervisor gets the reason of a failure through a pipe.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from heed.cli._command import explain_error
from heed.cli._streams import drop_output, prepare_streams, print_line, print_note
from heed.processes.cluster import Cluster, read_cluster
from heed.processes.supervise import report, start_heartbeat
from heed.processes.supervisor import LOST

_CONNECT = 120.0  # seconds for all workers to start TensorFlow


def main(path: str) -> int:
    """Trains the run as the worker that TF_CONFIG names, and returns the exit status."""
    start_heartbeat()
    prepare_streams()
    cluster = read_cluster() or Cluster(("",), 0)
    try:
        trained = train(Path(path), cluster)
        if cluster.is_chief:
            print_result(trained)
        sys.stdout.flush()
        return 0
    except KeyboardInterrupt as error:
        return _fail(str(error) or "stopped", 130)
    except Exception as error:
        text = explain_error(error)
        if text is not None:
            return _fail(text, 1)
        kind = type(error).__name__
        if cluster.size > 1 and type(error).__module__.startswith("tensorflow."):
            return _fail(f"lost another worker ({kind})", LOST)
        traceback.print_exc()
        return _fail(f"{kind}: {(str(error).strip().splitlines() or [''])[0]}", 70)


def train(path: Path, cluster: Cluster) -> Any:
    """Trains the run in this process as a worker of the cluster, before TensorFlow has computed anything.

    Returns:
        How it ended: `heed.seq2seq.Trained`.
    """
    from heed import seq2seq
    from heed.seq2seq.tensorflow_start import start_tensorflow

    start_tensorflow()
    from heed.seq2seq.training.strategy import make_strategy

    with _limit_connecting():
        strategy = make_strategy(cluster)
    return seq2seq.train(seq2seq.RunFolder.open(path), strategy=strategy)


@contextlib.contextmanager
def _limit_connecting() -> Iterator[None]:
    """End this process if the block takes too long: TensorFlow would wait an hour for a worker that has died."""

    def give_up() -> None:
        _fail(f"the other workers did not connect within {_CONNECT:.0f} s", LOST)
        os._exit(LOST)

    timer = threading.Timer(_CONNECT, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def train_in_ray(path: Path, cluster: Cluster) -> dict[str, Any]:
    """Trains the run in a process of Ray's; how it ended, as plain values."""
    return asdict(train(path, cluster))


def print_result(trained: Any) -> None:
    """Print how a training ended."""
    early = f", stopped early; best at {trained.best_step:,}" if trained.stopped_early else ""
    print_line(f"trained {trained.steps:,} steps in {trained.seconds:.1f} s{early}")


def _fail(text: str, code: int) -> int:
    report(text)
    drop_output()
    try:
        print_note(" ".join(text.split()))
    except OSError:  # the log's disk is full
        sys.stderr = None
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
