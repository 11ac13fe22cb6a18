"""The adapter for XLA declares structs as XLA's header does, and answers with a version that was compared."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from heed.ops.core import library

OURS = Path(__file__).resolve().parents[2] / "native" / "adapters" / "xla_ffi" / "xla_c.h"
# Structs, and fields of structs, that a later version of the interface named anew.
RENAMES = {
    "XLA_FFI_Extension_Base": "XLA_FFI_InternalExtension",  # 0.5, jaxlib 0.12
    "XLA_FFI_Error_GetMessage": "XLA_FFI_Error_GetDetails",
}
CONSTANTS = {
    f"kXla{ours}": f"XLA_FFI_DataType_{theirs}"
    for ours, theirs in {
        "Bool": "PRED",
        "Int32": "S32",
        "Int64": "S64",
        "Uint32": "U32",
        "Float16": "F16",
        "Float32": "F32",
        "Float64": "F64",
        "Bfloat16": "BF16",
    }.items()
} | {
    "kXlaMetadata": "XLA_FFI_Extension_Metadata",
    "kXlaInvalidArgument": "XLA_FFI_Error_Code_INVALID_ARGUMENT",
    "kXlaArray": "XLA_FFI_AttrType_ARRAY",
}


def header(package: str) -> Path:
    """Return XLA's header in an installed package; found without importing it."""
    found = importlib.util.find_spec(package)
    if found is None:
        pytest.skip(f"there is no {package}")
    path = Path(found.submodule_search_locations[0], "include", "xla", "ffi", "api", "c_api.h")
    if not path.exists():
        pytest.skip(f"{package} ships no header")
    return path


def comparisons(theirs: str) -> list[str]:
    """Return what must hold of a header with this text, as C++: offsets, sizes, constants and the version."""

    def name_there(name: str) -> str:
        later = RENAMES.get(name, name)
        return later if re.search(rf"\b{later}\b", theirs) else name

    checks = [
        f"ours::{one} == {other} && sizeof(ours::{one}) == sizeof({other})"
        for one, other in CONSTANTS.items()
    ]
    for name, body in re.findall(r"struct (XLA_FFI_\w+) \{\n(.*?)\n\};", OURS.read_text(), re.S):
        struct = name_there(name)
        fields = re.findall(r"(\w+)(?:\)\([^;]*\))?[;,](?=\s|$)", re.sub(r"//.*", "", body), re.M)
        for field in fields:
            if field != "unused":
                there = name_there(field)
                checks += [
                    f"offsetof(ours::{name}, {field}) == offsetof({struct}, {there})",
                    f"sizeof(ours::{name}::{field}) >= sizeof({struct}::{there})",
                ]
        if name.endswith("_Args"):  # XLA refuses a smaller one
            checks.append(f"sizeof(ours::{name}) >= {struct}_STRUCT_SIZE")
    ours, version = (
        ("ours::kXlaMajor", "ours::kXlaMinor"),
        ("XLA_FFI_API_MAJOR", "XLA_FFI_API_MINOR"),
    )
    checks.append(f"{version[0]} == {ours[0]} && {version[1]} <= {ours[1]}")
    return [f'static_assert({check}, "");' for check in checks]


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("package", ["jaxlib", "tensorflow"])
def test_structs_have_the_layout_of_the_header_of_xla(package: str, tmp_path: Path) -> None:
    theirs = header(package)
    checks = comparisons(theirs.read_text())
    assert len(checks) > 100
    program = tmp_path / "layouts.cc"
    program.write_text(
        f'#include <cstddef>\n#include <cstdint>\n#include "{theirs}"\n'
        f'namespace ours {{\n#include "{OURS}"\n}}\n' + "\n".join(checks) + "\n"
    )
    command = ["c++", "-std=c++17", "-fsyntax-only", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Version(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
    )


class Metadata(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("version", Version),
        ("traits", ctypes.c_uint32),
    )


class Extension(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("type", ctypes.c_int32),
        ("next", ctypes.c_void_p),
        ("metadata", ctypes.POINTER(Metadata)),
    )


class Api(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("version", Version),
    )


class Frame(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.POINTER(Extension)),
        ("api", ctypes.POINTER(Api)),
    )


def answer(version: tuple[int, int] | None) -> tuple[int, int]:
    """Ask a handler for its version as this version of XLA does at registration. None: it does not say."""
    path = library.library_path("xla")
    if path is None:
        pytest.skip("the library for XLA is not built")
    metadata = Metadata(version=Version(major=-1, minor=-1), traits=7)
    extension = Extension(type=1, metadata=ctypes.pointer(metadata))
    frame = Frame(extension_start=ctypes.pointer(extension))
    if version is not None:
        frame.api = ctypes.pointer(Api(version=Version(major=version[0], minor=version[1])))
    handler = ctypes.CDLL(str(path)).heed_xla_forward
    handler.restype = ctypes.c_void_p
    assert handler(ctypes.byref(frame)) is None  # no error
    assert metadata.traits == 0
    return metadata.version.major, metadata.version.minor


def test_handlers_name_a_version_that_was_compared() -> None:
    newest = tuple(
        int(re.search(rf"k{name} = (\d+)", OURS.read_text())[1])
        for name in ("XlaMajor", "XlaMinor")
    )
    # XLA takes a handler of its own version or an older one, so an older XLA hears its own.
    older = {None: (0, 1), **{(0, minor): (0, minor) for minor in range(1, newest[1] + 1)}}
    # A newer one that no longer serves the newest that was compared refuses the handler.
    newer = {(0, newest[1] + 1): newest, (0, 99): newest, (1, 0): newest, (2, 3): newest}
    assert {theirs: answer(theirs) for theirs in older | newer} == older | newer
