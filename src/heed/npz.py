"""Reads .npz files that may be damaged, forged or something else: all of it, or one error."""

from __future__ import annotations

import io
import math
import os
import struct
import zipfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.files import open_regular

_END = 22  # bytes of the last record of a zip
_COUNT = 10  # offset of the number of entries in it
_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npz(path: str | os.PathLike[str], most: float = math.inf) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file that `numpy.savez` wrote, each checked against its checksum.

    `numpy.load` raises some ten kinds of errors for a damaged file, and allocates as much memory as a forged shape
    says. Here nothing is unpickled, and no more is read than the file is long.

    The arrays are read-only. A file of more than `most` bytes is refused before any of it is read.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if it is damaged or not such a file; the message says where.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "a.npz")
        >>> np.savez(path, x=np.arange(3))
        >>> read_npz(path)["x"].tolist()
        [0, 1, 2]
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"it has {size:,} bytes, and may have {most:,}")
        try:
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                if sum(entry.file_size for entry in entries) > size:
                    raise ValueError("it says that it holds more than its length")
                # A damaged length in the zip's directory can hide entries, which zipfile does not notice.
                file.seek(size - _END)
                (count,) = struct.unpack_from("<H", file.read(_END), _COUNT)
                if min(len(entries), 0xFFFF) != count:
                    raise ValueError(f"{len(entries)} of its {count} arrays can be found")
                return {
                    entry.filename.removesuffix(".npy"): _array(archive, entry) for entry in entries
                }
        # zipfile alone raises BadZipFile, EOFError, NotImplementedError, OSError, RuntimeError, UnicodeDecodeError,
        # struct.error and zlib.error, a header ValueError, SyntaxError, TypeError and tokenize.TokenError.
        except MemoryError:
            raise
        except Exception as error:
            raise ValueError(str(error) or type(error).__name__) from error


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    if entry.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{entry.filename} is compressed, which numpy.savez does not do")
    data = archive.read(entry)  # compares the checksum
    header = io.BytesIO(data)
    version = np.lib.format.read_magic(header)
    if version not in _READERS:
        raise ValueError(f"{entry.filename} is of another version of the format: {version}")
    shape, fortran_order, dtype = _READERS[version](header)
    if dtype.hasobject:
        raise ValueError(f"{entry.filename} holds Python objects")
    start = header.tell()
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(data) - start:
        raise ValueError(f"{entry.filename} is not as long as its shape {shape} says")
    return np.ndarray(shape, dtype, data, start, order="F" if fortran_order else "C")
