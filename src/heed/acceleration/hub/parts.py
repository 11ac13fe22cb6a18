"""Parts of KerasHub's models as the engine gets them: dense layers, norms, embeddings, rotations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from heed.acceleration.hub import _quantised
from heed.acceleration.hub.recognition import (
    LeftToKerasError,
    require,
    require_equal,
    require_float32,
    require_keras,
)
from heed.layers.overrides import is_replaceable
from heed.number_checks import real
from heed.ops.core.description import (
    Computed,
    DecoderStack,
    Dense,
    Norm,
    variables_of,
)


@dataclass(frozen=True)
class Rotation:
    """A table of angles: `table(length)` returns cosines, then sines, (length, P)."""

    layer: Any  # of KerasHub, which computes it
    key: tuple[Any, ...]  # what the numbers depend on
    table: Callable[[int], np.ndarray]  # see above


@dataclass(frozen=True)
class Description:
    """A language model of KerasHub as the engine gets it."""

    stack: DecoderStack  # its layers
    table: Any = None  # of learned positions, a variable (longest, D); or None
    rotations: tuple[Rotation, ...] = ()  # tables of angles, by their numbers in the layers
    # (N,): the score of a query and the key d positions before it gets -slope d; or None
    slopes: tuple[float, ...] | None = None
    longest: int | None = None  # the most tokens of a text, or None
    ignored: frozenset[str] = frozenset()  # inputs of `generate` that change nothing
    returned: tuple[str, ...] = ()  # inputs of `generate` that are returned as they are

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""
        return int(variables_of(self.stack.embedding)[0].shape[0])


class Rotations:
    """Collects the tables of angles of a model, each once."""

    def __init__(self) -> None:
        self.found: list[Rotation] = []

    def number(self, rotation: Rotation) -> int:
        """Return the number of a table."""
        keys = [one.key for one in self.found]
        if rotation.key not in keys:
            self.found.append(rotation)
            return len(keys)
        return keys.index(rotation.key)


def dense(layer: Any, activation: str = "linear") -> Dense:
    """Return a dense layer, of a single input axis or of heads."""
    einsum = type(layer) is keras.layers.EinsumDense
    require_keras(layer, keras.layers.EinsumDense if einsum else keras.layers.Dense)
    require_float32(layer, but=_quantised.MODES)
    if activation_name(layer.activation) != activation:
        raise LeftToKerasError(f"{layer.name} has another activation than {activation}")
    order = _order(layer) if einsum else None
    if layer.quantization_mode:
        if order is not None:
            raise LeftToKerasError(f"{layer.name} is quantised, and its axes have another order")
        kernel = _quantised.kernel(layer)
    else:
        kernel = _with_lora(layer, "_kernel", "lora_kernel", order)
    if layer.bias is not None and einsum and not _has_whole_bias(layer):
        raise LeftToKerasError(f"{layer.name} has a bias that several outputs share")
    return Dense(kernel, layer.bias)


def _has_whole_bias(layer: Any) -> bool:
    _, weights, outputs = layer.equation.replace("->", ",").split(",")
    inner = set(layer.equation.split(",")[0]) & set(weights)
    return [x for x in outputs if x in weights and x not in inner] == [*layer.bias_axes]


def _order(layer: Any) -> tuple[int, ...] | None:
    """Return the order of a kernel's axes that makes it (inputs, outputs); None for that of the layer."""
    inputs, weights, outputs = layer.equation.replace("->", ",").split(",")
    inner = [x for x in inputs if x in weights]
    outer = [x for x in outputs if x in weights]
    kept = inputs[: len(inputs) - len(inner)]
    plain = inputs == kept + "".join(inner) and outputs == kept + "".join(outer)
    if not plain or sorted(weights) != sorted(inner + outer):
        raise LeftToKerasError(
            f"{layer.name} computes {layer.equation}, which the engine does not know"
        )
    order = tuple(weights.index(x) for x in inner + outer)
    return None if order == tuple(range(len(order))) else order


def _with_lora(layer: Any, name: str, prefix: str, order: tuple[int, ...] | None) -> Any:
    weight = getattr(layer, name)
    if not getattr(layer, "lora_enabled", False):
        return weight if order is None else Computed(np.transpose, (weight,), (order,))
    pair = (getattr(layer, f"{prefix}_a"), getattr(layer, f"{prefix}_b"))
    return Computed(_merge_lora, (weight, *pair), (layer.lora_alpha / layer.lora_rank, order))


def _merge_lora(
    weight: np.ndarray, a: np.ndarray, b: np.ndarray, scale: float, order: tuple[int, ...] | None
) -> np.ndarray:
    merged = weight + np.float32(scale) * (a @ b)
    return merged if order is None else np.transpose(merged, order)


def norm(layer: Any) -> Norm:
    """Return a normalisation of Keras over the last axis."""
    if type(layer) is keras.layers.RMSNormalization:
        require_keras(layer, keras.layers.RMSNormalization)
        gamma, beta = layer.scale, None
    else:
        require_keras(layer, keras.layers.LayerNormalization)
        require_equal(layer, scale=True)
        gamma, beta = layer.gamma, layer.beta
    require_float32(layer)
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    if [*axes] not in ([-1], [2]):
        raise LeftToKerasError(f"{layer.name} normalises other axes than the last")
    rms = type(layer) is keras.layers.RMSNormalization
    return Norm(gamma, beta, float(layer.epsilon), root_mean_square=rms)


