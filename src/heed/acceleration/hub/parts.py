"""Parts of KerasHub's models as the engine gets them: dense layers, norms, embeddings, rotations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
from keras import ops

from heed.acceleration.hub.recognition import (
    LeftToKerasError,
    require,
    require_equal,
    require_float32,
    require_keras,
)
from heed.ops.core.description import Computed, DecoderStack, Dense, Norm, variables_of


@dataclass(frozen=True)
class Rotation:
    """A table of angles: `table(length)` returns cosines, then sines, (length, P).

    Attributes:
        layer: of KerasHub, which computes it.
        key: what the numbers depend on.
        table: see above.
    """

    layer: Any
    key: tuple[Any, ...]
    table: Callable[[int], np.ndarray]


@dataclass(frozen=True)
class Description:
    """A language model of KerasHub as the engine gets it.

    Attributes:
        stack: its layers.
        table: of learned positions, a variable (longest, D); or None.
        rotations: tables of angles, by their numbers in the layers.
        slopes: (N,): the score of a query and the key d positions before it gets -slope d; or None.
        longest: the most tokens, or None.
    """

    stack: DecoderStack
    table: Any = None
    rotations: tuple[Rotation, ...] = ()
    slopes: tuple[float, ...] | None = None
    longest: int | None = None

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
    require_float32(layer)
    if activation_name(layer.activation) != activation:
        raise LeftToKerasError(f"{layer.name} has another activation than {activation}")
    order = _order(layer) if einsum else None
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


def add_embedding(stack: Callable[..., DecoderStack], layer: Any, scale: float = 1.0) -> Any:
    """Return the stack that a function makes, with a `ReversibleEmbedding` for its tokens and its logits."""
    require_keras(layer, keras.layers.ReversibleEmbedding)
    require_float32(layer)
    require_equal(layer, mask_zero=False)
    if layer.reverse_dtype not in (None, "float32"):
        raise LeftToKerasError(f"{layer.name} computes logits in {layer.reverse_dtype}")
    table = _with_lora(layer, "_embeddings", "lora_embeddings", None)
    cap = layer.logit_soft_cap
    if cap is not None and not cap > 0:
        raise LeftToKerasError(f"{layer.name} has logit_soft_cap={cap!r}")
    if layer.tie_weights:
        logits = Dense(table, transposed=True)
    else:
        logits = Dense(layer.reverse_embeddings)
    made = stack(embedding=table, embedding_scale=scale, logits=logits)
    return replace(made, logit_soft_cap=None if cap is None else float(cap))


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


def rotation(layer: Any, name: str, width: int, key: tuple[Any, ...]) -> Rotation:
    """Return the table of a `RotaryEmbedding` of KerasHub, or a subclass of it of this name, for heads of this width.

    Args:
        layer: of KerasHub.
        name: of its class.
        width: P, how many features it turns.
        key: the attributes that its numbers depend on.
    """
    require_float32(require(layer, name))
    require_equal(layer, sequence_axis=1, feature_axis=-1)
    if width % 2:
        raise LeftToKerasError(f"{layer.name} turns an odd number of features")

    def table(length: int) -> np.ndarray:
        angles = layer._compute_cos_sin_embedding(ops.zeros((1, length, 1, width)), 0)
        both = [ops.convert_to_numpy(x).reshape(length, width)[:, : width // 2] for x in angles]
        return np.concatenate(both, axis=-1)

    return Rotation(layer, (name, width, *(getattr(layer, x) for x in key)), table)


# Of a plain `RotaryEmbedding`.
ROTARY = "layers.modeling.rotary_embedding.RotaryEmbedding"
ROTARY_KEY = (
    *("max_wavelength", "scaling_factor", "rope_type", "beta_fast", "beta_slow", "truncate"),
    *("original_max_position_embeddings", "denominator_dim"),
)


def same_sizes(sizes: list[Any], what: str) -> Any:
    """Return the sizes that all layers share."""
    if any(one != sizes[0] for one in sizes):
        raise LeftToKerasError(f"layers have different {what}")
    return sizes[0]


def inverse_root(width: int) -> float:
    """Return 1 / sqrt(width)."""
    return 1 / math.sqrt(width)
