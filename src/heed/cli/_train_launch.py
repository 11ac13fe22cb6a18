"""`heed train` on several workers: `--launch`, or TF_CONFIG."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from heed import seq2seq
from heed.cli._arguments import check_positive
from heed.cli._streams import print_note
from heed.errors import UsageError
from heed.processes.cluster import Cluster, read_cluster
from heed.processes.supervise import RESTARTS
from heed.ray_connection import check_installed

_WAYS = ("local", "ray")


@dataclass(frozen=True)
class Launch:
    """How to train on several workers."""

    way: str  # "local", "ray", or "cluster": as one worker of several that others started
    workers: int
    restarts: int
    cluster: Cluster | None = None  # that TF_CONFIG names


def add_launch(group: Any) -> None:
    """Add the arguments that launch several workers."""
    ways = " or ".join(_WAYS)
    group.add_argument("--launch", choices=_WAYS, metavar="WAY", help=f"start workers: {ways}")
    group.add_argument("--workers", type=int, metavar="N", help="number of workers to start")
    group.add_argument(
        "--restarts", type=int, metavar="N", help=f"restarts after a fault ({RESTARTS})"
    )


def read_launch(parsed: argparse.Namespace) -> Launch | None:
    """Return how to train on several workers, from arguments and environment; None for this process alone."""
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


def train_on_workers(
    launch: Launch, run: seq2seq.RunFolder, extend: bool
) -> seq2seq.Trained | None:
    """Train a run on several workers, see `heed.seq2seq.training.launching`; None on all but the chief."""
    from heed.seq2seq.training.launching import train_as_one_of, train_locally

    if launch.cluster is not None:
        return train_as_one_of(launch.cluster, run, extend, launch.restarts, print_note)
    if launch.way == "local":
        return train_locally(run, extend, launch.workers, launch.restarts, print_note)
    from heed.seq2seq.ray.training import train_on_ray

    return train_on_ray(run, extend, launch.workers, launch.restarts)
