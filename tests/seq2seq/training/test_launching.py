"""`heed train` on two workers: the same steps as on one, whatever happens to a worker."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from heed import cli
from heed.processes.cluster import Cluster, local_addresses
from heed.processes.supervise import Exit, Outcome
from heed.seq2seq import RunFolder
from heed.seq2seq.training import launching
from heed.seq2seq.training.trained import Trained
from tests.cli.command import children_of, contents, process
from tests.cli.conftest import no_validation  # noqa: F401
from tests.processes.test_child import is_alive

MODEL = "--width 16 --num-heads 2 --encoder-layers 1 --decoder-layers 1 --feed-forward-width 16"
TINY = [*MODEL.split(), *"--batch-size 4 --validate-every 10 --checkpoint-every 5".split()]
TWO = ["--launch", "local", "--workers", "2"]
ONE_THREAD = dict.fromkeys(
    ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"), "1"
)


def losses(path):
    lines = (path / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def weights(path):
    with np.load(path / "weights.npz") as arrays:
        return {name: arrays[name].tobytes() for name in arrays.files if name.startswith("weight")}


@pytest.mark.usefixtures("eager", "no_validation")  # of the worker that is alone
def test_two_workers_take_the_steps_of_one(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for name in ONE_THREAD:
        monkeypatch.setenv(name, "1")
    words = ["train", "numbers", *TINY, "--languages", "en", "--steps", "3", "--dropout", "0"]
    assert cli.main([*words, "--run", "one"]) == 0
    capfd.readouterr()
    assert cli.main([*words, "--run", "two", *TWO]) == 0
    out, err = capfd.readouterr()
    assert "trained 3 steps in" in out
    assert "the run: two" in out
    assert "step 3/3  loss" in err
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(tmp_path / "one"), atol=1e-5)
    logs = tmp_path / "two" / "logs"
    assert sorted(path.name for path in logs.iterdir()) == ["worker-0.log", "worker-1.log"]
    log = (logs / "worker-1.log").read_text()
    assert "3 steps of 4 pairs" in log
    assert "absl" not in log  # TensorFlow's own lines
    assert RunFolder.open("two").config == RunFolder.open("one").config


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workers", "2"], "--workers needs --launch local or ray"),
        (["--launch", "local"], "--launch local needs --workers"),
        ([*TWO[:3], "0"], "--workers must be an integer >= 1. Received: 0"),
        ([*TWO[:3], "3"], "must divide the batch of 4 pairs (--batch-size). Received: 3 workers"),
        (["--restarts", "1"], "--restarts is for several workers: give --launch too"),
        ([*TWO, "--restarts", "-1"], "--restarts must be an integer >= 0. Received: -1"),
    ],
)
def test_bad_arguments(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "numbers", *TINY, "--run", "run", *words]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert message in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("{", ["--run", "run"], "TF_CONFIG must be like"),
        (Cluster(("a:1", "b:1"), 1).to_tf_config(), [], "give --run"),
        (Cluster(("a:1", "b:1"), 1).to_tf_config(), ["--run", "run", *TWO], "unset TF_CONFIG"),
    ],
)
def test_bad_environment(tmp_path, monkeypatch, capsys, text, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TF_CONFIG", text)
    assert cli.main(["train", "numbers", *TINY, *words]) == (1 if "must be" in message else 2)
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert message in err
    assert not list(tmp_path.iterdir())


def test_a_signal_stops_workers_that_have_not_finished():
    trained = Trained(6, 1.0, False, 6)
    ends = [Exit(f"worker {i}", 0, "ended with exit status 0", trained) for i in range(2)]
    assert launching._result(Outcome(tuple(ends), signal=signal.SIGTERM)) == trained
    ends[1] = Exit("worker 1", 130, "ended with exit status 130", "stopped at step 5")
    with pytest.raises(KeyboardInterrupt, match=r"^stopped at step 5$"):
        launching._result(Outcome(tuple(ends), signal=signal.SIGTERM))


# Faults; the jobs run in processes of their own --------------------------------------------------

JOB = [*TINY, "--dropout", "0.2", "--checkpoint-every", "3"]


def start(path, *words, steps=90, **options):
    words = ["train", "numbers", "--run", path, *JOB, "--steps", steps, *words]
    return process(*words, env={**os.environ, **ONE_THREAD}, **options)


def finish(job, status=0):
    out, err = job.communicate(timeout=600)
    assert job.returncode == status, err
    return out, err


def await_step(path, step, job, since=0.0):
    """Wait for a checkpoint of this step or a later one."""
    while job.poll() is None:
        files = [*path.glob("checkpoints/step-*.npz")]
        if any(int(one.stem.removeprefix("step-")) >= step for one in files):
            return
        time.sleep(0.005)
    raise AssertionError(job.communicate())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    finish(start(path, *TWO))
    return weights(path)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_kills_change_no_bit(tmp_path, undisturbed, number):
    """Five kills of a job, of any worker, four jobs: twenty in all."""
    chance, path = random.Random(number), tmp_path / "run"
    job = start(path, *TWO, "--restarts", "5")
    for step in sorted(chance.sample(range(1, 88), 5)):
        await_step(path, step, job)
        workers = children_of(job)
        time.sleep(chance.random() * 0.05)
        os.kill(chance.choice(workers), signal.SIGKILL)
        while children_of(job) == workers or len(children_of(job)) < 2:  # until it starts again
            assert job.poll() is None, job.communicate()
            time.sleep(0.01)
    _, err = finish(job)
    assert err.count("was killed by SIGKILL; starting again from the last checkpoint") == 5
    assert "(5 of 5 restarts)" in err
    assert weights(path) == undisturbed
    assert not [one for one in path.rglob("*") if ".tmp" in one.name or ".part" in one.name]
    lines = (path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [*range(10, 91, 10)]


@pytest.mark.slow
def test_a_worker_that_hangs_is_replaced(tmp_path, undisturbed):
    path = tmp_path / "run"
    job = start(path, *TWO)
    await_step(path, 6, job)
    began = time.monotonic()
    os.kill(children_of(job)[1], signal.SIGSTOP)
    _, err = finish(job)
    assert "starting again from the last checkpoint (1 of 3 restarts)" in err
    assert time.monotonic() - began < 120
    assert weights(path) == undisturbed


@pytest.mark.slow
def test_it_gives_up_after_the_last_restart(tmp_path):
    path = tmp_path / "run"
    job = start(path, *TWO, "--restarts", "0")
    await_step(path, 3, job)
    os.kill(children_of(job)[0], signal.SIGKILL)
    _, err = finish(job, status=1)
    assert err.endswith("heed: gave up after 0 restarts: worker 0 was killed by SIGKILL\n")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_after_the_same_step(tmp_path, undisturbed, number):
    path = tmp_path / "run"
    job = start(path, *TWO)
    await_step(path, 6, job)
    job.send_signal(number)
    _, err = finish(job, status=130)
    assert f"continue from step {_stopped_at(path)} with: heed train --resume" in err
    finish(process("train", "--resume", path, *TWO, env={**os.environ, **ONE_THREAD}))
    assert weights(path) == undisturbed


def _stopped_at(path):
    with np.load(path / "checkpoints" / "stopped.npz") as arrays:
        return json.loads(arrays["meta.json"].tobytes())["step"]


@pytest.mark.slow
def test_a_full_disk_stops_the_job_in_one_line(tmp_path):
    """A limit on the size of a file, which no checkpoint keeps, stands for the disk."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))  # noqa: E731
    path = tmp_path / "run"
    _, err = finish(start(path, *TWO, preexec_fn=limit), status=1)
    last = err.splitlines()[-1]
    assert last.startswith("heed: worker 0: cannot read or write")
    assert "File too large; stopped at step 3 of 90; continue from step 0 with:" in last
    assert not list((path / "checkpoints").iterdir())


