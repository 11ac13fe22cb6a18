"""The architectures of translation models that a run's config.json may name, and their presets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from heed.config import Config
from heed.errors import UsageError
from heed.models import (
    RecurrentTranslator,
    RecurrentTranslatorConfig,
    Transformer,
    TransformerConfig,
)
from heed.suggestions import nearest


class Architecture(NamedTuple):
    config: type[Config]
    model: Callable[..., Any]  # takes a config and `dtype`
    of_recipe: tuple[str, ...]  # fields that it takes from a task's recipe for Transformers
    presets: Mapping[str, Mapping[str, Any]]  # the fields that each sets

    @property
    def options(self) -> list[str]:
        """The fields of the config that the user chooses in text; code or the task sets the others."""
        fields = [x for x in dataclasses.fields(self.config) if x.metadata.get("in_text", True)]
        return [field.name for field in fields if field.name not in _OF_THE_TASK]


_OF_THE_TASK = ("source_vocabulary_size", "target_vocabulary_size", "pad_id", "start_id", "end_id")


def _transformer(width: int, heads: int, layers: int, dropout: float) -> dict[str, Any]:
    sizes = {"encoder_layers": layers, "decoder_layers": layers, "feed_forward_width": 4 * width}
    return {"width": width, "num_heads": heads, "dropout": dropout, **sizes}


def _recurrent(width: int, encoder_layers: int, decoder_layers: int) -> dict[str, Any]:
    sizes = {"encoder_layers": encoder_layers, "decoder_layers": decoder_layers}
    return {"width": width, "dropout": 0.1 if width < 512 else 0.2, **sizes}


ARCHITECTURES: dict[str, Architecture] = {
    "transformer": Architecture(
        TransformerConfig,
        Transformer,
        of_recipe=tuple(field.name for field in dataclasses.fields(TransformerConfig)),
        # "base" and "big" as in Vaswani et al. 2017, table 3.
        presets={
            "mini": _transformer(96, 4, 1, 0.05),  # for a first try
            "tiny": _transformer(128, 4, 2, 0.1),
            "base": _transformer(512, 8, 6, 0.1),
            "big": _transformer(1_024, 16, 6, 0.3),
        },
    ),
    "recurrent": Architecture(
        RecurrentTranslatorConfig,
        RecurrentTranslator,
        of_recipe=("width", "dropout"),
        # "big" has about the width and depth of Luong et al. 2015.
        presets={
            "mini": _recurrent(96, 1, 1),
            "tiny": _recurrent(128, 1, 1),
            "base": _recurrent(512, 2, 2),
            "big": _recurrent(1_024, 4, 4),
        },
    ),
}
PRESETS = tuple(ARCHITECTURES["transformer"].presets)


def architecture(name: str) -> Architecture:
    """Return the architecture with this name; a UsageError says which there are."""
    if name not in ARCHITECTURES:
        known = ", ".join(map(repr, ARCHITECTURES))
        like = nearest(str(name), ARCHITECTURES)
        raise UsageError(f"`architecture` must be one of {known}. Received: {name!r}{like}")
    return ARCHITECTURES[name]


def model_values(
    name: str, preset: str | None, recipe: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of the model's config: from the options, else from the preset, else from the task's recipe.

    Example:
        >>> model_values("recurrent", "tiny", {"encoder_layers": 3}, {"cell": "gru"})
        {'width': 128, 'dropout': 0.1, 'encoder_layers': 1, 'decoder_layers': 1, 'cell': 'gru'}
    """
    kind = architecture(name)
    if preset is not None and preset not in kind.presets:
        known = ", ".join(map(repr, kind.presets))
        like = nearest(str(preset), kind.presets)
        raise UsageError(f"`preset` must be one of {known}. Received: {preset!r}{like}")
    for option in options:
        if option in kind.options:
            continue
        owners = [other for other, one in ARCHITECTURES.items() if option in one.options]
        if owners:
            raise UsageError(f"`{option}` is for the {owners[0]} architecture, and this is {name}")
        raise UsageError(f"`{option}` is no option of a run{nearest(option, kind.options)}")
    ours = {option: value for option, value in recipe.items() if option in kind.of_recipe}
    return {**ours, **(kind.presets[preset] if preset else {}), **options}
