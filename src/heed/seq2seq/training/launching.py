"""Trains a run on several workers: processes of this machine, or one of several that others have started.

A worker imports this module before `start_tensorflow`, so nothing here loads TensorFlow at import.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from heed import __version__
from heed.errors import TaskError, UsageError, explain_error
from heed.processes.child import Channel, count_threads
from heed.processes.cluster import Cluster, local_addresses
from heed.processes.meeting import meet
from heed.processes.supervise import LOST, Outcome, Worker, supervise
from heed.seq2seq.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from heed.seq2seq.training.trained import Trained

_CONNECT = 120.0  # seconds for all workers to start TensorFlow


def check_batch(run: RunFolder, workers: int) -> None:
    """Check that workers can share the batches of a run."""
    options = run.options
    if not options.batch_tokens and options.batch_size % workers:
        raise UsageError(
            f"the number of workers must divide the batch of {options.batch_size} pairs "
            f"(--batch-size). Received: {workers} workers"
        )


def prepare_run(run: RunFolder, extend: bool) -> None:
    """Write the folder of a draft; with `extend` extend an existing run to the number of steps of this one."""
    if not extend:
        run.write()
        return
    there = RunFolder.open(run.path)
    if run.options.steps != there.options.steps:
        from heed.seq2seq.runs.start import extend_run  # loads TensorFlow

        extend_run(there, run.options.steps)


def train_locally(
    run: RunFolder, extend: bool, workers: int, restarts: int, note: Callable[[str], object]
) -> Trained:
    """Train a run with workers on this machine.

    Args:
        run: a draft, or with `extend` an existing run with its future number of steps.
        extend: whether the run exists.
        workers: their number.
        restarts, note: as for `supervise`.

    Raises:
        TaskError, ClusterError: if they cannot train; before that, nothing is written.
        KeyboardInterrupt: if it was stopped.
    """
    check_batch(run, workers)
    prepare_run(run, extend)
    threads = str(count_threads(None, workers))
    own = {
        name: os.environ.get(name, threads)
        for name in ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")
    }

    def make_workers() -> list[Worker]:
        addresses = local_addresses(workers)
        clusters = [Cluster(addresses, rank) for rank in range(workers)]
        return [_worker(one, run.path, own, show=one.is_chief) for one in clusters]

    return _result(supervise(make_workers, restarts, note))


def train_as_one_of(
    cluster: Cluster, run: RunFolder, extend: bool, restarts: int, note: Callable[[str], object]
) -> Trained | None:
    """Meet the other workers of a cluster, and train a run with them; again after a fault.

    The arguments are those of `train_locally`, and the workers, of which this process is one; so are the errors.

    Returns:
        How it ended, on the chief.
    """
    check_batch(run, cluster.size)
    facts = {"heed": __version__, "run": run.config}

    def prepare() -> None:
        if extend or not run.path.exists() or not any(run.path.iterdir()):
            prepare_run(run, extend)
        else:
            _check_same(run)  # of an earlier start

    def make_workers() -> list[Worker]:
        with meet(cluster, facts) as meeting:
            meeting.follow(prepare)
            if not cluster.is_chief:
                prepare_run(run, extend) if extend else _copy(run)
        return [_worker(cluster, run.path, {}, show=True)]

    trained = _result(supervise(make_workers, restarts, note))
    return trained if cluster.is_chief else None


def _check_same(run: RunFolder) -> None:
    there = RunFolder.open(run.path)
    for part, value in run.config.items():
        if there.config.get(part) != value:
            raise TaskError(
                f"{run.path} holds another run: its {part} differs; choose another folder with --run"
            )


def _copy(run: RunFolder) -> None:
    """Write the draft of a run, unless the folder is shared with the chief, who has written it."""
    if not run.path.exists() or not any(run.path.iterdir()):
        try:
            run.write()
            return
        except (OSError, TaskError):  # the chief's folder has just become visible
            if not run.path.exists():
                raise
    _check_same(run)


def _result(outcome: Outcome) -> Trained:
    """Return what the first worker has sent."""
    failed = [end.said for end in outcome.exits if end.code]
    if outcome.signal and failed:  # else it came when all was done
        raise KeyboardInterrupt(next(filter(None, failed), ""))
    trained: Trained = outcome.exits[0].said
    return trained


def _worker(cluster: Cluster, path: Path, environment: dict[str, str], show: bool) -> Worker:
    log = path / "logs" / f"worker-{cluster.rank}.log"
    target = functools.partial(_work, path, cluster)
    return Worker(f"worker {cluster.rank}", target, environment, log, show)


def _work(path: Path, cluster: Cluster, channel: Channel) -> None:
    """Train in a worker: send the result or the reason of the failure, and end with its status."""
    try:
        channel.send(train_worker(path, cluster))
    except KeyboardInterrupt as error:
        _fail(channel, str(error) or "stopped", 130)
    except Exception as error:
        text = explain_error(error)
        if text is not None:
            _fail(channel, text, 1)
        kind = type(error).__name__
        if cluster.size > 1 and type(error).__module__.startswith("tensorflow."):
            _fail(channel, f"lost another worker ({kind})", LOST)
        traceback.print_exc()
        _fail(channel, f"{kind}: {(str(error).strip().splitlines() or [''])[0]}", 70)


def _fail(channel: Channel, text: str, code: int) -> NoReturn:
    channel.send(" ".join(text.split()))
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # the log's disk is full; Python would try again
        sys.stdout = sys.stderr = None
    sys.exit(code)


def train_worker(path: Path, cluster: Cluster) -> Trained:
    """Train the run in this process as a worker of the cluster, before TensorFlow has computed anything."""
    from heed.seq2seq.tensorflow_start import start_tensorflow

    start_tensorflow()
    from heed.seq2seq.training._workers import make_strategy
    from heed.seq2seq.training.training import train

    with _limit_connecting():
        strategy = make_strategy(cluster)
    return train(RunFolder.open(path), strategy=strategy)


@contextlib.contextmanager
def _limit_connecting() -> Iterator[None]:
    """End this process if the block takes too long: TensorFlow would wait an hour for a worker that has died."""

    def give_up() -> None:
        with contextlib.suppress(OSError):  # the log's disk is full
            os.write(2, f"the other workers did not connect within {_CONNECT:.0f} s\n".encode())
        os._exit(LOST)

    timer = threading.Timer(_CONNECT, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
