"""Speeds up `generate` of KerasHub.

While a sampler of KerasHub runs its loop

- the cache consists of `CacheParts`: keys and values of each layer are tensors of their own throughout the loop;
- new positions are written in place (on TensorFlow `keras.ops.slice_update` copies the cache, and compiles with XLA at
  run time);
- a product of few rows reads the weights once (Keras computes a batch of products of one row each);
- keys after the last one that any query may see are not read;
- `keras.ops.argmax` treats 0 and -0 as equal.

The code of the models runs unchanged, and Keras is itself outside of these loops.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import keras
from keras import ops
from keras.backend import standardize_dtype

from heed.acceleration import accelerated_models, switch
from heed.acceleration.hub import _notes, loop
from heed.acceleration.hub._generation import Generate
from heed.acceleration.hub.cache_readers import (
    PACKAGE,
    READINGS,
    Reading,
    find_owner,
    find_reading,
    reason_to_leave,
)
from heed.acceleration.hub.recognition import has_foreign_attention
from heed.acceleration.hub.stand_ins import (
    CacheParts,
    RepeatedRows,
    StandIn,
    is_part,
    mark_as_part,
)
from heed.keras_modules import backend_module
from heed.ops.backends import current
from heed.ops.dispatch import select_fused_ops, uses_native
from heed.patching import Function, Patch, Replacement, SleepingPatch

NAME, _BEAMS = f"{PACKAGE}.samplers.Sampler", f"{PACKAGE}.samplers.BeamSampler"


def _reason_to_leave(cache: Any, model: Any) -> str | None:
    """Return why a cache stays one tensor, or None."""
    if reason := reason_to_leave(model):
        return reason
    shape = tuple(getattr(cache, "shape", ()))
    fits = len(shape) == 6 and shape[1] is not None and shape[2] == 2
    return None if fits else "a cache that is not one tensor (B, layers, 2, S, N, H)"


def call_sampler(original: Function) -> Function:
    """Replace `Sampler.__call__`, with the cache in parts."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def accelerated(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        cache, next_token = arguments["cache"], arguments["next"]
        cache, *source = cache if isinstance(cache, tuple) and len(cache) == 4 else (cache,)
        if cache is None or not accelerated_models.is_enabled_for(arguments["model"]):
            return original(*args, **kwargs)
        caches = (cache, *source[2:])
        reasons = (_reason_to_leave(one, arguments["model"]) for one in caches)
        if reason := next(filter(None, reasons), None):
            return switch.leave_to_keras(NAME, reason, original, *args, **kwargs)
        switch.count(NAME)
        beams = getattr(arguments["self"], "num_beams", 1)
        constants = _repeat_source(source, beams) if source else ()

        def step(prompt: Any, parts: Any, index: Any) -> Any:
            cache: Any = _join(parts)
            if constants:
                logits, hidden, (cache, *_) = next_token(prompt, (cache, *constants), index)
            else:
                logits, hidden, cache = next_token(prompt, cache, index)
            return logits, hidden, _split(cache)

        arguments["cache"], arguments["next"] = _split(cache), step
        return original(*bound.args, **bound.kwargs)

    return accelerated


def _split(cache: Any) -> tuple[tuple[Any, Any], ...]:
    """Split a cache into keys and values of each layer, (B, S, N, H) each."""
    if not isinstance(cache, CacheParts):
        cache = CacheParts(ops.unstack(cache, axis=1), 1)
    layers = (x if isinstance(x, CacheParts) else ops.unstack(x, axis=1) for x in cache.parts)
    return tuple(
        (layer[:, 0], layer[:, 1]) if isinstance(layer, CacheParts) else tuple(layer)
        for layer in layers
    )


def _join(parts: Any) -> CacheParts:
    """Return the inverse of `_split`, without a copy."""
    return CacheParts([CacheParts(pair, 1) for pair in parts], 1)


def _repeat_source(source: Any, beams: int) -> tuple[Any, ...]:
    """Find the source that a loop passes on unchanged: states (B, S, D), mask (B, S) and cache, one row for each beam.

    Outside of the loop's variables, a step neither copies nor reorders them.
    """
    states, mask, cache = source
    parts = _join(_split(cache))
    if beams == 1:
        return states, mask, parts
    return RepeatedRows(states, beams), ops.repeat(mask, beams, axis=0), parts.repeat(beams)


def make_generate_function(original: Function) -> Function:
    """Replace `CausalLM.make_generate_function`, which `generate` calls first; patch the class of the model."""

    @functools.wraps(original)
    def accelerated(self: Any) -> Any:
        if not accelerated_models.is_enabled_for(self):
            return original(self)
        _patch_prompts(type(self))
        return Generate(self, original(self))

    return accelerated


