"""The kernels of AMX on a processor with AVX-512 alone: software computes its tiles, see amx_in_software.h.

The tests of this folder run again, in a child process, against a core that is built so.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.native import core, fuzz
from tests.native.programs import CORE_TESTS, PATH, build, run, run_core_tests

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(core.LIBRARY is None, reason="installed without the native library"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the library and the test programs."""
    if shutil.which("cmake", path=PATH) is None or shutil.which("c++", path=PATH) is None:
        pytest.skip("needs cmake and a C++ compiler")
    made = build(tmp_path_factory.mktemp("amx"), "HEED_AMX_IN_SOFTWARE=ON")
    if not core.load(made / "libheed_core.so").heed_use_instruction_set(b"amx"):
        pytest.skip("this machine has no AVX-512")
    return made


@pytest.mark.parametrize("name", CORE_TESTS)
def test_all_tests_of_the_core(folder: Path, name: str) -> None:
    run_core_tests(str(folder / "heed_serve"), (name,))


@pytest.mark.parametrize("mode", fuzz.MODES)
def test_random_calls(folder: Path, mode: str) -> None:
    library = str(folder / "libheed_core.so")
    command = [sys.executable, "-m", "tests.native.fuzz", library, mode, "amx", "0", "300"]
    assert run(command).endswith("all well\n")


@pytest.mark.parametrize("mode", ["callers", "decoders", "fork", "fork-busy"])
def test_many_callers_and_children(folder: Path, mode: str) -> None:
    said = run([str(folder / "heed_stress"), mode], HEED_INSTRUCTION_SET="amx")
    assert said == f"{mode}: 0 wrong\n"
