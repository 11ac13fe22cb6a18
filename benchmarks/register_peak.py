"""The register peak: the rate of float32 multiply-adds that touch no memory, which no kernel exceeds.

A C++ compiler builds the probe (register_peak.cc) for the instruction set in use.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
import tempfile
import timeit
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.cases import Case
from benchmarks.peers import Prepared, threads

# Options of the compiler, as in native/CMakeLists.txt. AMX has no float32 multiply-adds of its own.
FLAGS = {
    "baseline": [],
    "neon": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": ["-mavx512f", "-mfma"],
    "avx512_bf16": ["-mavx512f", "-mfma"],
    "amx": ["-mavx512f", "-mfma"],
}
_STEPS = 4 * 10**5  # some milliseconds
_RUNS = 30


def _make(instruction_set: str, count: int) -> tuple[Callable[[], list[float]], float]:
    """Return a function that multiplies and adds in the registers of so many threads, and its operations.

    Raises:
        OSError, subprocess.CalledProcessError: without a C++ compiler (c++, or the one in CXX), or if it fails.
    """
    with tempfile.TemporaryDirectory(prefix="heed-peak-") as folder:
        file = Path(folder) / "register_peak.so"
        command = [*shlex.split(os.environ.get("CXX", "c++")), "-O2", "-ffp-contract=fast"]
        command += [*FLAGS[instruction_set], "-shared", "-fPIC", "-o", str(file)]
        command += [str(Path(__file__).with_suffix(".cc"))]
        subprocess.run(command, capture_output=True, check=True)
        library = ctypes.CDLL(str(file))
    library.multiply_add.argtypes = [ctypes.c_long, ctypes.c_float, ctypes.c_float]
    library.multiply_add.restype = ctypes.c_float
    pool = ThreadPoolExecutor(count)  # ctypes releases the GIL

    def run() -> list[float]:
        return [*pool.map(lambda _: library.multiply_add(_STEPS, 0.5, 1.0), range(count))]

    return run, 2.0 * library.multiply_adds_of_step() * _STEPS * count


def measure_rates(instruction_set: str, count: int) -> str:
    """Return the highest rates with one thread and with `count` in words, or why they cannot be measured."""
    if instruction_set not in FLAGS:
        return f"not measured: there is no probe for the instruction set {instruction_set!r}"
    rates = []
    for number in sorted({1, count}):
        try:
            run, operations = _make(instruction_set, number)
        except (OSError, subprocess.CalledProcessError) as error:
            return f"not measured: it needs a C++ compiler, c++ or the one in CXX: {error}"
        seconds = min(timeit.repeat(run, number=1, repeat=_RUNS))
        rates.append(
            f"{operations / seconds / 1e9:.0f} GF/s with {number} thread{'s' * (number > 1)}"
        )
    return ", ".join(rates)


def prepare(case: Case) -> Prepared:
    """Return a side with the time that the case's products take at the peak of the instruction set in use."""
    import heed

    count = threads() or os.cpu_count() or 1
    run, operations = _make(heed.info()["instruction_set"], count)
    return Prepared(run, lambda sums: [np.array(sums)], case.visible_operations / operations)
