"""heed on a Ray cluster on this machine."""

import functools
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from heed.errors import RayError
from heed.seq2seq import TaskError, Translator
from heed.seq2seq.corpus.inputs import scan
from heed.seq2seq.corpus.job import Job
from heed.seq2seq.ray import Translator as ColumnTranslator
from tests.cli.command import fails
from tests.cli.conftest import heed  # noqa: F401
from tests.seq2seq.corpus import fakes
from tests.seq2seq.serving.load import Load


def test_a_column_is_translated(finished_run):
    """Without Ray: the batch as Ray Data passes it. Columns stay; bad texts are described."""
    translate = ColumnTranslator(finished_run.path, source="line", language="de")
    texts = ["12", "x", "", None, "7", 3.5]
    batch = {"id": np.arange(6), "line": np.array(texts, object)}
    found = translate(batch)
    assert list(found) == ["id", "line", "translation", "problem"]
    assert found["id"] is batch["id"]
    expected = Translator(finished_run)(["12", "7"], "de")
    assert found["translation"].tolist() == [expected[0], "", "", "", expected[1], ""]
    problems = found["problem"].tolist()
    assert problems[1].startswith("a number must be digits")
    assert problems[3] == "it is missing"
    assert problems[5] == "it is no text: 3.5"
    assert problems[2] == ""
    for problem in (problems[0], problems[4]):  # of a run that has hardly learnt
        assert problem == "" or problem.startswith("the translation is cut at ")
    with pytest.raises(TaskError, match=r"no column 'line'.*\['id'\]"):
        translate({"id": batch["id"]})
    with pytest.raises(TaskError, match="the column 'problem' exists already"):
        translate({**batch, "problem": batch["id"]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"run": "nowhere"}, "nowhere does not exist"),
        ({"target": "text"}, "must be three columns"),
        ({"n_best": 2}, "`n_best` is not for a column"),
        ({"beam_size": 0}, "`beam_size` must be"),
        ({"language": "fr"}, "must be one of en, de"),
        ({"prefix": ""}, "a prefix must not be empty"),
    ],
)
def test_a_column_that_cannot_be_translated(finished_run, options, message):
    with pytest.raises(TaskError, match=message):
        ColumnTranslator(**{"run": finished_run.path, **options})


def test_without_ray_one_line_says_how_to_get_it(heed, finished_run, tmp_path, monkeypatch):  # noqa: F811
    from heed.seq2seq.ray import deployment

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RayError, match=r"this needs ray: pip install .*\[ray\]"):
        deployment(finished_run.path)
    (tmp_path / "a.txt").write_text("1\n")
    words = ["--input", "a.txt", "--output", "out", "--launch", "ray", "--quiet"]
    fails(heed("translate", finished_run.path, *words), 1, "this needs ray: pip install")
    assert not list((tmp_path / "out/.heed/shards").iterdir())


@pytest.fixture(scope="module")
def cluster():
    """Yield a cluster of two processors, in which this process is the driver."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield ray
        ray.shutdown()


def make(folder, deaths, job, threads, warn):
    warn(f"{threads} threads")
    return fakes.make_mortal(folder, [signal.SIGKILL] * deaths, warn)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_actors_translate_shards(cluster, tmp_path):
    """One that is killed is replaced, and its shard repeated; not for ever."""
    from heed.seq2seq.ray.corpus import translate_on_ray

    path = tmp_path / "in.txt"
    path.write_text("".join(f"line {i}\n" for i in range(20)) + "death\nend\n")
    (tmp_path / "deaths").mkdir()
    file = scan(path, 3)

    def translate(deaths, workers=2):
        notes = []
        shards = (file.read_shard(0, number) for number in range(len(file.starts)))
        made = functools.partial(make, str(tmp_path / "deaths"), deaths)
        found = translate_on_ray(
            Job(tmp_path), workers, None, notes.append, len(file.starts), shards, made
        )
        results = sorted(found, key=lambda one: one.number)
        return b"".join(one.output for one in results).decode(), notes

    text, notes = translate(2)
    assert text == path.read_text().upper()
    assert sorted(note[8:] for note in notes) == sorted(
        ["s"] + [" died: starting another one, which repeats its work"] * 2
    )
    with pytest.raises(TaskError, match=r"line 19 .*died, 3 times"):
        translate(99)
    with pytest.raises(RayError, match=r"need 4 processors.* has 2"):
        translate(99, 4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_pipeline_of_ray_data(cluster, finished_run):
    import ray.data

    texts = [str(i) for i in range(30)]
    rows = ray.data.from_items([{"id": i, "text": text} for i, text in enumerate(texts)])
    found = rows.map_batches(
        ColumnTranslator,
        fn_constructor_kwargs={"run": str(finished_run.path), "language": "de"},
        concurrency=1,
        num_cpus=1,
        batch_size=8,
    ).take_all()
    found.sort(key=lambda row: row["id"])
    assert [row["text"] for row in found] == texts
    assert [row["translation"] for row in found] == Translator(finished_run)(texts, "de")
    assert not any(row["problem"] for row in found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_replica_that_is_killed_under_load(cluster, finished_run):
    """No request is lost that the client repeats, and no answer is wrong."""
    from ray import serve

    from heed.seq2seq.ray import deployment

    app = deployment(finished_run.path, num_replicas=2, ray_actor_options={"num_cpus": 0.5})
    serve.start(http_options={"host": "127.0.0.1", "port": 8799})
    try:
        serve.run(app)
        with Load(("127.0.0.1", 8799)) as load:
            load.wait(100)
            victim = replicas()[0]
            os.kill(victim, signal.SIGKILL)
            load.wait(200)
            end = time.monotonic() + 120
            while victim in replicas() or len(replicas()) < 2:
                assert time.monotonic() < end
                time.sleep(0.2)
            load.wait(100)
        assert load.lost == 0
        texts = list(load.answers)
        expected = {
            text: {one} for text, one in zip(texts, Translator(finished_run)(texts), strict=True)
        }
        assert load.answers == expected
    finally:
        serve.shutdown()


def replicas():
    """Return the processes of the replicas."""
    listed = subprocess.run(["pgrep", "-f", "ServeReplica:.*heed"], capture_output=True, text=True)
    return [int(pid) for pid in listed.stdout.split()]


@pytest.mark.slow
def test_a_corpus_on_ray(finished_run, tmp_path):
    """The command starts a cluster here, and the result is that of one process."""
    pytest.importorskip("ray")
    (tmp_path / "a.txt").write_text("".join(f"{i}\n" for i in range(40)) + "x\n")
    run = os.path.relpath(finished_run.path, tmp_path)  # actors have other working folders
    several = ["--shard-lines", "9", "--launch", "ray", "--workers", "2"]
    for more in (["--output", "out", *several], ["--output", "b.txt"]):
        words = ["translate", run, "--input", "a.txt"]
        done = subprocess.run(
            [sys.executable, "-m", "heed", *words, *more],
            cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 1, done.stderr
        assert "line 41: a number must be digits" in done.stderr
    assert (tmp_path / "out/a.txt").read_text() == (tmp_path / "b.txt").read_text()
