"""The rate of `torch.matmul`."""

from __future__ import annotations

import torch

from benchmarks.cases import Case
from benchmarks.peers import Prepared, threads
from benchmarks.peers._sgemm import at_its_rate, matrices


def prepare(case: Case) -> Prepared:
    """The product goes into the same memory each time."""
    torch.set_num_threads(threads() or torch.get_num_threads())
    left, right = map(torch.from_numpy, matrices())
    product = torch.empty_like(left)
    return at_its_rate(lambda: torch.matmul(left, right, out=product), case)
