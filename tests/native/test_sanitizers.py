"""The core, built with gcc's sanitizers: random calls under ASan and UBSan, many callers under TSan, forks.

Each sanitizer is its own build in a temporary folder, about a minute of two processors.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native import fuzz, programs
from tests.native.core import INSTRUCTION_SETS
from tests.native.programs import PATH, run_program

pytestmark = pytest.mark.slow

ENVIRONMENT = {
    **os.environ,
    "PATH": PATH,
    # Python itself leaks; the core's own memory is watched in the stress program, which leaves this at its default.
    "ASAN_OPTIONS": "detect_leaks=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}


def runtime(name: str) -> str:
    """Return the file of a library of the compiler, to be loaded before all others."""
    compiler = shutil.which("g++", path=PATH) or shutil.which("c++", path=PATH)
    if compiler is None or shutil.which("cmake", path=PATH) is None:
        pytest.skip("needs g++ and cmake")
    command = [compiler, f"-print-file-name={name}"]
    file = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(file).is_absolute():
        pytest.skip(f"{compiler} has no {name}")
    return file


def run(command: list[str], **environment: str) -> str:
    return run_program(command, {**ENVIRONMENT, **environment})


def build(factory: pytest.TempPathFactory, sanitizers: str) -> Path:
    """Return the folder of the library and the stress program, with the kernels of AMX, whose accesses ASan sees."""
    options = f"HEED_SANITIZE={sanitizers}", "HEED_AMX_IN_SOFTWARE=ON"
    return programs.build(factory.mktemp("build"), *options, targets=["heed_stress"])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runtime("libstdc++.so")
    return build(tmp_path_factory, "")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runtime("libasan.so")
    runtime("libubsan.so")
    return build(tmp_path_factory, "address,undefined")


@pytest.fixture(scope="module")
def threads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runtime("libtsan.so")
    return build(tmp_path_factory, "thread")


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("mode", fuzz.MODES)
def test_random_calls_under_asan_and_ubsan(address: Path, mode: str, instruction_set: str) -> None:
    """Arrays of NumPy come from malloc, so that reading past their end is seen too."""
    library = str(address / "libheed_core.so")
    command = [sys.executable, "-m", "tests.native.fuzz", library, mode, instruction_set]
    names = ("libasan.so", "libubsan.so", "libstdc++.so")  # the last one for Python's sake
    preload = " ".join(runtime(name) for name in names)
    said = run([*command, "0", "200"], LD_PRELOAD=preload)
    if said.startswith("no "):
        pytest.skip(f"this machine has {said.strip()}")
    assert said.endswith("all well\n")


def test_asan_is_there(address: Path) -> None:
    """The library under test is the instrumented one: it does not load without ASan."""
    load = f"import ctypes; ctypes.CDLL({str(address / 'libheed_core.so')!r})"
    with pytest.raises(AssertionError, match="ASan runtime does not come first"):
        run([sys.executable, "-c", load])


@pytest.mark.parametrize("mode", ["callers", "decoders", "team"])
def test_many_callers_under_tsan(threads: Path, mode: str) -> None:
    assert run([str(threads / "heed_stress"), mode]) == f"{mode}: 0 wrong\n"


@pytest.mark.parametrize("mode", ["callers", "decoders", "team", "fork"])
def test_many_callers_and_children_under_asan(address: Path, mode: str) -> None:
    """TSan cannot watch children: it refuses threads in the child of a process that had some."""
    said = run([str(address / "heed_stress"), mode], ASAN_OPTIONS="detect_leaks=1")
    assert said == f"{mode}: 0 wrong\n"


@pytest.mark.parametrize("mode", ["callers", "decoders", "team", "fork", "fork-busy", "fork-early"])
def test_many_callers_and_children(plain: Path, mode: str) -> None:
    """Without a sanitizer: ASan's own malloc can hang in the child of a process whose other threads are busy."""
    assert run([str(plain / "heed_stress"), mode]) == f"{mode}: 0 wrong\n"
