"""`heed train --launch ray`: says what is missing; with Ray, the weights are those of local workers."""

import importlib.util
import os
import signal
import subprocess

import pytest

from heed import cli
from tests.cli.command import fails, process
from tests.seq2seq.training.test_launching import ONE_THREAD, TINY, await_step, finish, weights

RAY = ["--launch", "ray", "--workers", "2"]
JOB = [*TINY, "--dropout", "0.2", "--steps", "20"]
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")


def test_without_ray_it_says_how_to_install_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    status = cli.main(["train", "numbers", *JOB, "--run", "run", *RAY])
    fails((status, *capsys.readouterr()), 1, "this needs ray: pip install ")
    assert not list(tmp_path.iterdir())


@needs_ray
@pytest.mark.slow
def test_ray_starts_again_after_a_kill(tmp_path):
    environment = {**os.environ, **ONE_THREAD}
    local = ["--launch", "local", "--workers", "2"]
    finish(process("train", "numbers", "--run", tmp_path / "a", *JOB, *local, env=environment))
    path = tmp_path / "b"
    job = process("train", "numbers", "--run", path, *JOB, *RAY, env=environment)
    await_step(path, 5, job)
    command = ["pgrep", "-f", "ray::RayTrainWorker|ray::_RayTrainWorker"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    if found:  # not over already
        os.kill(int(found[-1]), signal.SIGKILL)
    out, _ = finish(job)
    assert "trained 20 steps" in out
    assert weights(path) == weights(tmp_path / "a")
    assert (path / "logs" / "worker-1.log").exists()


@needs_ray
def test_no_cluster_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    status = cli.main(["train", "numbers", *JOB, "--run", "run", *RAY])
    message = "cannot reach the Ray cluster at 127.0.0.1:1: Connection refused"
    fails((status, *capsys.readouterr()), 1, message)
    assert not list(tmp_path.iterdir())
