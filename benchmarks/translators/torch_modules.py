"""The model as a `torch.nn.Transformer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.translators._training import (
    BETAS,
    EPSILON,
    config_of,
    decode_greedily,
    sinusoids,
    steps,
)
from heed.models import TransformerConfig
from heed.seq2seq import RunFolder


class Model(nn.Module):
    """Embeddings with sinusoids, `nn.Transformer`, scores from the target's embeddings."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.source = nn.Embedding(config.source_vocabulary_size or 0, config.width)
        self.target = nn.Embedding(config.target_vocabulary_size, config.width)
        for table in (self.source, self.target):
            nn.init.normal_(table.weight, std=config.width**-0.5)
        self.positions: torch.Tensor
        self.register_buffer("positions", torch.from_numpy(sinusoids(1_024, config.width)))
        self.dropout = nn.Dropout(config.dropout)
        self.transformer = nn.Transformer(
            config.width,
            config.num_heads,
            config.encoder_layers,
            config.decoder_layers,
            config.feed_forward_width,
            config.dropout,
            batch_first=True,
            norm_first=True,
        )
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0  # the other sides drop no attention weights

    def _embed(self, table: nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
        x = table(ids) * self.config.width**0.5
        return self.dropout(x + self.positions[: ids.shape[1]])

    def encode(self, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the encoder's output (B, S, D), and which positions are padding."""
        padding = source == self.config.pad_id
        x = self._embed(self.source, source)
        return self.transformer.encoder(x, src_key_padding_mask=padding), padding

    def decode(self, state: tuple[torch.Tensor, torch.Tensor], read: torch.Tensor) -> torch.Tensor:
        """Return the decoder's output (B, T, D)."""
        memory, padding = state
        causal = torch.ones(read.shape[1], read.shape[1], dtype=torch.bool).triu(1)
        return self.transformer.decoder(
            self._embed(self.target, read),
            memory,
            tgt_mask=causal,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores of each token."""
        return nn.functional.linear(hidden, self.target.weight)


def translate(run: RunFolder, rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Trains the model and translates with its last weights."""
    torch.manual_seed(run.options.seed)
    config, options = config_of(run), run.options
    model = Model(config)
    adam = torch.optim.Adam(model.parameters(), betas=BETAS, eps=EPSILON, fused=True)
    for step in steps(run):
        source, read, written = (torch.from_numpy(x).long() for x in step[:3])
        adam.param_groups[0]["lr"] = step.rate
        adam.zero_grad()
        logits = model.logits(model.decode(model.encode(source), read))
        loss = nn.functional.cross_entropy(
            logits.flatten(0, 1),
            written.flatten(),
            ignore_index=config.pad_id,
            label_smoothing=options.label_smoothing,
        )
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), options.clip_norm)
        adam.step()
    model.eval()

    def next_logits(state: Any, target: np.ndarray, index: int) -> np.ndarray:
        hidden = model.decode(state, torch.from_numpy(target).long())
        return model.logits(hidden[:, index]).numpy()

    with torch.inference_mode():
        return decode_greedily(
            config,
            lambda source: model.encode(torch.from_numpy(source).long()),
            next_logits,
            rows,
            run.task().longest_target,
        )
