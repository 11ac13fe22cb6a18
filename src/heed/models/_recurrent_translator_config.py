"""The config of a recurrent translator."""

from __future__ import annotations

import dataclasses

from heed.config import COUNT, COUNT_OR_NONE, FLAG, RATE, REQUIRED, one_of, option
from heed.models.config import SpecialTokens

ATTENTIONS = ("additive", "dot", "general", "scaled", "location", "none")
CELLS = ("lstm", "gru")


@dataclasses.dataclass(frozen=True)
class RecurrentTranslatorConfig(SpecialTokens):
    """The options of a recurrent translator.

    Args:
        source_vocabulary_size: Number of source tokens, a positive integer.
        target_vocabulary_size: Number of target tokens, a positive integer.
        width: Width D of embeddings and states, an even positive integer: each direction of the encoder has half of it.
            Default 128.
        cell: "lstm" (default) or "gru", in encoder and decoder.
        encoder_layers: Number of layers of the encoder. Default 1.
        decoder_layers: Number of layers of the decoder. Default 1.
        attention: "additive" (Bahdanau; default) or "location" (the same with the previous weights), whose context
            enters the decoder's cells; "dot", "general" or "scaled" (Luong), whose query is the new state; or "none":
            the decoder starts from the encoder's last states and reads nothing else of the source.
        attention_units: Number U of tanh units of "additive" and "location"; None (default) means D.
        location_filters: For "location": features of the previous weights, a positive integer. Default 10.
        location_kernel_size: For "location": positions that one feature sees. Default 31.
        dropout: Rate in [0, 1) for embeddings, the output of each encoder layer and the input of the output layer.
            Default 0.
        tie_embeddings: Whether the output layer is the target embedding's table. Default True.
        pad_id: Token id of padding, ignored in the source. Default 0.
        start_id: First token id of a target. Default 1.
        end_id: Last token id of a target. Default 2.

    Raises:
        ValueError: If a value is out of range or inconsistent with others; the message names it.

    Example:
        >>> RecurrentTranslatorConfig(20, 30, cell="gru", attention="general").attends_inside
        False
        >>> RecurrentTranslatorConfig(20, 30, width=7)
        Traceback (most recent call last):
        ...
        ValueError: `width` must be even. Received: width=7
    """

    source_vocabulary_size: int = option(REQUIRED, COUNT)
    target_vocabulary_size: int = option(REQUIRED, COUNT)
    _: dataclasses.KW_ONLY
    width: int = option(128, COUNT)
    cell: str = option("lstm", one_of(CELLS))
    encoder_layers: int = option(1, COUNT)
    decoder_layers: int = option(1, COUNT)
    attention: str = option("additive", one_of(ATTENTIONS))
    attention_units: int | None = option(None, COUNT_OR_NONE)
    location_filters: int = option(10, COUNT)
    location_kernel_size: int = option(31, COUNT)
    dropout: float = option(0.0, RATE)
    tie_embeddings: bool = option(True, FLAG)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.width % 2 == 0, "be even", "width")
        self._check_tokens("target_vocabulary_size")

    @property
    def attends_inside(self) -> bool:
        """Whether attention is part of the decoder's recurrence."""
        return self.attention in ("additive", "location")

    @property
    def longest_target(self) -> None:
        """The largest number of tokens of a target: there is no limit."""
        return None