@pytest.mark.slow
def test_no_worker_outlives_a_job_that_is_killed(tmp_path):
    path = tmp_path / "run"
    job = start(path, *TWO)
    await_step(path, 3, job)
    workers = children_of(job)
    job.kill()
    job.communicate()
    assert len(workers) == 2
    end = time.monotonic() + 20
    while any(map(is_alive, workers)):
        assert time.monotonic() < end
        time.sleep(0.01)


# As one of several workers that others start: TF_CONFIG ------------------------------------------


def pair(tmp_path, *words, others=(), shared=False, addresses=None):
    """Return two workers; without shared storage each has a folder of its own."""
    addresses = addresses or local_addresses(2)
    jobs = []
    for rank in range(2):
        folder = tmp_path / ("shared" if shared else f"host{rank}")
        folder.mkdir(exist_ok=True)
        variables = {"TF_CONFIG": Cluster(addresses, rank).to_tf_config(), **ONE_THREAD}
        more = others if rank else ()
        line = ["train", "numbers", "--run", "run", *JOB, "--steps", 90, *words, *more]
        jobs.append(process(*line, cwd=folder, env={**os.environ, **variables}))
    return jobs


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_workers_that_others_start(tmp_path, undisturbed, shared):
    """One is killed, comes back, and they go on, with the weights of one machine."""
    jobs = pair(tmp_path, shared=shared)
    path = tmp_path / ("shared" if shared else "host0") / "run"
    await_step(path, 6, jobs[0])
    os.kill(children_of(jobs[1])[0], signal.SIGKILL)
    errors = [finish(job)[1] for job in jobs]
    assert "worker 0: lost another worker" in errors[0]
    assert "worker 1 was killed by SIGKILL; starting again" in errors[1]
    assert weights(path) == undisturbed
    assert (path.parents[1] / ("shared" if shared else "host1") / "run/logs/worker-1.log").exists()


