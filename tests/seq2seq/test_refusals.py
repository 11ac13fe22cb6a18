"""Bad arguments are refused before anything is written, and pipes are never waited for."""

import os
import shutil

import pytest

from heed.seq2seq import RunFolder, TaskError, TextTask, average, extend_run, start_run, train
from heed.seq2seq.runs import start as runs_module
from heed.seq2seq.runs.trained_model import load_model
from heed.seq2seq.text import scoring
from tests.cli.command import contents
from tests.seq2seq import tiny


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 4, "batch_tokens": 100}, "leave out --batch-tokens"),
        ({"steps": 10**8}, "`steps` must be at most 99,999,999"),
        ({"steps": 0}, "`steps` must be"),
        ({"width": 7}, "`num_heads` must divide"),
        ({"alignment_weight": 1.0}, "give --alignment too"),
    ],
)
def test_a_refused_start_makes_no_folder(tmp_path, options, message):
    with pytest.raises(TaskError, match=message):
        start_run(tmp_path / "runs" / "run", tiny.numbers("en"), **options)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_library_is_reported_before_the_folder_is_made(tmp_path, monkeypatch):
    def missing(what):
        raise TaskError(f"{what} needs the sacrebleu library")

    monkeypatch.setattr(runs_module, "load_sacrebleu", missing)
    assert scoring.load_sacrebleu is not missing
    with pytest.raises(TaskError, match="bleu needs the sacrebleu library"):
        start_run(tmp_path / "run", tiny.numbers("en"), validate_with="bleu")
    assert list(tmp_path.iterdir()) == []


def test_text_without_a_pair_to_train_on_makes_no_folder(tmp_path):
    source, target = tiny.write_parallel_text(tmp_path)
    before = contents(tmp_path)
    text = TextTask.create(source, target, 60, longest=2)
    with pytest.raises(TaskError, match="training pair has at most 2 tokens"):
        start_run(tmp_path / "run", text, **tiny.TINY)
    assert contents(tmp_path) == before
    assert not (tmp_path / "run").exists()


def test_a_place_where_no_folder_can_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(TaskError, match=r"cannot be made: .* not a folder"):
        start_run(tmp_path / "file" / "runs" / "run", tiny.numbers("en"))
    # Of root, too, as on a read-only disk.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(TaskError, match=r"cannot be made: .* cannot be written"):
        start_run(tmp_path / "runs" / "run", tiny.numbers("en"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_link_may_lead_to_a_run(tmp_path):
    (tmp_path / "disk").mkdir()
    for name in ("here", "nowhere"):  # an empty folder, and one that is not there yet
        link = tmp_path / name
        target = tmp_path / "disk" / name
        if name == "here":
            target.mkdir()
        link.symlink_to(target)
        run = start_run(link, tiny.numbers("en"), **tiny.TINY)
        assert link.is_symlink()
        assert RunFolder.open(target).config == run.config
        assert {x.name for x in link.iterdir()} == {"checkpoints", "config.json", "target.model"}


def test_a_refused_training_leaves_a_run_as_it_was(tmp_path, finished_run):
    """Trained on without a checkpoint, a run would lose its weights and begin anew."""
    bare = RunFolder.open(shutil.copytree(finished_run.path, tmp_path / "bare"))
    shutil.rmtree(bare.checkpoints)
    before = contents(bare.path)
    with pytest.raises(TaskError, match="has no checkpoint to continue from"):
        extend_run(bare, 20)
    with pytest.raises(TaskError, match="has 0 checkpoints"):
        average(bare, 1)
    assert contents(bare.path) == before

    source, target = tiny.write_parallel_text(tmp_path)
    text = start_run(tmp_path / "text", TextTask.create(source, target, 60), **tiny.TINY)
    source.write_text(source.read_text().replace("aa", "bb"))
    before = contents(text.path)
    for act in (lambda run: extend_run(run, 20), lambda run: train(run, progress=False)):
        with pytest.raises(TaskError, match=r"source.txt has changed"):
            act(RunFolder.open(text.path))
        assert contents(text.path) == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_in_a_run_folder_is_refused_at_once(tmp_path, finished_run):
    run = RunFolder.open(shutil.copytree(finished_run.path, tmp_path / "run"))
    cases = {
        "config.json": lambda: RunFolder.open(run.path),
        "target.model": lambda: RunFolder.open(run.path).task(),
        "weights.npz": lambda: load_model(run),
        ".lock": lambda: train(run, progress=False),
        "metrics.jsonl": lambda: train(RunFolder(run.path, longer), progress=False),
        "train.log": lambda: train(RunFolder(run.path, longer), progress=False),
        "checkpoints/step-00000012.npz": lambda: average(run, 1),
    }
    longer = {**run.config, "training": {**run.config["training"], "steps": 20}}
    for name, act in cases.items():
        path, kept = run.path / name, run.path / "kept"
        path.rename(kept)
        os.mkfifo(path)
        with pytest.raises((TaskError, OSError), match=r"not a regular file|No such device"):
            act()
        path.unlink()
        kept.rename(path)


def test_a_file_longer_than_the_model_allows_is_not_read(tmp_path, finished_run, monkeypatch):
    """An archive of many small entries needs fifty times its length in memory."""
    run = RunFolder.open(shutil.copytree(finished_run.path, tmp_path / "run"))
    allowed = run.weights.stat().st_size
    with run.weights.open("ab") as file:
        file.truncate(allowed + 2**24)
    monkeypatch.setattr("zipfile.ZipFile", lambda *_: pytest.fail("it is unpacked"))
    with pytest.raises(TaskError, match=r"is damaged: it has [\d,]+ bytes"):
        load_model(run)
