"""Transformer models from one config, and decoding with them.

- `TransformerConfig`: sizes and choices, checked.
- `Transformer`, `TransformerEncoder`, `TransformerDecoder`: Keras models.
- `generate`: greedy, sampled and beam-search decoding with a key/value cache; `explain_generate` says what runs it.
"""

from __future__ import annotations

import heed.ops  # noqa: F401  (first: it says what is missing)

# isort: split
from heed.models.config import TransformerConfig
from heed.models.decoder import TransformerDecoder
from heed.models.decoding import explain_generate, generate
from heed.models.encoder import TransformerEncoder
from heed.models.transformer import Transformer

__all__ = [
    "Transformer",
    "TransformerConfig",
    "TransformerDecoder",
    "TransformerEncoder",
    "explain_generate",
    "generate",
]
