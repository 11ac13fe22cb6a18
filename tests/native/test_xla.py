"""The adapter for XLA declares structs as the header that jaxlib ships does."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

OURS = Path(__file__).resolve().parents[2] / "native" / "adapters" / "xla_ffi" / "xla_c.h"


def theirs() -> Path:
    """The folder of jaxlib's headers; found without importing it."""
    found = importlib.util.find_spec("jaxlib")
    if found is None:
        pytest.skip("there is no jaxlib")
    folder = Path(found.submodule_search_locations[0]) / "include"
    if not (folder / "xla" / "ffi" / "api" / "c_api.h").exists():
        pytest.skip("jaxlib ships no header")
    return folder


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_structs_have_the_layout_of_the_header_of_jaxlib(tmp_path: Path) -> None:
    include = theirs()
    checks = []
    for name, body in re.findall(r"struct (XLA_FFI_\w+) \{\n(.*?)\n\};", OURS.read_text(), re.S):
        fields = re.findall(r"(\w+)(?:\)\([^;]*\))?[;,](?=\s|$)", re.sub(r"//.*", "", body), re.M)
        fields = [field for field in fields if field != "unused"]
        assert fields, name
        checks += [
            f'static_assert(offsetof(ours::{name}, {field}) == offsetof({name}, {field}), "{name}.{field}");'
            for field in fields
        ]
    constants = {"kXlaBool": "PRED", "kXlaInt32": "S32", "kXlaInt64": "S64", "kXlaUint32": "U32"}
    constants |= {
        "kXlaFloat16": "F16",
        "kXlaFloat32": "F32",
        "kXlaFloat64": "F64",
        "kXlaBfloat16": "BF16",
    }
    named = {ours: f"XLA_FFI_DataType_{name}" for ours, name in constants.items()} | {
        "kXlaMetadata": "XLA_FFI_Extension_Metadata",
        "kXlaInvalidArgument": "XLA_FFI_Error_Code_INVALID_ARGUMENT",
        "kXlaArray": "XLA_FFI_AttrType_ARRAY",
    }
    checks += [f'static_assert(ours::{one} == {other}, "{one}");' for one, other in named.items()]
    program = tmp_path / "layouts.cc"
    program.write_text(
        "#include <cstddef>\n#include <cstdint>\n#include <xla/ffi/api/c_api.h>\n"
        f'namespace ours {{\n#include "{OURS}"\n}}\n' + "\n".join(checks) + "\n"
    )
    command = ["c++", "-std=c++17", "-fsyntax-only", f"-I{include}", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(checks) > 50
