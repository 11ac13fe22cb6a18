"""Models from one config, and decoding with them.

- `TransformerConfig`: sizes and choices, checked.
- `Transformer`, `TransformerEncoder`, `TransformerDecoder`: Keras models.
- `VisionTransformer` and `VisionTransformerConfig`: images to classes, or to features for a `Transformer`.
- `LanguageModel` and `LanguageModelConfig`: a decoder without an encoder.
- `MaskedLanguageModel` and `MaskedLanguageModelConfig`: pre-training like BERT, with `mask_tokens`.
- `SequenceClassifier`, `TokenClassifier`, `SpanClassifier`: to fine-tune its encoder; `best_spans` finds answers.
- `RecurrentTranslator` and `RecurrentTranslatorConfig`: LSTM or GRU encoder and decoder, with attention between them.
- `Ensemble`: several models that decode as one.
- `Decodable`: the protocol of your own models for `generate`.
- `generate`: greedy, sampled and beam-search decoding with a key/value cache; `explain_generate` says how it runs.
- `stream`: the tokens of one target as they are decoded.
"""

from __future__ import annotations

import heed.ops  # noqa: F401  (first: it says what is missing)

# isort: split
from heed.decoding import Decodable, explain_generate, generate, stream
from heed.models._classifiers import SequenceClassifier, SpanClassifier, TokenClassifier, best_spans
from heed.models._decoder import TransformerDecoder
from heed.models._encoder import TransformerEncoder
from heed.models._ensemble import Ensemble
from heed.models._language_model import LanguageModel, LanguageModelConfig
from heed.models._masked_language_model import MaskedLanguageModel, MaskedLanguageModelConfig
from heed.models._masking import mask_tokens
from heed.models._recurrent_translator import RecurrentTranslator, RecurrentTranslatorConfig
from heed.models._transformer import Transformer
from heed.models._vision_transformer import VisionTransformer, VisionTransformerConfig
from heed.models.config import TransformerConfig

# isort: split
from heed.models import _stock_forms  # noqa: F401  (for `replace_attention`)

__all__ = [
    "Decodable",
    "Ensemble",
    "LanguageModel",
    "LanguageModelConfig",
    "MaskedLanguageModel",
    "MaskedLanguageModelConfig",
    "RecurrentTranslator",
    "RecurrentTranslatorConfig",
    "SequenceClassifier",
    "SpanClassifier",
    "TokenClassifier",
    "Transformer",
    "TransformerConfig",
    "TransformerDecoder",
    "TransformerEncoder",
    "VisionTransformer",
    "VisionTransformerConfig",
    "best_spans",
    "explain_generate",
    "generate",
    "mask_tokens",
    "stream",
]
