"""The register peak: the rate of float32 multiply-adds that touch no memory, which no kernel exceeds.

A C++ compiler builds the probe (register_peak.cc) for the instruction set in use.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.cases import Case
from benchmarks.peers import Prepared, instruction_sets, threads

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


class UnavailableError(Exception):
    """The probe cannot be built here."""


class RegisterPeak:
    """Multiply-adds in the registers of several threads at once. A context manager.

    Args:
        instruction_set: the name of one of heed's instruction sets.
        threads: the number of threads.

    Raises:
        UnavailableError: without a C++ compiler, or if it fails.
    """

    def __init__(self, instruction_set: str, threads: int) -> None:
        library = _build(instruction_set)
        self._multiply_add = library.multiply_add
        self._multiply_add.argtypes = [ctypes.c_long, ctypes.c_float, ctypes.c_float]
        self._multiply_add.restype = ctypes.c_float
        self.operations = 2.0 * library.multiply_adds_of_step() * _STEPS * threads
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)  # ctypes releases the GIL

    def __enter__(self) -> RegisterPeak:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def run(self) -> list[float]:
        """Compute `operations` operations."""
        calls = [
            self._pool.submit(self._multiply_add, _STEPS, 0.5, 1.0) for _ in range(self._threads)
        ]
        return [call.result() for call in calls]

    def best_rate(self) -> float:
        """Return the highest rate of several runs, in GF/s."""
        seconds = []
        for _ in range(_RUNS):
            start = time.perf_counter()
            self.run()
            seconds.append(time.perf_counter() - start)
        return self.operations / min(seconds) / 1e9


def measure_rates(instruction_set: str, threads: int) -> dict[str, float] | str:
    """Return the rates in GF/s with one thread and with `threads`, or why they cannot be measured."""
    rates = {}
    try:
        for count in sorted({1, threads}):
            with RegisterPeak(instruction_set, count) as peak:
                rates[str(count)] = round(peak.best_rate(), 1)
    except UnavailableError as error:
        return str(error)
    return rates


def prepare(case: Case) -> Prepared:
    """Return a side with the time that the case's products take at the peak of the instruction set in use."""
    machine = instruction_sets()
    if not machine:
        raise UnavailableError("heed has no native kernels here")
    peak = RegisterPeak(machine[0], threads() or os.cpu_count() or 1)
    return Prepared(
        peak.run, lambda sums: [np.array(sums)], case.visible_operations / peak.operations
    )


def _build(instruction_set: str) -> ctypes.CDLL:
    if instruction_set not in FLAGS:
        raise UnavailableError(f"it has no probe for the instruction set {instruction_set!r}")
    compiler = (
        shlex.split(os.environ.get("CXX", ""))
        or [name for name in ("c++", "g++", "clang++") if shutil.which(name)][:1]
    )
    if not compiler or not shutil.which(compiler[0]):
        raise UnavailableError("it needs a C++ compiler: c++, g++, clang++, or the one in CXX")
    source = Path(__file__).with_suffix(".cc")
    with tempfile.TemporaryDirectory(prefix="heed-peak-") as folder:
        file = Path(folder) / "register_peak.so"
        command = [*compiler, "-O2", "-ffp-contract=fast", *FLAGS[instruction_set]]
        command += ["-shared", "-fPIC", "-o", str(file), str(source)]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise UnavailableError(f"the compiler failed: {answer.stderr.strip()[-200:]}")
        return ctypes.CDLL(str(file))
