"""Checkpoints come back bit for bit, and a damaged one is noticed."""

import math

import numpy as np
import pytest

from heed.errors import TaskError
from heed.seq2seq.runs import checkpoint
from tests import damage

ARRAYS = {
    "weight": [np.array([1.0, -0.0, np.nan, np.inf, 1e-45], np.float32), np.float16(0.1)],
    "other": [np.array([2**32 - 1, 7], np.uint32)],
    "first": [np.zeros((0, 3), np.float32)],
}


def test_arrays_and_values_come_back_bit_for_bit(tmp_path):
    meta = {"loss": 0.1 + 0.2, "best": math.inf, "step": 3, "early": False}
    checkpoint.save(tmp_path / "c.npz", ARRAYS, meta)
    arrays, found = checkpoint.load(tmp_path / "c.npz")
    assert found == meta
    assert arrays.keys() == ARRAYS.keys()
    for name, values in ARRAYS.items():
        for found, array in zip(arrays[name], values, strict=True):
            assert found.dtype == array.dtype
            assert found.shape == array.shape
            assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize(("options", "kept"), [({}, [100, 1000]), ({"keep": 3}, [10, 100, 1000])])
def test_the_last_ones_stay(tmp_path, options, kept):
    for step in (5, 10, 100, 1000):
        checkpoint.save_step(tmp_path, ARRAYS, {"step": step}, **options)
    names = [path.name for path in checkpoint.list_steps(tmp_path)]
    assert names == [f"step-{step:08d}.npz" for step in kept]
    said = []
    assert checkpoint.load_latest(tmp_path, said.append)[1] == {"step": 1000}
    assert said == []


@pytest.mark.parametrize("position", [0.0, 0.3, 0.6, 0.97])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, position):
    checkpoint.save_step(tmp_path, ARRAYS, {"step": 1})
    path = checkpoint.save_step(tmp_path, {"x": [np.arange(5000)]}, {"step": 2})
    data = bytearray(path.read_bytes())
    path.write_bytes(bytes(data[: int(len(data) * position)]))
    with pytest.raises(TaskError, match="is damaged"):
        checkpoint.load(path)
    said = []
    assert checkpoint.load_latest(tmp_path, said.append)[1] == {"step": 1}
    (line,) = said
    assert line.startswith(f"{path} is damaged: ")
    assert line.endswith("; step-00000001.npz takes its place")


def test_if_all_are_damaged_it_says_so_and_none_is_none(tmp_path):
    assert checkpoint.load_latest(tmp_path, pytest.fail) is None
    assert checkpoint.load_latest(tmp_path / "nope", pytest.fail) is None
    (tmp_path / "step-00000001.npz").write_bytes(b"PK")
    with pytest.raises(TaskError, match=r"step-00000001\.npz is damaged"):
        checkpoint.load_latest(tmp_path, pytest.fail)


@pytest.mark.parametrize("kind", [damage.flipped, damage.cut])
def test_any_damage_is_one_error(tmp_path, kind):
    """Each byte changed, the zip's directory too, and the file cut at each length."""
    path, small = tmp_path / "c.npz", {"x": [np.arange(3)]}
    checkpoint.save(path, small, {"step": 1})
    tried = refused = read = 0
    for place, data in kind(path.read_bytes()):
        path.write_bytes(data)
        tried += 1
        try:
            arrays, meta = checkpoint.load(path)
        except TaskError as error:
            refused += str(error).startswith(f"{path} is damaged: ") and "\n" not in str(error)
        else:
            assert meta == {"step": 1}, place
            assert arrays["x"][0].tolist() == [0, 1, 2], place
            read += 1
    assert refused + read == tried > 500
    assert read == 0 or kind is damage.flipped


@pytest.mark.parametrize(
    "meta", [b"[1]", b"7", b"{}", b'{"step": "1"}', b'{"step": -1}', b"\xff", b"[" * 100_000]
)
def test_forged_values_are_refused(tmp_path, meta):
    path = tmp_path / "c.npz"
    np.savez(path, **{"meta.json": np.frombuffer(meta, np.uint8)})
    with pytest.raises(TaskError, match="heed did not write it"):
        checkpoint.load(path)


def test_files_of_something_else(tmp_path):
    path = tmp_path / "foreign.npz"
    np.savez(path, x=np.zeros(3))
    with pytest.raises(TaskError, match="is damaged"):
        checkpoint.load(path)
    np.savez(path, **{"meta.json": np.array([{"a": 1}], dtype=object)})  # nothing is unpickled
    with pytest.raises(TaskError, match="is damaged"):
        checkpoint.load(path)
    with pytest.raises(TaskError, match="is missing"):
        checkpoint.load(tmp_path / "nope.npz")


def test_leftovers_of_a_kill_are_removed_by_the_next_save(tmp_path):
    (tmp_path / ".step-00000007.npz.abc.tmp").write_bytes(b"half")
    checkpoint.save_step(tmp_path, ARRAYS, {"step": 8})
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000008.npz"]
