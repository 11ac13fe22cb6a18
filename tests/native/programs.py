"""Runs programs that tests build, and the tests of the core against a library that such a program serves."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Beside the interpreter lie the tools of the extra [dev].
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

CORE_TESTS = (
    "attention",
    "kernels",
    "rows",
    "additive",
    "program",
    "decoder",
    "adapters_tensorflow_decoding_steps",
    "settings",
)
# Threads and children of the process that computes, calls back to this one, arrays made by other threads or not by
# NumPy, addresses that are none.
ELSEWHERE = (
    "many_callers or child_after_fork or wakes_no or as_many_as_the_process or no_thread_can_be_started"
    " or malformed_programs or a_listener_gets or may_change_at_any_time or caches_keep_what"
    " or (what_cannot_be_is_refused and (prompt or factor))"
)


def run(command: list[str], **environment: str) -> str:
    return run_program(command, {**os.environ, "PATH": PATH, **environment})


def run_script(text: str, *arguments: Any) -> str:
    """Return what a script prints in a fresh process."""
    return run([sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)]).strip()


def build(
    folder: Path, *options: str, targets: Sequence[str] = ("heed_stress", "heed_serve")
) -> Path:
    """Build the library and the test programs there, with these options of CMake; return the folder."""
    given = (f"-D{option}" for option in ("HEED_STRESS=ON", "HEED_WERROR=ON", *options))
    run(["cmake", "-S", "native", "-B", str(folder), *given])
    run(["cmake", "--build", str(folder), "-j2", "--target", *targets])
    return folder


def run_core_tests(served: str, names: tuple[str, ...] = CORE_TESTS, only: str = "") -> None:
    """Run tests of this folder against the core that the command `served` serves: see `emulated.py`."""
    files = [f"tests/native/test_{name}.py" for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *files]
    which = f"({only}) and not ({ELSEWHERE})" if only else f"not ({ELSEWHERE})"
    assert "passed" in run([*command, "-k", which], HEED_EMULATOR=served)


def run_program(command: list[str], environment: Mapping[str, str]) -> str:
    """Run a command from the root of the repository; return what it printed. Fails if the command does."""
    child = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    printed = f"exit status {child.returncode}\n{child.stdout[-4000:]}\n{child.stderr[:6000]}"
    assert child.returncode == 0, printed
    return child.stdout
