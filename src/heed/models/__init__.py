"""Models from one config, and decoding with them.

- `TransformerConfig`: sizes and choices, checked.
- `Transformer`, `TransformerEncoder`, `TransformerDecoder`: Keras models.
- `LanguageModel` and `LanguageModelConfig`: a decoder by itself.
- `RecurrentTranslator` and `RecurrentTranslatorConfig`: LSTM or GRU encoder and decoder, with attention between them.
- `Decodable`: what a model of your own offers to be decoded.
- `generate`: greedy, sampled and beam-search decoding with a key/value cache; `explain_generate` says what runs it.
"""

from __future__ import annotations

import heed.ops  # noqa: F401  (first: it says what is missing)

# isort: split
from heed.models.config import (
    LanguageModelConfig,
    RecurrentTranslatorConfig,
    TransformerConfig,
)
from heed.models.decodable import Decodable
from heed.models.decoder import TransformerDecoder
from heed.models.decoding import explain_generate, generate
from heed.models.encoder import TransformerEncoder
from heed.models.language_model import LanguageModel
from heed.models.recurrent_translator import RecurrentTranslator
from heed.models.transformer import Transformer

__all__ = [
    "Decodable",
    "LanguageModel",
    "LanguageModelConfig",
    "RecurrentTranslator",
    "RecurrentTranslatorConfig",
    "Transformer",
    "TransformerConfig",
    "TransformerDecoder",
    "TransformerEncoder",
    "explain_generate",
    "generate",
]
