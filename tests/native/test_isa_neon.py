"""The core on AArch64: built by a cross compiler, run by QEMU, tested through the C interface as the native one is.

The tests of this folder run again, in a child process with `HEED_EMULATOR`: see `emulated.py`. QEMU computes as the
processor does but says nothing about time. On Debian: `apt-get install g++-aarch64-linux-gnu qemu-user-static`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native import fuzz
from tests.native.core import LIBRARY
from tests.native.programs import CORE_TESTS, PATH, build, run, run_core_tests

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(LIBRARY is None, reason="installed without the native library"),
]

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
SYSTEM = Path("/usr/aarch64-linux-gnu")  # the C library of the processor
# The oldest processor, and one with all that later ones may have; the first of them that QEMU knows.
PROCESSORS = {"old": ("cortex-a57",), "new": ("neoverse-v1", "max")}

SAMPLE = "random_calls or random_programs or test_rows or decoding_steps or long_prompts"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the library and the test programs."""
    for tool in (COMPILER, EMULATOR, "cmake"):
        if shutil.which(tool, path=PATH) is None:
            pytest.skip(f"needs {tool}")
    system = ["CMAKE_SYSTEM_NAME=Linux", "CMAKE_SYSTEM_PROCESSOR=aarch64"]
    made = tmp_path_factory.mktemp("aarch64")
    return build(made, *system, f"CMAKE_CXX_COMPILER={COMPILER}")


@pytest.fixture(params=PROCESSORS)
def emulator(request: pytest.FixtureRequest, folder: Path) -> str:
    """Return the command that runs a program on one of the processors."""
    listed = [EMULATOR, "-cpu", "help"]  # exits with 1
    known = subprocess.run(listed, capture_output=True, text=True, check=False).stdout.split()
    name = next(name for name in PROCESSORS[request.param] if name in known)
    return f"{EMULATOR} -L {SYSTEM} -cpu {name}"


def fuzz_all(folder: Path, emulator: str, count: int) -> None:
    # Not malformed programs: the emulator cannot copy what lies behind wrong numbers.
    modes = ",".join(mode for mode in fuzz.MODES if mode != "programs-malformed")
    command = [sys.executable, "-m", "tests.native.fuzz", str(LIBRARY), modes]
    said = run(
        [*command, "neon,baseline", "0", str(count)],
        HEED_EMULATOR=f"{emulator} {folder / 'heed_serve'}",
    )
    assert said.endswith("all well\n")


def test_sample(folder: Path, emulator: str) -> None:
    """In three minutes, for both processors and the build."""
    run_core_tests(f"{emulator} {folder / 'heed_serve'}", only=SAMPLE)
    fuzz_all(folder, emulator, 8)


@pytest.mark.parametrize("name", CORE_TESTS)
def test_all_tests_of_the_core(folder: Path, emulator: str, name: str) -> None:
    """One file at a time: on a busy machine all of them take more than the half hour of `run_program`."""
    run_core_tests(f"{emulator} {folder / 'heed_serve'}", (name,))


def test_random_calls(folder: Path, emulator: str) -> None:
    fuzz_all(folder, emulator, 300)


# Not "fork-busy": if other threads run, QEMU's own locks may be held when it forks, and the child waits for ever.
@pytest.mark.parametrize("mode", ["callers", "decoders", "fork"])
def test_many_callers_and_children(folder: Path, emulator: str, mode: str) -> None:
    said = run([*emulator.split(), str(folder / "heed_stress"), mode])
    assert said == f"{mode}: 0 wrong\n"


BEYOND = """
import numpy as np
from tests.native import core, fuzz

library = core.load("")
print(library.heed_instruction_set().decode())
x = fuzz.PageEnds(np.random.default_rng(0))((1, 40, 1, 16), np.float32)
x[...] = 1
call = core.Call(library, x, x, x)
print(abs(call.forward()[0] - 1).max() < 1e-6)
call.attention.key_length += 1
try:
    call.forward()
except OSError as error:
    print(error)
"""


def test_the_emulator_computes_and_dies_beyond_a_page(folder: Path, emulator: str) -> None:
    """The other tests would pass, too, if the native library answered."""
    command = [sys.executable, "-c", BEYOND]
    said = run(command, HEED_EMULATOR=f"{emulator} {folder / 'heed_serve'}").splitlines()
    assert said[:2] == ["neon", "True"]
    assert said[2].startswith("heed_forward ended the emulator")
