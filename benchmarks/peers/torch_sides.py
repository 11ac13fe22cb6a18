"""PyTorch: scaled dot-product attention in its own layout, and a step of `nn.Transformer` with Adam."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _inputs, _training, repeat, threads


def attention(case: Case) -> Prepared:
    """Call it on (B, N, T, H); causal and grouped heads by its own flags, padding by a mask."""
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
        repeated = repeat(functools.partial(scaled_dot_product_attention, **options), count)

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


class Model(nn.Module):
    """Embeddings, `nn.Transformer`, logits."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        width = case.heads * case.head_dim
        self.source, self.target = (nn.Embedding(_training.VOCABULARY, width) for _ in range(2))
        lengths = (case.key_length, case.length)
        self.positions = nn.ParameterList(nn.Parameter(torch.randn(n, width)) for n in lengths)
        self.dropout = nn.Dropout(_training.DROPOUT)
        self.transformer = nn.Transformer(
            width,
            case.heads,
            _training.LAYERS,
            _training.LAYERS,
            4 * width,
            _training.DROPOUT,
            batch_first=True,
            norm_first=True,
        )
        self.output = nn.Linear(width, _training.VOCABULARY)
        self.causal = nn.Transformer.generate_square_subsequent_mask(case.length)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return logits of each target token."""
        encoded = self.dropout(self.source(source) + self.positions[0])
        x = self.dropout(self.target(target) + self.positions[1])
        return self.output(self.transformer(encoded, x, tgt_mask=self.causal, tgt_is_causal=True))


def training(case: Case) -> Prepared:
    """Train by Adam. At a learning rate of 0 the weights stay the same, and so does the work of each step."""
    torch.set_num_threads(threads() or torch.get_num_threads())
    torch.manual_seed(0)
    model = Model(case)
    optimizer = torch.optim.Adam(model.parameters(), 0.0, fused=True)
    source, target = _training.batch(case)
    inputs = [torch.from_numpy(x).long() for x in (source, _training.shift(target), target)]

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        logits = model(*inputs[:2])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), inputs[2].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), _training.CLIP_NORM)
        optimizer.step()
        return loss

    return Prepared(step, lambda loss: [np.asarray(loss.item(), np.float32)])