@pytest.mark.slow
def test_a_host_that_comes_back(tmp_path, undisturbed):
    """The whole command of a worker is killed, as with its machine, and started again."""
    addresses = local_addresses(2)
    jobs = pair(tmp_path, addresses=addresses)
    await_step(tmp_path / "host0/run", 6, jobs[0])
    jobs[1].kill()
    jobs[1].communicate(timeout=20)
    time.sleep(3)
    again = process(
        *["train", "numbers", "--run", "run", *JOB, "--steps", 90],
        cwd=tmp_path / "host1",
        env={**os.environ, "TF_CONFIG": Cluster(addresses, 1).to_tf_config(), **ONE_THREAD},
    )
    finish(jobs[0])
    finish(again)
    assert weights(tmp_path / "host0/run") == undisturbed


@pytest.mark.slow
def test_different_configs_are_named_by_both(tmp_path):
    began = time.monotonic()
    lines = {finish(job, status=1)[1] for job in pair(tmp_path, others=["--seed", "9"])}
    assert lines == {
        "heed: worker 1 differs from worker 0: run.training.seed is 0 on worker 0 and 9 there\n"
    }
    assert time.monotonic() - began < 60
    assert not list(tmp_path.glob("*/run"))


@pytest.mark.slow
def test_another_run_in_the_folder_is_left_alone(tmp_path):
    (tmp_path / "shared").mkdir()
    assert not subprocess.run(
        [sys.executable, "-m", "heed", "train", "numbers", "--run", "run", *JOB, "--steps", "5"],
        cwd=tmp_path / "shared",
        check=False,
    ).returncode
    before = contents(tmp_path / "shared/run")
    lines = [finish(job, status=1)[1] for job in pair(tmp_path, shared=True)]
    assert all("run holds another run: its training differs" in line for line in lines)
    assert all(line.count("\n") == 1 for line in lines)
    assert contents(tmp_path / "shared/run") == before
