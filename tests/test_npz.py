"""Any damage to an .npz file is one ValueError, or changes nothing that is read."""

import io
import struct
import zipfile

import numpy as np
import pytest

from heed.npz import read_npz
from tests import damage
from tests.slow import slow

ARRAYS = {
    "a/b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "scalar": np.array("text"),
}


def saved(path, arrays=ARRAYS):
    np.savez(path, **arrays)
    return path.read_bytes()


def same(found, arrays=ARRAYS):
    return found.keys() == arrays.keys() and all(
        found[name].dtype == x.dtype
        and found[name].shape == x.shape
        and found[name].tobytes() == x.tobytes()
        for name, x in arrays.items()
    )


def test_arrays_come_back_as_they_were(tmp_path):
    arrays = {**ARRAYS, "empty": np.zeros((0, 3), np.int64), "no text": np.array("")}
    saved(tmp_path / "x.npz", arrays)
    found = read_npz(tmp_path / "x.npz")
    assert same(found, arrays)
    assert list(found) == list(arrays), "in their order"


@pytest.mark.parametrize(
    "kind", [damage.flipped, damage.cut, *slow([damage.flipped_in_three_ways])]
)
def test_damage_is_one_error_or_changes_nothing(tmp_path, kind):
    """The checksums guard the contents; what else a zip holds, such as dates, is not read."""
    path = tmp_path / "x.npz"
    refused = tried = 0
    for place, data in kind(saved(path)):
        path.write_bytes(data)
        tried += 1
        try:
            found = read_npz(path)
        except ValueError as error:
            refused += bool(str(error))
        else:
            assert same(found), place
    assert tried > 500
    assert refused == tried or kind is not damage.cut
    assert refused > 0.7 * tried


def with_entry(path, npy, **options):
    with zipfile.ZipFile(path, "w", **options) as archive:
        archive.writestr("x.npy", npy)


def npy(header, data=b""):
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000,)}\n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -2)}\n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1000000000," * 40 + ")}\n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}\n",
        "{'descr': '|O', 'fortran_order': False, 'shape': (2,)}\n",
        "{'descr': '<q99', 'fortran_order': False, 'shape': (2,)}\n",
        "{'descr': '<f4'\n",
        "(" * 9000,
        "",
    ],
)
def test_a_forged_header_asks_for_no_memory(tmp_path, header):
    with_entry(tmp_path / "x.npz", npy(header, b"12345678"))
    with pytest.raises(ValueError, match=r"."):
        read_npz(tmp_path / "x.npz")


def test_more_than_the_file_is_refused(tmp_path):
    """A small file can say that it holds much: compressed, or one place named many times."""
    path = tmp_path / "x.npz"
    good = io.BytesIO()
    np.save(good, np.zeros(100_000))
    with_entry(path, good.getvalue(), compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="more than its length"):
        read_npz(path)
    np.savez_compressed(path, x=np.random.default_rng(0).random(3))
    with pytest.raises(ValueError, match="compressed"):
        read_npz(path)


def test_a_file_that_is_not_there_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_npz(tmp_path / "x.npz")
    with pytest.raises(IsADirectoryError):
        read_npz(tmp_path)
