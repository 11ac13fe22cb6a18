"""`heed train` on several workers: `--launch`, or TF_CONFIG."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heed import __version__, seq2seq
from heed.cli._arguments import check_positive
from heed.cli._streams import print_note
from heed.errors import TaskError, UsageError
from heed.processes.child import count_threads
from heed.processes.cluster import VARIABLE, Cluster, local_addresses, read_cluster
from heed.processes.meeting import meet
from heed.processes.supervise import Outcome, Worker
from heed.processes.supervisor import RESTARTS, supervise
from heed.ray_connection import check_installed

_WAYS = ("local", "ray")


@dataclass(frozen=True)
class Launch:
    """How to train on several workers.

    Args:
        way: "local", "ray", or "cluster": as one worker of several that others started.
        workers: their number.
        restarts: the most restarts after a fault.
        cluster: the workers that TF_CONFIG names.
    """

    way: str
    workers: int
    restarts: int
    cluster: Cluster | None = None


def add_launch(group: Any) -> None:
    """Add the arguments that launch several workers."""
    ways = " or ".join(_WAYS)
    group.add_argument("--launch", choices=_WAYS, metavar="WAY", help=f"start workers: {ways}")
    group.add_argument("--workers", type=int, metavar="N", help="number of workers to start")
    group.add_argument(
        "--restarts", type=int, metavar="N", help=f"restarts after a fault ({RESTARTS})"
    )


def read_launch(parsed: argparse.Namespace) -> Launch | None:
    """How to train on several workers, from arguments and environment; None for this process alone.

    Raises:
        TaskError, ClusterError, RayError: if they do not fit together, or Ray is missing.
    """
    cluster = read_cluster()
    restarts = RESTARTS if parsed.restarts is None else parsed.restarts
    if restarts < 0:
        raise UsageError(f"--restarts must be an integer >= 0. Received: {restarts}")
    if parsed.launch is None:
        if parsed.workers is not None:
            raise UsageError(f"--workers needs --launch {' or '.join(_WAYS)}")
        if cluster is None and parsed.restarts is not None:
            raise UsageError("--restarts is for several workers: give --launch too")
        if cluster is None or cluster.size == 1:
            return None
        if parsed.run is None and parsed.resume is None:
            raise UsageError("on several workers give --run: all must mean the same folder")
        return Launch("cluster", cluster.size, restarts, cluster)
    if cluster is not None:
        raise UsageError("--launch starts all workers itself: leave it out, or unset TF_CONFIG")
    if parsed.workers is None:
        raise UsageError(f"--launch {parsed.launch} needs --workers")
    check_positive("--workers", parsed.workers)
    if parsed.launch == "ray":
        check_installed()
    return Launch(parsed.launch, parsed.workers, restarts)


def train_on_workers(launch: Launch, run: seq2seq.RunFolder, extend: bool) -> None:
    """Trains a run on several workers.

    Args:
        launch: how.
        run: a draft, or with `extend` an existing run with its future number of steps.
        extend: whether the run exists.

    Raises:
        TaskError, ClusterError: if they cannot train; before that, nothing is written.
        KeyboardInterrupt: if it was stopped.
    """
    options = run.options
    if not options.batch_tokens and options.batch_size % launch.workers:
        raise UsageError(
            f"the number of workers must divide the batch of {options.batch_size} pairs "
            f"(--batch-size). Received: {launch.workers} workers"
        )

    def prepare() -> None:
        _extend(run) if extend else _write(run, launch)

    if launch.way == "cluster":
        outcome = _train_as_one_of(launch, run, prepare, extend)
    elif launch.way == "ray":
        _train_with_ray(launch, run, prepare)
        return
    else:
        prepare()
        outcome = supervise(
            lambda: _local_workers(run.path, launch.workers), launch.restarts, print_note
        )
    if outcome.signal:
        lines = [end.line for end in outcome.exits if end.line]
        raise KeyboardInterrupt(lines[0] if lines else "")


def _write(run: seq2seq.RunFolder, launch: Launch) -> None:
    """Write the folder of a draft, or check that this run is there: of an earlier start."""
    if launch.cluster is None or not run.path.exists() or not any(run.path.iterdir()):
        run.write()
    else:
        _check_same(run)


def _check_same(run: seq2seq.RunFolder) -> None:
    there = seq2seq.RunFolder.open(run.path)
    for part, value in run.config.items():
        if there.config.get(part) != value:
            raise TaskError(
                f"{run.path} holds another run: its {part} differs; choose another folder with --run"
            )


def _extend(run: seq2seq.RunFolder) -> None:
    there = seq2seq.RunFolder.open(run.path)
    if run.options.steps != there.options.steps:
        seq2seq.extend_run(there, run.options.steps)


def _train_with_ray(launch: Launch, run: seq2seq.RunFolder, prepare: Callable[[], None]) -> None:
    from heed.cli._train_worker import print_result, train_in_ray
    from heed.seq2seq.ray.training import connect, train_with_ray

    with connect(launch.workers):
        prepare()
        path = run.path.resolve()
        values = train_with_ray(train_in_ray, path, launch.workers, launch.restarts)
    print_result(seq2seq.Trained(**values))


def _local_workers(path: Path, count: int) -> list[Worker]:
    addresses = local_addresses(count)
    threads = str(count_threads(None, count))
    own = {
        name: os.environ.get(name, threads)
        for name in ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")
    }
    return [_worker(Cluster(addresses, rank), path, own, show=rank == 0) for rank in range(count)]


def _worker(cluster: Cluster, path: Path, environment: dict[str, str], show: bool) -> Worker:
    tf_config = cluster.to_tf_config() if cluster.size > 1 else None
    return Worker(
        f"worker {cluster.rank}",
        [sys.executable, "-m", "heed.cli._train_worker", str(path)],
        {**environment, VARIABLE: tf_config},
        log=path / "logs" / f"worker-{cluster.rank}.log",
        show=show,
    )


def _train_as_one_of(
    launch: Launch, run: seq2seq.RunFolder, prepare: Callable[[], None], extend: bool
) -> Outcome:
    """Meets the other workers, and trains with them; again after a fault."""
    cluster = launch.cluster
    if cluster is None:
        raise TypeError("`launch.cluster` must be a cluster. Received: None")
    facts = {"heed": __version__, "run": run.config}

    def make_workers() -> list[Worker]:
        with meet(cluster, facts) as meeting:
            meeting.follow(prepare)
            if not cluster.is_chief:
                _extend(run) if extend else _copy(run)
        return [_worker(cluster, run.path, {}, show=True)]

    return supervise(make_workers, launch.restarts, print_note)


def _copy(run: seq2seq.RunFolder) -> None:
    """Write the draft of a run, unless the folder is shared with the chief, who has written it."""
    if not run.path.exists() or not any(run.path.iterdir()):
        try:
            run.write()
            return
        except (OSError, TaskError):  # the chief's folder has just become visible
            if not run.path.exists():
                raise
    _check_same(run)
