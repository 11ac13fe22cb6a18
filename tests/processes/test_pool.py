"""A pool of worker processes that take shards, with a translator that needs no model."""

import functools
import signal

import pytest

from heed.errors import TaskError
from heed.processes import pool
from heed.seq2seq.corpus.inputs import scan
from tests.seq2seq.corpus import fakes


def translate(make, path, workers=2, shard_lines=3, silence=30):
    """Return all results in order, and the notes."""
    file, notes = scan(path, shard_lines), []
    shards = (file.read_shard(0, number) for number in range(len(file.starts)))
    count = len(file.starts)
    found = pool.run_in_pool(make, workers, notes.append, count, shards, silence)
    results = sorted(found, key=lambda one: one.number)
    assert [one.number for one in results] == [*range(count)]
    return b"".join(one.output for one in results).decode(), notes


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("".join(f"line {i}\n" for i in range(20)) + "death\nend\n")
    return path


def test_a_worker_that_is_killed_or_hangs_is_replaced(path, tmp_path):
    """And its shard is repeated, twice; what other workers note is noted once."""
    expected = path.read_text().upper()
    assert translate(fakes.make, path) == (expected, ["loaded"])
    (tmp_path / "deaths").mkdir()
    signals = [signal.SIGKILL, signal.SIGSTOP]
    text, notes = translate(fakes.mortal(tmp_path / "deaths", signals), path, silence=3)
    assert text == expected
    assert [note[9:] for note in notes] == [
        "was killed by SIGKILL: starting another one, which repeats its work",
        "gave no sign of life for 3 s: starting another one, which repeats its work",
    ]
    for one in (tmp_path / "deaths").iterdir():
        one.unlink()
    with pytest.raises(TaskError, match=r"line 19 .*killed by SIGKILL, 3"):
        translate(fakes.mortal(tmp_path / "deaths", [signal.SIGKILL] * 3), path)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (TaskError("the run is damaged"), TaskError, "the run is damaged"),
        (OSError(2, "No such file", "x"), FileNotFoundError, "No such file"),
        (OSError("no room"), OSError, "no room"),
        (MemoryError(), MemoryError, "not enough memory"),
        (KeyError("bug"), RuntimeError, r"a worker failed:\n.*KeyError: 'bug'"),
    ],
)
def test_errors_of_a_worker(path, error, kind, message):
    make = functools.partial(fakes.make_broken, error)
    with pytest.raises(kind, match=f"(?s){message}"):
        translate(make, path, workers=1)


class Unreadable:
    """An item that a worker cannot unpickle."""

    def __reduce__(self):
        return int, ("no number",)


def test_an_item_that_a_worker_cannot_read_ends_the_work():
    results = pool.run_in_pool(fakes.make, 1, lambda _: None, 1, iter([Unreadable()]))
    with pytest.raises(RuntimeError, match="no number"):
        next(results)
