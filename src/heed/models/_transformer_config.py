"""The configs of Transformers: of an encoder and a decoder, and of one stack of layers."""

from __future__ import annotations

import dataclasses

from heed.config import COUNT, COUNT_OR_NONE, FLAG, POSITIVE_OR_NONE, REQUIRED, option
from heed.layers.layer_config import describes_options
from heed.models.config import TokensConfig


@describes_options
@dataclasses.dataclass(frozen=True)
class TransformerConfig(TokensConfig):
    """The options of a Transformer.

    Args:
        source_vocabulary_size: Number of source tokens, a positive integer; None for a `Transformer` with a custom
            `encoder` of something else.
        target_vocabulary_size: Number of target tokens, a positive integer.
        width: Model width D, a positive integer that `num_heads` divides.
        encoder_layers: Number of encoder layers.
        decoder_layers: Number of decoder layers.
        position: Encoding of positions: "sinusoidal" or "learned" vectors added to the embeddings, "rotary" queries and
            keys, or an "alibi" or "relative" (T5) bias of the scores.
        max_length: Longest sequence in tokens; a limit for "learned" positions only.
        tie_embeddings: Whether the output layer is the target embedding's table.
        scale_embeddings: Whether embeddings are multiplied by the root of the width.
        normalize_embeddings: Whether the sum of embedding and position is normalised, as in BART.
        logit_soft_cap: c bounds logits x to c tanh(x / c), as in Gemma 2; None leaves them as they are.
        sliding_window_pattern: n: every n-th layer sees the whole sequence, the others `sliding_window` (2: Gemma 2, 6:
            Gemma 3). None: all layers are alike.
        rotary_local_base: `rotary_base` of the layers with a `sliding_window` (Gemma 3). None: all layers have one.
        rotary_pattern: n: every n-th layer has no rotary positions (4: SmolLM3). None: all layers have them.
        share_embeddings: Whether source and target share one table (their vocabularies must have the same size).
        pad_id: Token id of padding. Nothing attends to padding of the source.
        start_id: First token id of a target.
        end_id: Last token id of a target.
        {options}

    Raises:
        ValueError: If a value is out of range or inconsistent with others; the message names it.

    Example:
        >>> config = TransformerConfig(source_vocabulary_size=16, target_vocabulary_size=40)
        >>> config.width, config.head_dim
        (128, 32)
        >>> TransformerConfig.from_dict(config.to_dict()) == config
        True
        >>> TransformerConfig(16, 40, dropout=1.5)
        Traceback (most recent call last):
        ...
        ValueError: `dropout` must be a finite number with 0 <= dropout < 1. Received: dropout=1.5
    """

    source_vocabulary_size: int | None = option(REQUIRED, COUNT_OR_NONE)
    target_vocabulary_size: int = option(REQUIRED, COUNT)
    _: dataclasses.KW_ONLY
    encoder_layers: int = option(2, COUNT)
    decoder_layers: int = option(2, COUNT)
    share_embeddings: bool = option(False, FLAG)
    logit_soft_cap: float | None = option(None, POSITIVE_OR_NONE)

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = ("source_vocabulary_size", "target_vocabulary_size")
        same = self.source_vocabulary_size == self.target_vocabulary_size
        apart = "be False where the vocabularies differ in size"
        self._require(same or not self.share_embeddings, apart, "share_embeddings", *sizes)
        self._check_tokens("target_vocabulary_size")


@dataclasses.dataclass(frozen=True)
class OneStackConfig(TokensConfig):
    """The options of one stack of layers over one vocabulary."""

    vocabulary_size: int = option(REQUIRED, COUNT)
    _: dataclasses.KW_ONLY
    layers: int = option(2, COUNT)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_tokens("vocabulary_size")

    @property
    def target_vocabulary_size(self) -> int:
        """The size of the only vocabulary."""
        return self.vocabulary_size

    def of_transformer(self) -> TransformerConfig:
        """Return the config of an encoder or a decoder with these options."""
        known = {field.name for field in dataclasses.fields(TransformerConfig)}
        own = {field.name for field in dataclasses.fields(self)}
        shared = {name: getattr(self, name) for name in known & own}
        size, layers = self.vocabulary_size, self.layers
        return TransformerConfig(size, size, encoder_layers=layers, decoder_layers=layers, **shared)
