"""Whether a layer is exactly one that heed knows: of KerasHub's or Keras' class, as that version's code has it.

The engine computes in place of a model what its layers' code computes. A subclass, a method that somebody replaced, and
the code of another version may compute something else: then KerasHub generates.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Collection, Iterable, Iterator
from types import CodeType
from typing import Any

import keras

from heed.acceleration.hub._fingerprints import FINGERPRINTS
from heed.acceleration.hub.cache_readers import PACKAGE
from heed.layers.overrides import find_override
from heed.number_checks import real
from heed.patching import Function, unwrap_entry

_SOURCE = f"{PACKAGE}.src."
# What generates nothing, or only on another engine.
_UNREAD = {
    *("get_config", "compute_output_shape", "compute_output_spec", "get_layout_map", "score"),
    *("_compute_vllm_attention", "get_quantization_layer_structure", "export_to_transformers"),
    *("compute_mask", "_post_quantize", "from_config"),
}
# Classes whose code does not take part: heed replaces `CausalLM.generate_function`, and no layer calls a backbone.
_OUTSIDE = ("causal_lm.CausalLM", "task.Task", "backbone.Backbone")


class LeftToKerasError(Exception):
    """Why the engine does not generate with a model; KerasHub does."""


def class_name(cls: type) -> str:
    """Return the name of a class of KerasHub inside its sources, such as "models.llama.llama_decoder.LlamaDecoder"."""
    return f"{cls.__module__}.{cls.__qualname__}".removeprefix(_SOURCE)


def is_language_model(model: Any) -> bool:
    """Return whether an object is a `CausalLM` of KerasHub."""
    return any(class_name(cls) == "models.causal_lm.CausalLM" for cls in type(model).__mro__)


def require(layer: Any, name: str) -> Any:
    """Return a layer, or another object of KerasHub, that is exactly of the class of this name.

    Raises:
        LeftToKerasError: if it is not.
    """
    cls = type(layer)
    module = sys.modules.get(cls.__module__)
    if class_name(cls) != name or getattr(module, cls.__qualname__, None) is not cls:
        short = name.rpartition(".")[2]
        raise LeftToKerasError(f"{_named(layer)} is a {cls.__name__}, not KerasHub's {short}")
    for base in cls.__mro__:
        if not base.__module__.startswith(_SOURCE) or class_name(base).endswith(_OUTSIDE):
            continue
        if fingerprint(base) not in FINGERPRINTS.get(class_name(base), ()):
            raise LeftToKerasError(f"heed does not know this code of KerasHub's {base.__name__}")
        own = next((x for x, _ in _functions(base) if x in vars(layer) and x != "build"), None)
        if own is not None:
            raise LeftToKerasError(f"{_named(layer)} has its own `{own}`")
    _require_unhooked(layer)
    return layer


def has_foreign_attention(model: Any) -> bool:
    """Return whether others than Keras and KerasHub define what some layer with attention does.

    Such a layer may see other positions than its mask lets it see.
    """
    for layer in model._flatten_layers(include_self=False):
        parts = (cls for part in layer._flatten_layers() for cls in type(part).__mro__)
        if not any("Attention" in cls.__name__ for cls in parts):
            continue
        for cls in type(layer).__mro__:
            if issubclass(cls, keras.layers.Layer) and _origin(cls.__module__) not in _KNOWN:
                return True
            for name, function in _functions(cls):
                own = vars(layer).get(name, function)
                if not (_is_known(function) and (own is function or _is_known(own))):
                    return True
    return False


_KNOWN = {"keras", PACKAGE, "heed", "tensorflow", "torch", "jax", "builtins"}


def _origin(module: str) -> str:
    return module.partition(".")[0]


def _is_known(function: Any) -> bool:
    """Return whether a function and each that it wraps are of Keras, KerasHub, heed or a framework."""
    while function is not None:
        names = getattr(function, "__globals__", None)
        if names is None and not inspect.isroutine(function):
            return False  # an object that is called
        if names is not None and _origin(names["__name__"]) not in _KNOWN:
            return False
        function = getattr(function, "__wrapped__", None)
    return True


def require_keras(layer: Any, cls: type, *methods: str) -> Any:
    """Return a layer that is exactly of a class of Keras and computes as it.

    Raises:
        LeftToKerasError: if it does not.
    """
    if type(layer) is not cls:
        raise LeftToKerasError(
            f"{_named(layer)} is a {type(layer).__name__}, not Keras' {cls.__name__}"
        )
    override = find_override(layer, cls, ("__call__", "call", *methods))
    if override is not None:
        raise LeftToKerasError(override)
    _require_unhooked(layer)
    return layer


def require_float32(layer: Any, but: tuple[str, ...] = ()) -> None:
    """Raise `LeftToKerasError` unless a layer computes in float32 with float32 weights, `but` for quantised ones."""
    policy = layer.dtype_policy
    if mode := getattr(layer, "quantization_mode", None):
        if mode in but and policy.compute_dtype == policy.variable_dtype == "float32":
            return
        raise LeftToKerasError(
            f"{_named(layer)} is quantised to {mode}, and the engine reads float32"
        )
    if policy.name != "float32":
        raise LeftToKerasError(f"{_named(layer)} computes in {policy.name}, the engine in float32")


def require_equal(layer: Any, **expected: Any) -> None:
    """Raise `LeftToKerasError` unless the attributes of a layer have these values."""
    for name, value in expected.items():
        found = getattr(layer, name, None)
        if type(found) is not type(value) or found != value:
            raise LeftToKerasError(
                f"{_named(layer)} has {name}={found!r}, which the engine does not know"
            )


def _named(layer: Any) -> str:
    return getattr(layer, "name", None) or f"the {type(layer).__name__}"


def _require_unhooked(layer: Any) -> None:
    """Look for hooks of PyTorch's modules, which change what they return."""
    for hooks in ("_forward_hooks", "_forward_pre_hooks"):
        if getattr(layer, hooks, None):
            raise LeftToKerasError(f"{_named(layer)} has hooks of PyTorch")


