"""The same model as a `torch.nn.Transformer`, trained by Adam."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _training, threads


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
        """Logits of each target token."""
        encoded = self.dropout(self.source(source) + self.positions[0])
        x = self.dropout(self.target(target) + self.positions[1])
        return self.output(self.transformer(encoded, x, tgt_mask=self.causal, tgt_is_causal=True))


def prepare(case: Case) -> Prepared:
    """At a learning rate of 0 the weights stay the same, and so does the work of each step."""
    if count := threads():
        torch.set_num_threads(count)
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
