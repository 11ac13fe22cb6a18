"""`torch.nn.functional.scaled_dot_product_attention`, in its own layout."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _inputs, repeat, threads


def prepare(case: Case) -> Prepared:
    """Return inputs are (B, N, T, H); causal and grouped heads by its own flags, padding by a mask."""
    torch.set_num_threads(threads() or torch.get_num_threads())
    dtype = getattr(torch, case.dtype)

    def tensor(array: np.ndarray) -> Any:
        # Copied, because NumPy allocates in huge pages, unlike PyTorch.
        return torch.from_numpy(_inputs.heads_first(array)).to(dtype, copy=True)

    arguments = [tensor(x).requires_grad_(case.backward) for x in _inputs.inputs(case)]
    mask = None
    if case.padded:
        lengths = torch.tensor(case.key_lengths)[:, None, None, None]
        mask = torch.arange(case.key_length) < lengths
        if case.causal:  # PyTorch takes a mask or the flag, not both
            mask = mask & torch.ones(case.length, case.key_length, dtype=torch.bool).tril()
    options: dict[str, Any] = {
        "attn_mask": mask,
        "is_causal": case.causal and mask is None,
        "enable_gqa": case.key_head_count != case.heads,
    }

    def forward(count: int) -> Callable[[], list[Any]]:
        attention = functools.partial(scaled_dot_product_attention, **options)
        repeated = repeat(attention, count)

        def run() -> list[Any]:
            with torch.no_grad():
                return [repeated(*arguments)]

        return run

    def forward_and_backward() -> list[Any]:
        output = scaled_dot_product_attention(*arguments, **options)
        return [output, *torch.autograd.grad(output, arguments, upstream)]

    def arrays(results: list[Any]) -> list[np.ndarray]:
        return [_inputs.heads_first(result.detach().float().numpy()) for result in results]

    if not case.backward:
        return Prepared.chain(case, forward, arrays)
    upstream = tensor(_inputs.output_gradient(case))
    return Prepared(forward_and_backward, arrays)
