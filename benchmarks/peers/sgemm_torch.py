"""The rate of `torch.matmul`."""

from __future__ import annotations

import torch

from benchmarks.cases import Case
from benchmarks.peers import Prepared, threads
from benchmarks.peers._sgemm import matrices, scale_to_case


def prepare(case: Case) -> Prepared:
    """Each product is written into the same memory."""
    torch.set_num_threads(threads() or torch.get_num_threads())
    left, right = map(torch.from_numpy, matrices())
    product = torch.empty_like(left)
    return scale_to_case(lambda: torch.matmul(left, right, out=product), case)
