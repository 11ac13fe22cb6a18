"""Finds and loads the native core, and says what its kernels are."""

from __future__ import annotations

import ctypes
import functools
import sys
from ctypes import c_char_p, c_int, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

VERSION = 8
NOT_BUILT = (
    "this installation of heed has no native library: it comes from the wheel for other systems, "
    "or was built without a C++ compiler"
)


class BlockSizes(ctypes.Structure):
    """`HeedBlockSizes`."""

    _fields_ = tuple((name, c_int32) for name in ("queries", "keys", "rows", "columns", "terms"))


def library_path(name: str) -> Path | None:
    """Return the path of the library "core" or "tf", or None. Editable installs keep it outside the sources."""
    package = sys.modules[__name__.partition(".")[0]]
    files = (Path(folder) / "_lib" / f"libheed_{name}.so" for folder in package.__path__)
    return next((file for file in files if file.exists()), None)


@functools.cache
def load() -> tuple[Any, str]:
    """Return the core library, and the reason if it cannot be loaded."""
    path = library_path("core")
    if path is None:
        return None, NOT_BUILT
    try:
        library: Any = ctypes.CDLL(str(path))
        version = library.heed_version()
    except (OSError, AttributeError) as error:
        return None, f"the native library could not be loaded: {error}"
    if version != VERSION:
        return None, f"the native library has version {version} of heed.h, and this heed {VERSION}"
    # Of a `HeedAttention` and of the results: `ctypes.byref` of a structure, or its bytes.
    for name in ("heed_forward", "heed_backward", "heed_bias_gradient"):
        function = getattr(library, name)
        function.argtypes = [c_void_p, c_void_p, c_int]
        function.restype = c_char_p
    library.heed_softmax_size.argtypes = [c_void_p]
    library.heed_softmax_size.restype = c_int64
    library.heed_instruction_set.restype = c_char_p
    library.heed_block_sizes.restype = BlockSizes
    return library, ""


def check(problem: bytes | None) -> None:
    """Raise an error of the core."""
    if problem is not None:
        raise ValueError(problem.decode())


def instruction_set() -> str:
    """Return the instruction set of the kernels here, or "none"."""
    library = load()[0]
    return "none" if library is None else library.heed_instruction_set().decode()


def block_sizes() -> dict[str, int]:
    """Return the sizes that the kernels work with, see `HeedBlockSizes` in `heed.h`; none without kernels."""
    library = load()[0]
    sizes = None if library is None else library.heed_block_sizes()
    return {field[0]: getattr(sizes, field[0]) for field in BlockSizes._fields_} if sizes else {}
