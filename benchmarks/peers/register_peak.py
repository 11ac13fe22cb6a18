"""The time that a case's products take at the register peak (`benchmarks/register_peak.py`)."""

from __future__ import annotations

import os

import numpy as np

from benchmarks.cases import Case
from benchmarks.peers import Prepared, instruction_sets, threads
from benchmarks.register_peak import RegisterPeak, UnavailableError


def prepare(case: Case) -> Prepared:
    """Run the probe with the instruction set in use."""
    machine = instruction_sets()
    if not machine:
        raise UnavailableError("heed has no native kernels here")
    peak = RegisterPeak(machine[0], threads() or os.cpu_count() or 1)
    return Prepared(
        peak.run, lambda sums: [np.array(sums)], case.visible_operations / peak.operations
    )
