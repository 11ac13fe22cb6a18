"""Run folders: whole or not there, never overwritten, and one line for what is wrong with them."""

import errno
import itertools
import json
import os
import shutil

import pytest

from heed.errors import TaskError
from heed.seq2seq import TextTask, start_run
from heed.seq2seq.atomic_files import free_path, write_atomically
from heed.seq2seq.options.training import TrainingOptions
from heed.seq2seq.runs import run_folder
from heed.seq2seq.runs.run_folder import RunFolder
from heed.seq2seq.runs.trained_model import read_model_config
from tests import damage
from tests.seq2seq import tiny
from tests.slow import slow


@pytest.fixture(scope="module")
def task():
    return tiny.numbers("en")


@pytest.fixture(scope="module")
def started(tmp_path_factory, task):
    """Return the folder of a run that has begun, to be copied."""
    return start_run(tmp_path_factory.mktemp("started") / "run", task).path


def make(path, task):
    return RunFolder.create(path, task, TrainingOptions(), {"width": 8})


def test_a_run_comes_back_as_it_was_made(tmp_path, task):
    made = make(tmp_path / "a" / "b" / "run", task)
    opened = RunFolder.open(made.path)
    assert opened.config == made.config
    assert opened.options == TrainingOptions()
    again = opened.task()
    assert again.to_config() == task.to_config()
    assert again.files() == task.files()
    assert sorted(p.name for p in made.path.parent.iterdir()) == ["run"], "nothing is left beside"


def test_an_empty_folder_may_become_a_run_and_others_stay_untouched(tmp_path, task):
    (tmp_path / "empty").mkdir()
    make(tmp_path / "empty", task)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(TaskError, match=r"exists already: .* with --run$"):
        make(tmp_path / "full", task)
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"
    with pytest.raises(TaskError, match=r"heed train --resume .*empty"):
        make(tmp_path / "empty", task)
    (tmp_path / "file").write_text("")
    with pytest.raises(TaskError, match="exists already"):
        make(tmp_path / "file", task)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not a run folder: it has no config.json"),
        (b"\xff\xfe", "is not JSON"),
        (b"{", "is not JSON"),
        (b"[]", "heed did not write its config.json"),
        (b'{"format": "other"}', "heed did not write its config.json"),
        (b'{"format": "heed run", "version": 99}', "another version of heed"),
        (b'{"format": "heed run", "version": 5}', "is damaged: its config.json has no task"),
    ],
)
def test_foreign_folders(tmp_path, content, message):
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(TaskError, match=message) as caught:
        RunFolder.open(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_missing_folder_and_a_file(tmp_path):
    with pytest.raises(TaskError, match="does not exist"):
        RunFolder.open(tmp_path / "nope")
    (tmp_path / "file").write_text("")
    with pytest.raises(TaskError, match="is not a run folder"):
        RunFolder.open(tmp_path / "file")


def test_damaged_tasks_and_tokenizers(tmp_path, task):
    run = make(tmp_path / "run", task)
    (run.path / "target.model").write_bytes(b"x")
    with pytest.raises(TaskError, match=r"target.model has been changed"):
        RunFolder.open(run.path).task()
    (run.path / "target.model").unlink()
    with pytest.raises(TaskError, match=r"target.model is missing"):
        RunFolder.open(run.path).task()
    for damaged in ({}, {"kind": "poems"}, {"kind": "numbers"}):
        config = {**run.config, "task": damaged}
        with pytest.raises(TaskError):
            RunFolder(run.path, config).task()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(file):
        file.write(b"ne")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, fail)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    write_atomically(path, lambda file: file.write(b"new"))
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002], ids=oct)
def test_who_may_read_is_what_the_umask_says(tmp_path, mask):
    """Temporary files are for their owner alone in Python; what heed wrote was for everyone."""
    before = os.umask(mask)
    try:
        run = tiny.start(tmp_path / "runs" / "run")
        run.write_json("evaluation.json", {})
        path = run.write_json("evaluation.json", {"ü": "\udce9"})  # part of a name in Latin-1
        assert json.loads(path.read_text(encoding="utf-8")) == {"ü": "\udce9"}
        assert "ü" in path.read_text(encoding="utf-8"), "people can read it"
        with run.lock():
            pass
    finally:
        os.umask(before)
    for path in (tmp_path / "runs").rglob("*"):
        most = 0o777 if path.is_dir() else 0o666
        assert path.stat().st_mode & 0o777 == most & ~mask, path


