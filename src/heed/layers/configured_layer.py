"""What all layers share: a config that is read off their constructors."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import keras


class ConfiguredLayer(keras.layers.Layer):
    """A layer that keeps each argument of its constructor in an attribute of that name, or with `_` before it."""

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain values."""
        return {**super().get_config(), **dict(self._arguments())}

    def _arguments(self) -> Iterator[tuple[str, Any]]:
        for cls in reversed(type(self).__mro__):
            if not issubclass(cls, ConfiguredLayer) or "__init__" not in vars(cls):
                continue
            for name, parameter in inspect.signature(cls.__init__).parameters.items():
                attribute = next((x for x in (f"_{name}", name) if x in vars(self)), None)
                if attribute and parameter.kind is not parameter.VAR_KEYWORD:
                    yield name, _plain(getattr(self, attribute))


def _plain(value: Any) -> Any:
    if inspect.isfunction(value) or isinstance(value, type):
        return keras.activations.serialize(value)
    plain = value is None or isinstance(value, (bool, int, float, str, tuple, list, dict))
    return value if plain else keras.saving.serialize_keras_object(value)
