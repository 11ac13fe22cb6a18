"""The bases of the models' configs: special tokens, a stack of layers, and one that reads tokens."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from heed.config import COUNT, COUNT_OR_NONE, FLAG, INDEX, POSITIVE_OR_NONE, Config, one_of, option
from heed.layers.layer_config import LayerConfig

POSITIONS = ("sinusoidal", "learned", "rotary", "alibi", "relative")
_OF_ROTATION = ("rotary_base", "rotary_dim", "rotary_local_base", "rotary_pattern")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpecialTokens(Config):
    """The ids of special tokens."""

    pad_id: int = option(0, INDEX)
    start_id: int = option(1, INDEX)
    end_id: int = option(2, INDEX)

    _special_tokens: ClassVar[tuple[str, ...]] = ("pad_id", "start_id", "end_id")

    def _check_tokens(self, size: str) -> None:
        """Check that the special tokens differ and are in the vocabulary; `size` names the field of its size."""
        names = self._special_tokens
        for name in names:
            inside = getattr(self, name) < getattr(self, size)
            self._require(inside, f"be below `{size}`", name, size)
        others = " and ".join(f"`{name}`" for name in names[1:])
        differ = f"differ from {others}, and they from each other"
        self._require(len({getattr(self, name) for name in names}) == len(names), differ, *names)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayersConfig(LayerConfig):
    """The options of a stack of layers: those of each layer, the width, and what differs between layers."""

    width: int = option(128, COUNT)
    sliding_window_pattern: int | None = option(None, COUNT_OR_NONE)

    def __post_init__(self) -> None:
        super().__post_init__()
        named = isinstance(self.activation, str)
        self._require(named, "be the name of a Keras activation", "activation")
        whole = self.key_dim is not None or self.width % self.num_heads == 0
        self._require(whole, "divide `width` (or `key_dim` be given)", "num_heads", "width")
        has_window = self.sliding_window_pattern is None or self.sliding_window is not None
        names = ("sliding_window_pattern", "sliding_window")
        self._require(has_window, "be None where there is no `sliding_window`", *names)
        for name in _OF_ROTATION:
            is_default = getattr(self, name, None) == getattr(type(self), name, None)
            turns = getattr(self, "position", None) == "rotary"
            apart = 'have its default where `position` is not "rotary"'
            self._require(turns or is_default, apart, name)

    def options_of_layer(self, index: int) -> dict[str, Any]:
        """Return the options of one layer of the stack."""
        options, every = self.layer_options(), self.sliding_window_pattern
        if every is not None and index % every == every - 1:
            options["sliding_window"] = None
        return options

    @property
    def head_dim(self) -> int:
        """Width H of a query and key head, D / N unless it is given."""
        return self.key_dim or self.width // self.num_heads


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokensConfig(SpecialTokens, LayersConfig):
    """The options of a stack of layers that reads tokens."""

    position: str = option("sinusoidal", one_of(POSITIONS))
    max_length: int = option(512, COUNT)
    tie_embeddings: bool = option(True, FLAG)
    scale_embeddings: bool = option(True, FLAG)
    normalize_embeddings: bool = option(False, FLAG)
    rotary_local_base: float | None = option(None, POSITIVE_OR_NONE)
    rotary_pattern: int | None = option(None, COUNT_OR_NONE)

    def __post_init__(self) -> None:
        super().__post_init__()
        even = "be an even multiple of `num_heads` for rotary positions, or `key_dim` be even"
        needs_even = self.position == "rotary" and self.rotary_dim is None
        self._require(
            not needs_even or self.head_dim % 2 == 0, even, "width", "num_heads", "key_dim"
        )
        within = (self.rotary_dim or 0) <= self.head_dim
        sizes = ("width", "num_heads", "key_dim")
        self._require(within, "be at most the width of a head", "rotary_dim", *sizes)
        local = self.rotary_local_base is None or self.sliding_window is not None
        names = ("rotary_local_base", "sliding_window")
        self._require(local, "be None where there is no `sliding_window`", *names)
        even = "be even for sinusoidal positions"
        self._require(self.position != "sinusoidal" or self.width % 2 == 0, even, "width")

    def options_of_layer(self, index: int) -> dict[str, Any]:
        """Return the options of one layer of the stack."""
        options, every = super().options_of_layer(index), self.rotary_pattern
        if options["sliding_window"] is not None and self.rotary_local_base is not None:
            options["rotary_base"] = self.rotary_local_base
        if every is not None and index % every == every - 1:
            options["rotary_dim"] = 0
        return options

    @property
    def longest_target(self) -> int | None:
        """The largest number of tokens of a target, or None if there is no limit."""
        return self.max_length if self.position == "learned" else None
