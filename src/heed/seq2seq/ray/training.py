"""Ray Train as the launcher of workers: it places them, sets TF_CONFIG and starts them again after a fault."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from heed import ray_connection
from heed.errors import ClusterError
from heed.processes.cluster import Cluster, read_cluster
from heed.seq2seq.runs.run_folder import RunFolder
from heed.seq2seq.training.launching import check_batch, prepare_run, train_worker
from heed.seq2seq.training.trained import Trained

_RESULT = "result.json"


def train_on_ray(run: RunFolder, extend: bool, workers: int, restarts: int) -> Trained:
    """Train a run with a group of workers on Ray's cluster, and again with a new group after a fault.

    Args:
        run: a draft, or with `extend` an existing run with its future number of steps; all machines see its folder.
        extend: whether the run exists.
        workers: their number; each takes one processor.
        restarts: the most restarts of the group, 0 or more.

    Raises:
        RayError: if there is no such cluster, or it has fewer processors than workers. Nothing is written.
        ClusterError: if training failed for the last time.
    """
    check_batch(run, workers)
    os.environ["RAY_TRAIN_ENABLE_PRINT_PATCH"] = "0"  # prints once, to the worker's output
    with ray_connection.connect(show_workers=True) as ray:
        ray_connection.check_processors(ray, workers, threads=1)
        prepare_run(run, extend)
        return _train(run.path.resolve(), workers, restarts)


def _train(path: Path, workers: int, restarts: int) -> Trained:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.tensorflow import TensorflowTrainer

    folder = path / "logs" / "ray"
    folder.mkdir(parents=True, exist_ok=True)
    trainer = TensorflowTrainer(
        _loop,
        train_loop_config={"path": str(path), "folder": str(folder)},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            name="heed",
            storage_path=str(folder),
            failure_config=FailureConfig(max_failures=restarts),
        ),
    )
    try:
        trainer.fit()
    except Exception as error:  # of many types: Ray's, and those of the workers
        raise ClusterError(_explain(error, restarts)) from None
    return Trained(**json.loads((folder / _RESULT).read_text()))


def _loop(config: dict[str, Any]) -> None:
    """Run on each worker, after Ray has set TF_CONFIG."""
    os.environ.pop("TF_USE_LEGACY_KERAS", None)  # Ray sets it
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    path, cluster = Path(config["path"]), read_cluster() or Cluster(("",), 0)
    with _own_log(path, cluster):
        trained = train_worker(path, cluster)
    if cluster.is_chief:  # Ray returns metrics with a checkpoint of its own only
        (Path(config["folder"]) / _RESULT).write_text(json.dumps(asdict(trained)))


@contextlib.contextmanager
def _own_log(path: Path, cluster: Cluster) -> Iterator[None]:
    """Send stderr to the worker's log; that of the chief stays where Ray shows it."""
    if cluster.is_chief:
        yield
        return
    log = path / "logs" / f"worker-{cluster.rank}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file, contextlib.redirect_stderr(file):
        yield


def _explain(error: BaseException, restarts: int) -> str:
    """Return one line: the worker and its error."""
    failures = getattr(error, "worker_failures", None) or {}
    rank, cause = next(iter(sorted(failures.items())), (None, error))
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    where = "" if rank is None else f"worker {rank}: "
    return (
        f"gave up after {restarts} restarts: {where}{lines[-1] if lines else type(cause).__name__}"
    )