def fingerprint(cls: type) -> str:
    """Return a hash of what a class' own methods use: names, numbers and strings, not its documentation."""
    return _fingerprint(tuple((name, _code(function)) for name, function in _functions(cls)))


@functools.cache
def _fingerprint(codes: tuple[tuple[str, CodeType | None], ...]) -> str:
    parts = []
    for name, code in codes:
        found = {"a method without code"} if code is None else {*_parts(code)}
        parts.append(f"{name}: {' '.join(sorted(found))}")
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()[:16]


def _functions(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the methods and properties that a class defines itself and that take part in generating."""
    for name, value in vars(cls).items():
        function = value.fget if isinstance(value, property) else value
        function = getattr(function, "__func__", function)
        if name not in _UNREAD and inspect.isroutine(function):
            yield name, function


def _code(function: Any) -> CodeType | None:
    return getattr(inspect.unwrap(unwrap_entry(function)), "__code__", None)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code and those of functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _parts(code: CodeType) -> Iterator[str]:
    """Yield the names, strings and fractions in code and in functions inside it; versions of Python keep them alike."""
    for each in _codes(code):
        documentation = each.co_consts[0] if each.co_consts else None
        yield from each.co_names
        yield from each.co_varnames[: each.co_argcount + each.co_kwonlyargcount]
        for constant in each.co_consts:
            if isinstance(constant, float) or (
                isinstance(constant, str) and constant is not documentation
            ):
                yield repr(constant)


def find_unknown(
    functions: Iterable[Function],
    names: Collection[str],
    numbers: Collection[float],
    others: Iterable[str] = (),
) -> str | None:
    """Describe what functions, and functions inside them, use and heed does not know; None if heed knows it all.

    Args:
        functions: of the other library.
        names: the globals and attributes that heed knows.
        numbers: the constants that heed knows.
        others: further names that heed does not know.
    """
    own = [getattr(unwrap_entry(function), "__code__", None) for function in functions]
    codes = [code for one in own if one is not None for code in _codes(one)]
    found = {name for code in codes for name in code.co_names if name not in names} | {*others}
    found |= {"a method without code"} if None in own else set()
    constants = (x for code in codes for x in code.co_consts if real(x) is not None)
    found |= {str(x) for x in constants if x not in numbers}
    return f"heed does not know {', '.join(sorted(found))}" if found else None
