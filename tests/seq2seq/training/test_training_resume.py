"""A run of own text that is stopped in the middle of an epoch, and ends with the same bits as if it had not been."""

import gzip

import pytest

from heed.seq2seq import RunFolder, TextTask, start_run, train
from heed.seq2seq.runs import checkpoint
from heed.seq2seq.tasks import text_task as text_task_module
from tests.seq2seq import tiny
from tests.seq2seq.runs.test_architectures import RECURRENT
from tests.seq2seq.training.test_training import CrashError, metrics, stop_at

# 54 pairs in batches of 8 are 7 steps of an epoch; the last checkpoint before step 10 is that of step 9.
BATCH, STOP, CHECKPOINT = 8, 10, 9


def plain(folder):
    return {"source": tiny.write_parallel_text(folder)[0], "target": folder / "target.txt"}


def compressed(folder):
    plain(folder)
    for name in ("source.txt", "target.txt"):
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
    return {"source": folder / "source.txt.gz", "target": folder / "target.txt.gz"}


def weighted(folder):
    """Of a second corpus each pair comes three times an epoch, of the first each second one."""
    lines = [f"wort {n} und mehr\tword {n} and more\n" for n in range(30)]
    (folder / "more.tsv.gz").write_bytes(gzip.compress("".join(lines).encode()))
    corpora = [
        {**compressed(folder), "weight": 0.5},
        {"source": folder / "more.tsv.gz", "weight": 3},
    ]
    return {"corpora": corpora}


def aligned(folder):
    """With links between the words of the two sides, which stand in opposite orders."""
    files = weighted(folder)
    links = [" ".join(f"{3 - j}-{j}" for j in range(4))] * 60
    (folder / "links.gz").write_bytes(gzip.compress("\n".join(links).encode()))
    files["corpora"][0]["alignment"] = folder / "links.gz"
    return files


CASES = {
    "plain": (plain, {}),
    "compressed": (compressed, {}),
    "weighted": (weighted, {}),
    "by tokens": (plain, {"batch_tokens": 150}),
    "accumulated": (plain, {"accumulate": 3, "keep": 3, "schedule": "inverse_sqrt"}),
    "averaged": (plain, {"ema": 0.9, "validate_with": "chrf", "patience": 9}),
    "bfloat16": (plain, {"precision": "bfloat16"}),
    "recurrent": (plain, RECURRENT),
    "recurrent, of a dot": (plain, {**RECURRENT, "attention": "general", "cell": "gru"}),
    "recurrent, guided": (aligned, RECURRENT),
    "all of it": (aligned, {"batch_tokens": 150, "accumulate": 2, "ema": 0.9}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_stop_in_the_middle_of_an_epoch_changes_no_bit(case, tmp_path, monkeypatch):
    write, options = CASES[case]
    check(tmp_path, monkeypatch, write(tmp_path), options)


@pytest.mark.slow
def test_a_stop_changes_no_bit_where_lengths_are_estimated(tmp_path, monkeypatch):
    """As of a corpus that is too large for its tokens to be counted."""
    monkeypatch.setattr(text_task_module, "_COUNTED", 10)
    check(tmp_path, monkeypatch, weighted(tmp_path), {"batch_tokens": 150})


def check(tmp_path, monkeypatch, data, options):
    if options.get("architecture") == "recurrent":
        others = ("num_heads", "feed_forward_width")
        options = {k: x for k, x in tiny.TINY.items() if k not in others} | options
    options = {**({} if "architecture" in options else tiny.TINY), **options, "batch_size": BATCH}
    straight, stopped = (
        start_run(tmp_path / name, TextTask.create(**data, vocabulary_size=60), **options)
        for name in ("straight", "stopped")
    )
    train(straight, progress=False)
    with monkeypatch.context() as patch:
        stop_at(patch, STOP, CrashError())
        with pytest.raises(CrashError):
            train(stopped, progress=False)
    assert checkpoint.load_latest(stopped.checkpoints, pytest.fail)[1]["step"] == CHECKPOINT
    train(RunFolder.open(stopped.path), progress=False)
    assert tiny.same(tiny.weights(stopped), tiny.weights(straight))
    assert metrics(stopped) == metrics(straight)