def test_the_bytes_reach_the_disk_before_the_name(tmp_path, monkeypatch):
    """A power cut after the rename must not show an empty file."""
    seen = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: seen.append(sorted(os.listdir(tmp_path))) or fsync(fd)
    )
    write_atomically(tmp_path / "file", lambda file: file.write(b"x"))
    assert len(seen) == 2
    assert "file" not in seen[0], "the file is synced while it has its temporary name"
    assert seen[1] == ["file"], "then its folder"


def test_a_failed_creation_leaves_nothing(tmp_path, task, monkeypatch):
    monkeypatch.setattr(
        run_folder, "_encode_json", lambda values: (_ for _ in ()).throw(OSError("full"))
    )
    with pytest.raises(OSError, match="full"):
        make(tmp_path / "run", task)
    assert list(tmp_path.iterdir()) == []


def test_one_process_trains_in_a_folder(tmp_path, task):
    """Here both are one; the system lets go of the lock of a process that ends."""
    pytest.importorskip("fcntl")
    run = make(tmp_path / "run", task)
    with (
        run.lock(),
        pytest.raises(TaskError, match="is being trained by another process"),
        run.lock(),
    ):
        pass
    with run.lock():
        pass


def test_free_paths(tmp_path):
    assert free_path(tmp_path / "a").name == "a"
    (tmp_path / "a").mkdir()
    (tmp_path / "a-2").mkdir()
    assert free_path(tmp_path / "a").name == "a-3"


def opened(path):
    """Return everything that is read of a folder without its weights."""
    run = RunFolder.open(path)
    return run.options, run.task().to_config(), run.task().files(), read_model_config(run)


# Neighbours of a byte are damaged in other ways: every seventh place meets all three.
@pytest.mark.parametrize("every", [7, *slow([1])])
@pytest.mark.parametrize("kind", [damage.flipped, damage.cut])
@pytest.mark.parametrize("name", ["config.json", "target.model"])
def test_any_damage_is_one_error_or_another_config(tmp_path, started, name, kind, every):
    """Each byte changed, and the file cut at each length. Only config.json is for people to change."""
    run = RunFolder.open(shutil.copytree(started, tmp_path / "run"))
    path = run.path / name
    whole = opened(run.path)
    tried = refused = 0
    for _, data in itertools.islice(kind(path.read_bytes()), 0, None, every):
        path.write_bytes(data)
        tried += 1
        try:
            found = opened(run.path)
        except TaskError as error:
            assert str(run.path) in str(error)  # noqa: PT017 (of each of hundreds)
            refused += 1
        else:
            assert name == "config.json"
            assert kind is damage.flipped or found == whole
    assert tried > 500 / every
    assert refused == tried or name == "config.json"
    assert refused > 0.7 * tried


@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        ("task", {"longest_target": 0}, "`longest_target` must be an integer >= 1"),
        ("task", {"longest_target": -1}, r">= 1\. Received: longest_target=-1"),
        ("task", {"longest_target": "5"}, r">= 1\. Received: longest_target='5'"),
        ("task", {"longest_target": float("inf")}, r">= 1\. Received: longest_target=inf"),
        ("task", {"languages": [1]}, "its task cannot be read"),
        ("task", {"languages": ["eo"]}, "languages must be some of"),
        ("task", {"kind": ["numbers"]}, "a task that is not known"),
        ("training", {"steps": 0}, "is damaged: `steps` must be"),
        ("training", {"wings": 2}, "is damaged: `values` must hold fields of TrainingOptions only"),
        ("training", {"learning_rate": 10**400}, "`learning_rate` must be a finite number > 0"),
        ("model", {"width": 0}, "its model cannot be made"),
        ("model", {"width": [8]}, "its model cannot be made"),
        ("model", {"dropout": None}, "its model cannot be made"),
    ],
)
def test_a_config_that_says_nonsense(tmp_path, started, part, values, message):
    run = RunFolder.open(shutil.copytree(started, tmp_path / "run"))
    run.write_json("config.json", {**run.config, part: {**run.config[part], **values}})
    with pytest.raises(TaskError, match=message):
        opened(run.path)


def test_the_files_of_own_text_are_checked_too(tmp_path):
    source, target = tiny.write_parallel_text(tmp_path)
    run = start_run(tmp_path / "run", TextTask.create(source, target, 60))
    for name in run.task().files():
        path = run.path / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if whole else b"x")
        with pytest.raises(TaskError, match=f"is damaged: {name} has been changed"):
            RunFolder.open(run.path).task()
        path.write_bytes(whole)
    for name, value in (("longest_target", 0), ("empty_pairs", "x"), ("files", None)):
        damaged = {**run.config, "task": {**run.config["task"], name: value}}
        with pytest.raises(TaskError, match="damaged: its task cannot be read"):
            RunFolder(run.path, damaged).task()
