"""Weights that Keras quantised to int8 or int4, as the engine gets them: Keras' own integers, times factors."""

from __future__ import annotations

import math
from dataclasses import dataclass, is_dataclass
from typing import Any

import keras
import numpy as np

from heed.acceleration.hub.recognition import LeftToKerasError
from heed.ops.core.description import Computed, Dense, Integers

MODES = ("int8", "int4")
_LAST_KERAS = (3, 15)  # later ones keep integers in another form


@dataclass(frozen=True)
class KerasIntegers(Integers):
    """Integers of a layer of Keras."""

    layer: str  # the name of the layer
    bits: int  # that hold its integers, 4 or 8
    rounds_inputs: bool  # whether Keras rounds the inputs of the layer, too


def kernel(layer: Any) -> KerasIntegers:
    """Return the kernel of a quantised `Dense` or `EinsumDense`, with the axes of inputs first."""
    _check_keras()
    stored, scale = layer._kernel, layer.kernel_scale
    if layer.quantization_mode == "int4":  # (inputs, half of the outputs)
        return _read(layer, stored, "kernel", int(stored.shape[0]), int(scale.shape[-1]))
    return _read(layer, stored, "kernel", math.prod(stored.shape) // math.prod(scale.shape))


def embedding(layer: Any) -> tuple[Computed, Dense]:
    """Return the table of a quantised `ReversibleEmbedding`, and its layer back to the logits."""
    _check_keras()
    width = layer.output_dim
    found = _read(layer, layer._embeddings, "embeddings", width, width, transposed=True)
    parts = (*found.whole.variables, layer.embeddings_scale)
    table = Computed(_dequantise, parts, found.whole.settings)
    if layer.tie_weights:
        return table, Dense(found, transposed=True)
    back = layer.reverse_embeddings
    return table, Dense(_read(layer, back, "reverse_embeddings", width, width, axis=0))


def _check_keras() -> None:
    version = tuple(int(x) for x in keras.__version__.split(".")[:2])
    if version > _LAST_KERAS:
        raise LeftToKerasError(
            f"heed does not read the integers of Keras {keras.__version__}, only up to 3.15"
        )


def check(part: Any, weights: str) -> None:
    """Check that a weight format keeps the integers of Keras in a stack, and computes with them as Keras does."""
    if isinstance(part, KerasIntegers):
        if part.rounds_inputs and weights not in MODES:
            raise LeftToKerasError(
                f"{part.layer} is quantised and rounds its inputs, as the engine does with "
                '`heed.accelerate(model, weights="int8")` alone'
            )
        if weights == "int4" and part.bits > 4:
            raise LeftToKerasError(f"{part.layer} holds integers of more than 4 bits")
    elif isinstance(part, tuple):
        for one in part:
            check(one, weights)
    elif is_dataclass(part):
        check(tuple(vars(part).values()), weights)


def _read(
    layer: Any,
    stored: Any,
    name: str,
    inputs: int,
    packed: int = 0,
    axis: int = 1,
    transposed: bool = False,
) -> KerasIntegers:
    """Return stored integers; those of int4 lie in pairs along an axis of `packed` numbers."""
    mode, group = layer.quantization_mode, None
    if getattr(layer, "lora_enabled", False):
        raise LeftToKerasError(f"{layer.name} has LoRA weights beside its integers")
    if mode == "int4" and layer.quantization_config is None:
        raise LeftToKerasError(f"{layer.name} does not say how many inputs share a factor")
    if mode == "int4" and layer.quantization_config.block_size not in (None, -1):
        group = int(layer.quantization_config.block_size)
        if group % 32 and group < inputs:
            raise LeftToKerasError(
                f"{layer.name} has factors for {group} inputs each, the engine for multiples of 32"
            )
    zero = () if group is None else (getattr(layer, f"{name}_zero"),)
    size = group or inputs
    return KerasIntegers(
        Computed(
            _whole, (stored, *zero), (packed if mode == "int4" else 0, axis, size, transposed)
        ),
        Computed(_factors, (getattr(layer, f"{name}_scale"),), (group is not None, transposed)),
        size,
        layer=layer.name,
        bits=4 if mode == "int4" and group is None else 8,
        rounds_inputs=layer.inputs_quantizer is not None and (name != "kernel" or group is None),
    )


def _whole(stored: np.ndarray, *rest: Any) -> np.ndarray:
    """Return integers less the zero points of their groups."""
    *zero, packed, axis, group, transposed = rest
    whole = stored
    if packed:  # two in a byte, the first one in its lower half
        pairs = np.stack([(stored << 4).astype(np.int8) >> 4, stored >> 4], axis=axis + 1)
        shape = [stored.shape[0], stored.shape[1]]
        shape[axis] *= 2
        whole = np.take(pairs.reshape(shape), range(packed), axis=axis)
    if not zero:
        return whole
    points, place = zero[0].astype(np.int8), 1 if transposed else 0
    return whole - np.take(points, np.arange(whole.shape[place]) // group, axis=place)


def _factors(scale: np.ndarray, grouped: bool, transposed: bool) -> np.ndarray:
    """Return factors (groups, outputs): Keras multiplies by those of groups, and divides by those of channels."""
    if not grouped:
        return 1 / scale.reshape(1, -1)
    return scale.T if transposed else scale


def _dequantise(stored: np.ndarray, *rest: Any) -> np.ndarray:
    """Return the table of an embedding in float32."""
    *zero, scale, packed, axis, group, transposed = rest
    whole = _whole(stored, *zero, packed, axis, group, transposed).astype(np.float32)
    if not zero:
        return whole / scale[:, None]
    return whole * np.take(scale, np.arange(whole.shape[1]) // group, axis=1)
