"""The config of a masked language model."""

from __future__ import annotations

import dataclasses

from heed.config import COUNT, INDEX, option, with_default
from heed.layers.layer_config import LayerConfig
from heed.models._transformer_config import OneStackConfig
from heed.models.config import SpecialTokens, TokensConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLanguageModelConfig(OneStackConfig):
    """The options of a masked language model and of the classifiers on its encoder.

    `start_id` is BERT's [CLS], `end_id` its [SEP], `mask_id` its [MASK].

    Args:
        vocabulary_size: Number of tokens, the four special ones among them, an integer from 5.
        layers: Number of layers. Default 2.
        mask_id: Token id that replaces a hidden token. Default 3.
        num_segments: Number of segments of a row, such as 2 for a question and a text; each adds a learned vector to
            its tokens (BERT's token types). Default 1, which adds none.
        activation, position: As in `TransformerConfig`. Default "gelu" and "learned", as in BERT.
        **others: The fields of `TransformerConfig` that are not of two vocabularies or stacks, see
            `LanguageModelConfig`.

    Raises:
        ValueError: If a value is out of range or inconsistent with others; the message names it.

    Source:
        Devlin et al. 2019 (L = layers, H = width, A = num_heads), whose models are post-norm: `norm_first=False`.

    Example:
        >>> config = MaskedLanguageModelConfig(vocabulary_size=260, num_segments=2)
        >>> config.mask_id, config.position
        (3, 'learned')
        >>> config.special_ids
        (0, 1, 2, 3)
    """

    mask_id: int = option(3, INDEX)
    num_segments: int = option(1, COUNT)
    activation: str = with_default(LayerConfig, "activation", "gelu")
    position: str = with_default(TokensConfig, "position", "learned")

    _special_tokens = (*SpecialTokens._special_tokens, "mask_id")

    def __post_init__(self) -> None:
        super().__post_init__()
        ordinary = self.vocabulary_size > len(self._special_tokens)
        self._require(ordinary, "leave room for an ordinary token", "vocabulary_size")

    @property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of the special tokens, in ascending order; they are never masked or inserted."""
        return tuple(sorted(getattr(self, name) for name in self._special_tokens))