def generate_step(original: Function) -> Function:
    """Replace `generate_step` of a model, which reads no more of the prompts than necessary."""

    @functools.wraps(original)
    def accelerated(self: Any, inputs: Any, stop_token_ids: Any = None) -> Any:
        mask = _find_prompt_mask(self, inputs) if accelerated_models.is_enabled_for(self) else None
        if mask is None:
            return original(self, inputs, stop_token_ids=stop_token_ids)
        lengths = ops.sum(ops.cast(mask, "int32"), axis=-1)
        with loop.set_prompt_length(ops.maximum(ops.min(lengths), 1)):
            return original(self, inputs, stop_token_ids=stop_token_ids)

    return accelerated


def _find_prompt_mask(model: Any, inputs: Any) -> Any | None:
    """Return the mask of the prompts (B, S), or None if the model may need more than the shortest prompt."""
    found = find_reading(model)
    if found is None or not uses_native() or not current().has_dynamic_shapes():
        return None
    method, reading = found
    sampler = getattr(model, "sampler", None)
    if (
        reason_to_leave(model) is not None
        or tuple(inspect.signature(method).parameters) != reading.parameters
        or not isinstance(inputs, dict)
        or set(inputs) != set(reading.inputs)
        or getattr(type(sampler).__call__, "__qualname__", "") not in _SAMPLERS
        or has_foreign_attention(model)
    ):
        return None
    return inputs[reading.prompt_mask]


# Samplers that use nothing of a prompt but its cache.
_SAMPLERS = ("Sampler.__call__", "BeamSampler.__call__")
_STEP = ("self", "inputs", "stop_token_ids")


