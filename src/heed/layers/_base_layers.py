"""Base classes of layers: configs from the constructor, shapes, and whether XLA may compile them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import keras

from heed.layers import _score_functions
from heed.layers.layer_config import LayerConfig, options_of
from heed.ops.backends import current
from heed.ops.dispatch import uses_native


class ConfiguredLayer(keras.layers.Layer):
    """A layer that keeps each argument of its constructor in an attribute of that name, or with `_` before it."""

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **dict(self._arguments())}

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # Traced instead of derived from shapes, because the results depend on the arguments.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def _arguments(self) -> Iterator[tuple[str, Any]]:
        # PyTorch keeps layers apart from other attributes.
        own = {*vars(self), *vars(self).get("_modules", ())}
        for cls in reversed(type(self).__mro__):
            if not issubclass(cls, ConfiguredLayer) or "__init__" not in vars(cls):
                continue
            for name, parameter in inspect.signature(cls.__init__).parameters.items():
                attribute = next((x for x in (f"_{name}", name) if x in own), None)
                if attribute and parameter.kind is not parameter.VAR_KEYWORD:
                    yield name, _plain(getattr(self, attribute))


def bind_call(layer: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a call of a layer by name, with defaults."""
    bound = inspect.signature(layer.call).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


class SequenceLayer(ConfiguredLayer):
    """A layer that keeps the shape of a sequence, and its mask."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        return tuple(input_shape)


class KernelLayer(keras.layers.Layer):
    """A layer that Keras compiles while the native kernels run it on JAX only."""

    @property
    def supports_jit(self) -> bool:
        """Whether Keras may compile a model with this layer.

        False while the native kernels are in use, except on JAX: `compile(jit_compile=True)` then warns and goes on
        without compilation. Under `heed.set_implementation("portable")` it is True.
        """
        return self._supports_jit and (current().COMPILES_NATIVE or not uses_native())

    @supports_jit.setter
    def supports_jit(self, value: bool) -> None:
        # Keras sets it when the layer is made; a subclass may say that it cannot be compiled at all.
        self._supports_jit = bool(value)


class AttentionLayer(KernelLayer, ConfiguredLayer):
    """A layer with an attention."""

    def _set_score_options(self, config: LayerConfig) -> None:
        """Keep the options of the scores, each in an attribute of its name."""
        for name in options_of("scores"):
            setattr(self, name, getattr(config, name))
        # An attribute: Keras tracks the weights of a layer.
        self._score_function = _score_functions.resolve(config.score_mod)

    def _score_options(self) -> dict[str, Any]:
        """Return the options of the scores as the op takes them."""
        options = {name: getattr(self, name) for name in options_of("scores")}
        return options | {"score_mod": self._score_function}

    def _check_built(self, method: str) -> None:
        if not self.built:
            raise ValueError(
                f"`{method}` needs the projections: build the layer or call it once before. "
                "Received: a layer that is not built"
            )


def _plain(value: Any) -> Any:
    if inspect.isfunction(value) or isinstance(value, type):
        return keras.activations.serialize(value)
    plain = value is None or isinstance(value, (bool, int, float, str, tuple, list, dict))
    return value if plain else keras.saving.serialize_keras_object(value)