def rms_norm(layer: Any, name: str, plus_one: bool = False) -> Norm:
    """Return a root-mean-square normalisation of KerasHub's class of this name, which multiplies by its scale (+ 1)."""
    require_float32(require(layer, name))
    gamma = Computed(np.add, (layer.scale,), (np.float32(1),)) if plus_one else layer.scale
    return Norm(gamma, None, float(layer.epsilon), root_mean_square=True)


def activation_name(function: Any) -> str:
    """Return the engine's name of an activation."""
    for name, functions in _activations().items():
        if any(function is one for one in functions):
            return name
    raise LeftToKerasError(
        f"the engine has no activation {getattr(function, '__name__', function)!r}"
    )


def _activations() -> dict[str, tuple[Any, ...]]:
    from keras_hub.src.utils.keras_utils import gelu_approximate

    return {
        "linear": (None, keras.activations.linear),
        "relu": (keras.activations.relu, ops.relu),
        "gelu": (keras.activations.gelu,),
        "gelu_tanh": (gelu_approximate, ops.gelu),
        "silu": (keras.activations.silu, ops.silu),
        "sigmoid": (keras.activations.sigmoid, ops.sigmoid),
        "tanh": (keras.activations.tanh, ops.tanh),
    }


def rotation(
    layer: Any, width: int, name: str | None = None, key: tuple[str, ...] | None = None
) -> Rotation:
    """Return the table of a `RotaryEmbedding` of KerasHub, or a subclass of it of this name, for heads of this width.

    Args:
        layer: of KerasHub.
        width: P, how many features it turns.
        name: of its class. Default: `RotaryEmbedding`.
        key: the attributes that its numbers depend on. Default: those of that class.
    """
    name, key = name or _ROTARY, key or _ROTARY_KEY
    require_float32(require(layer, name))
    require_equal(layer, sequence_axis=1, feature_axis=-1)
    if width % 2:
        raise LeftToKerasError(f"{layer.name} turns an odd number of features")

    def table(length: int) -> np.ndarray:
        angles = layer._compute_cos_sin_embedding(ops.zeros((1, length, 1, width)), 0)
        both = [ops.convert_to_numpy(x).reshape(length, width)[:, : width // 2] for x in angles]
        return np.concatenate(both, axis=-1)

    values = (getattr(layer, x) for x in key)
    return Rotation(
        layer, (name, width, *(tuple(x) if isinstance(x, list) else x for x in values)), table
    )


# Of a plain `RotaryEmbedding`.
_ROTARY = "layers.modeling.rotary_embedding.RotaryEmbedding"
_ROTARY_KEY = (
    *("max_wavelength", "scaling_factor", "rope_type", "beta_fast", "beta_slow", "truncate"),
    *("original_max_position_embeddings", "denominator_dim"),
)


def same(sizes: list[Any], what: str) -> Any:
    """Return the sizes that all layers share."""
    if not sizes or any(one != sizes[0] for one in sizes):
        raise LeftToKerasError(f"the layers differ in their {what}, or there are none")
    return sizes[0]


def require_softmax(layer: Any) -> None:
    """Raise `LeftToKerasError` unless a layer is a plain softmax over the last axis."""
    axes = getattr(layer, "axis", None)
    if not is_replaceable(layer, keras.layers.Softmax) or axes not in (-1, 3, (3,), [3]):
        raise LeftToKerasError(f"{getattr(layer, 'name', layer)} is no plain softmax over keys")


def window(size: Any) -> int | None:
    """Return the option of a sliding window, which a model may lack."""
    if size is not None and (type(size) is not int or size < 1):
        raise LeftToKerasError(f"the model has a sliding window of {size!r}")
    return None if size is None else min(size, 2**20)


def cap(value: Any) -> float | None:
    """Return the option of a soft-cap, which a model may lack."""
    number = real(value)
    if value is not None and (number is None or not 0 < number < math.inf):
        raise LeftToKerasError(f"the model has a soft-cap of {value!r}")
    return None if number is None else float(number)


def embedding(layer: Any) -> tuple[Any, Dense]:
    """Return the table of a `ReversibleEmbedding`, and its layer back to the logits."""
    require_keras(layer, keras.layers.ReversibleEmbedding)
    require_float32(layer, but=_quantised.MODES)
    require_equal(layer, mask_zero=False)
    if layer.reverse_dtype not in (None, "float32"):
        raise LeftToKerasError(f"{layer.name} computes logits in {layer.reverse_dtype}")
    if layer.quantization_mode:
        return _quantised.embedding(layer)
    table = _with_lora(layer, "_embeddings", "lora_embeddings", None)
    tied = layer.tie_weights
    return table, Dense(table, transposed=True) if tied else Dense(layer.reverse_embeddings)