def read_prompts(reading: Reading) -> Callable[[Function], Function]:
    """Make the replacement of a model's method, which fills caches only up to the end of the shortest prompt.

    The loop starts there, and writes every later position before it reads it.
    """

    def make(original: Function) -> Function:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def accelerated(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            arguments, length = bound.arguments, loop.get_prompt_length()
            caches = [arguments[name] for name, _ in reading.caches]
            indices = [arguments[name] for _, name in reading.caches]
            whole = all(type(index) is int and index == 0 for index in indices)
            if length is None or not whole or loop.is_decoding():
                return original(*args, **kwargs)
            if any(_reason_to_leave(cache, arguments["self"]) for cache in caches):
                return original(*args, **kwargs)
            for (name, _), cache in zip(reading.caches, caches, strict=True):
                arguments[name] = _join(_split(cache))
            arguments[reading.tokens] = arguments[reading.tokens][:, :length]
            with loop.enter():
                return original(*bound.args, **bound.kwargs)

        return accelerated

    return make


# Those of each class of models, installed when one of them first generates.
prompt_patches: dict[tuple[type, str], Patch] = {}


def _patch_prompts(cls: type) -> None:
    readers = [
        (name, read_prompts(reading), reading.parameters, sys.modules[PACKAGE])
        for name, reading in READINGS.items()
        if hasattr(cls, name)
    ]
    for name, make, parameters, package in (
        ("generate_step", generate_step, _STEP, None),
        *readers,
    ):
        owner = find_owner(cls, name)
        patch = Patch(owner, name, Replacement(make, parameters), package=package)
        if prompt_patches.setdefault((owner, name), patch) is patch and not patch.find_problem():
            patch.install()


def run_loop(original: Function) -> Function:
    """Replace `Sampler.run_loop`, which all samplers call."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def accelerated(*args: Any, **kwargs: Any) -> Any:
        if not accelerated_models.is_enabled_for(
            signature.bind(*args, **kwargs).arguments.get("model")
        ):
            return original(*args, **kwargs)
        with loop.enter():
            return original(*args, **kwargs)

    return accelerated


def compute_in_loop(run: Function) -> Callable[[Function], Function]:
    """Make the replacement of a function of Keras' backend; where `run` returns None, the original computes."""

    def make(original: Function) -> Function:
        @functools.wraps(original)
        def accelerated(*args: Any, **kwargs: Any) -> Any:
            if loop.is_decoding():
                with loop.pause():  # it may call the function itself
                    result = run(*args, **kwargs)
                if result is not None:
                    return result
            return original(*args, **kwargs)

        return accelerated

    return make


def stack(x: Any, axis: int = 0) -> Any | None:
    """Keep parts of a cache apart."""
    if isinstance(x, (list, tuple)) and x and all(is_part(part) for part in x):
        return CacheParts(x, axis) if axis >= 0 else None
    return None


def slice_update(original: Function) -> Function:
    """Update as Keras does, in place where it can be; a part of a cache stays one."""

    @functools.wraps(original)
    def accelerated(inputs: Any, start_indices: Any, updates: Any) -> Any:
        if not loop.is_decoding():
            return original(inputs, start_indices, updates)
        result = _write(inputs, start_indices, updates)
        if result is None:
            result = original(inputs, start_indices, updates)
        return mark_as_part(result) if is_part(inputs) else result

    return accelerated


def _write(inputs: Any, start_indices: Any, updates: Any) -> Any | None:
    """Write positions in place, along the second axis of tensors that agree in all others."""
    inputs, updates = ops.convert_to_tensor(inputs), ops.convert_to_tensor(updates)
    shapes = [(*x.shape[:1], *x.shape[2:]) for x in (inputs, updates)]
    if len(inputs.shape) < 2 or shapes[0] != shapes[1] or None in shapes[0]:
        return None
    if not isinstance(start_indices, (list, tuple)) or inputs.dtype != updates.dtype:
        return None
    if ops.is_tensor(start_indices) or standardize_dtype(inputs.dtype) not in _WRITTEN:
        return None
    others = (*start_indices[:1], *start_indices[2:])
    if len(start_indices) != len(inputs.shape) or not all(
        type(x) is int and x == 0 for x in others
    ):
        return None
    index = ops.cast(start_indices[1], "int32")
    if len(index.shape):
        return None
    return select_fused_ops().write(inputs, updates, index)


_WRITTEN = ("float32", "float64", "bfloat16", "float16", "int32")
_MULTIPLIED = _WRITTEN[:4]


# Marks a transposed matrix with its original, a table of embeddings (N, K), which products read without a copy.
_NOTE = "_heed_transpose_of"


def transpose(original: Function) -> Function:
    """Transpose as Keras does, and mark the result."""

    @functools.wraps(original)
    def accelerated(x: Any, axes: Any = None) -> Any:
        if not loop.is_decoding():
            return original(x, axes=axes)
        x = ops.convert_to_tensor(x)
        result = original(x, axes=axes)
        if len(x.shape) == 2 and (axes is None or tuple(axes) == (1, 0)):
            _notes.attach(result, _NOTE, x)
        return result

    return accelerated


def matmul(x1: Any, x2: Any) -> Any | None:
    """Multiply rows (..., K) by weights (K, N)."""
    table = _notes.read(x2, _NOTE)
    x1, x2 = ops.convert_to_tensor(x1), ops.convert_to_tensor(x2)
    if len(x1.shape) < 2 or len(x2.shape) != 2:
        return None
    weights = x2 if table is None else table
    return _multiply(x1, weights[None], 1, tuple(x2.shape[1:]), table is not None)


def einsum(subscripts: str, *operands: Any, **kwargs: Any) -> Any | None:
    """Multiply rows by weights, if the summed axes come last in the rows."""
    terms = subscripts.replace(" ", "").replace("->", ",").split(",")
    if len(operands) != 2 or kwargs or len(terms) != 3 or "." in subscripts:
        return None
    rows, weights, result = terms
    x, w = (ops.convert_to_tensor(operand) for operand in operands)
    inner = "".join(letter for letter in rows if letter in weights)
    kept, outer = rows.removesuffix(inner), [letter for letter in weights if letter not in inner]
    if not inner or f"{kept}{inner}" != rows or kept + "".join(outer) != result:
        return None
    if inner not in weights or None in w.shape or len(set(weights)) < len(weights):
        return None
    if weights.startswith(inner) and _has_many_rows(x, len(inner)):
        return _multiply_flat(x, w, len(inner))
    groups, columns = weights.split(inner)
    sizes = dict(zip(weights, w.shape, strict=True))
    over, under, across = (
        math.prod(sizes[letter] for letter in letters) for letters in (groups, inner, columns)
    )
    shape = tuple(sizes[letter] for letter in outer)
    return _multiply(x, ops.reshape(w, (over, under, across)), len(inner), shape)


def _multiply(
    x: Any, weights: Any, inner: int, outer: tuple[int, ...], transposed: bool = False
) -> Any | None:
    """Multiply (..., *inner) by (G, K, N) to (..., *outer); None if Keras is faster."""
    if None in x.shape or None in weights.shape or x.dtype != weights.dtype:
        return None
    kept = tuple(x.shape[: len(x.shape) - inner])
    if standardize_dtype(x.dtype) not in _MULTIPLIED:
        return None
    rows = ops.reshape(x, (math.prod(kept), -1))
    y = select_fused_ops().product(rows, weights, transposed)
    return None if y is None else ops.reshape(y, (*kept, *outer))


def _has_many_rows(x: Any, inner: int) -> bool:
    """Return whether there are too many rows, or unknown numbers of them, for the product of few rows."""
    kept = x.shape[: len(x.shape) - inner]
    return None in kept or math.prod(kept) > 16


def _multiply_flat(x: Any, weights: Any, inner: int) -> Any:
    """Multiply (..., *inner) by (*inner, *outer) as two matrices, not one product for each item of a batch."""
    kept, outer = ops.shape(x)[: len(x.shape) - inner], tuple(weights.shape[inner:])
    under = math.prod(weights.shape[:inner])
    rows = ops.reshape(x, (-1, under))
    return ops.reshape(ops.matmul(rows, ops.reshape(weights, (under, -1))), (*kept, *outer))


def convert_input(self: Any, x: Any, autocast: bool, dtype: Any) -> Any | None:
    """Pass a stand-in to a layer as it is, where Keras would make its tensor."""
    return x if isinstance(x, StandIn) else None


def is_backend_tensor_or_symbolic(x: Any, allow_none: bool = False) -> bool | None:
    """Let a stand-in pass as a tensor among a layer's arguments, also by position and inside `**kwargs`."""
    return True if isinstance(x, StandIn) else None


def shape(x: Any) -> tuple[Any, ...] | None:
    """Return the shape of a cache in parts, without its tensor."""
    known = isinstance(x, StandIn) and None not in x.shape
    return tuple(x.shape) if known else None


def repeat(x: Any, repeats: Any, axis: int | None = None) -> Any | None:
    """Repeat the rows of a cache in parts, without a copy."""
    if isinstance(x, CacheParts) and type(repeats) is int and axis == 0 and None not in x.shape:
        return x.repeat(repeats)
    return None


def take_along_axis(x: Any, indices: Any, axis: int | None = None) -> Any | None:
    """Select whole rows (B, R, ...) of a search's beams, by indices (B, R, 1, ...), without one for each number."""
    x, indices = ops.convert_to_tensor(x), ops.convert_to_tensor(indices)
    if axis != 1 or not 2 < len(indices.shape) == len(x.shape):
        return None
    if any(n != 1 for n in indices.shape[2:]) or x.shape[0] != indices.shape[0]:
        return None
    (rows, width, *rest), chosen = ops.shape(x), ops.shape(indices)[1]
    places = ops.cast(ops.reshape(indices, (rows, chosen)), "int32")
    places = ops.where(places < 0, places + width, places)
    places = places + width * ops.expand_dims(ops.arange(rows, dtype="int32"), 1)
    taken = ops.take(ops.reshape(x, (rows * width, *rest)), ops.reshape(places, (-1,)), axis=0)
    return ops.reshape(taken, (rows, chosen, *rest))


def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Any | None:
    """Compute it along the last axis."""
    x = ops.convert_to_tensor(x)
    kind = standardize_dtype(x.dtype)
    if keepdims or axis not in (-1, len(x.shape) - 1) or kind not in _MULTIPLIED:
        return None
    return select_fused_ops().argmax(x)


def decoding_patches(causal_lm: ModuleType, package: ModuleType) -> list[Patch]:
    """Return the patches of KerasHub's samplers, and of the functions of Keras that run in their loop."""
    core, numpy = (backend_module(name) for name in ("core", "numpy"))
    sampler, beam = (
        getattr(sys.modules.get(f"{PACKAGE}.src.samplers.{module}"), cls, None)
        for module, cls in (("sampler", "Sampler"), ("beam_sampler", "BeamSampler"))
    )
    model, make = getattr(causal_lm, "CausalLM", None), "make_generate_function"
    label = f"{PACKAGE}.models.CausalLM.{make}"
    in_loop: tuple[tuple[Any, Function], ...] = (
        (keras.DTypePolicy, convert_input),
        (sys.modules[keras.Layer.__module__], is_backend_tensor_or_symbolic),
        (core, shape),
        *((numpy, run) for run in (stack, matmul, einsum, argmax, repeat, take_along_axis)),
    )
    start = ("inputs", "start_indices", "updates")
    loop.patches[:] = (
        _patch_function(numpy, "transpose", transpose, ("x", "axes")),
        _patch_function(core, "slice_update", slice_update, start),
        *(
            _patch_function(
                owner, run.__name__, compute_in_loop(run), inspect.signature(run).parameters
            )
            for owner, run in in_loop
        ),
    )
    return [
        Patch(sampler, "__call__", Replacement(call_sampler, _SAMPLE), NAME, package),
        Patch(beam, "__call__", Replacement(call_sampler, _SAMPLE[:-1]), _BEAMS, package),
        Patch(sampler, "run_loop", Replacement(run_loop, _LOOP), f"{NAME}.run_loop", package),
        Patch(model, make, Replacement(make_generate_function, ("self",)), label, package),
        *loop.patches,
    ]


_SAMPLE = tuple(
    "self next prompt cache index mask stop_token_ids hidden_states model kwargs".split()
)
_LOOP = ("self", "cond", "body", "model", "loop_vars", "maximum_iterations")


def _patch_function(
    owner: Any, name: str, make: Callable[[Function], Function], parameters: Iterable[str]
) -> SleepingPatch:
    label = f"keras.ops.{name}" if hasattr(ops, name) else None
    return SleepingPatch(owner, name, Replacement(make, tuple(parameters)), label, keras)
