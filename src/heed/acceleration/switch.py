"""The switch that enables heed, everywhere or inside the layers of chosen models, and counts of calls.

Every replacement asks `is_enabled()`, and calls Keras' function otherwise. What a model computes again in its backward
pass runs as it did in the forward pass.
"""

from __future__ import annotations

import collections
import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import keras

from heed.ops import device_rule
from heed.ops.backends import constant_while_tracing, current
from heed.patching import Function, Replacement, set_here

enabled_everywhere = False  # whether all models are accelerated
layers: weakref.WeakSet[Any] = weakref.WeakSet()  # those of the accelerated models
# Inside a call that was left to Keras because of the device, of which no part runs on heed.
_left_here: ContextVar[bool] = ContextVar("heed_inside_a_call_left_to_keras", default=False)
_enabled_here: ContextVar[bool] = ContextVar("heed_inside_an_accelerated_layer", default=False)


class Scope(NamedTuple):
    """What is accelerated at one time: everything, the layers of models, and this call."""

    everywhere: bool
    layers: weakref.WeakSet[Any]
    here: bool


# In a second computation: the scope of the first.
_repeated: ContextVar[Scope | None] = ContextVar("heed_accelerated_before", default=None)

_lock = threading.Lock()
calls: collections.Counter[str] = collections.Counter()
left_to_keras: collections.Counter[str] = collections.Counter()


def is_enabled(layer: Any = None) -> bool:
    """Return whether attention that is called now, of this layer if it is given, runs on heed."""
    if _is_left_here():
        return False
    if enabled_everywhere if not _is_repeated() else find_scope().everywhere:
        return True
    return is_enabled_here() or (layer is not None and is_accelerated(layer))


def is_training(training: bool | None) -> bool:
    """Return whether dropout is on, by the argument or else by the enclosing layers' call."""
    if training is None:
        from keras.src.backend.common import global_state

        context = global_state.get_global_attribute("current_call_ctx")
        training = getattr(context, "training", None)
    return bool(training)


def is_accelerated(x: Any) -> bool:
    """Return whether this is a layer of an accelerated model."""
    if not isinstance(x, keras.layers.Layer):
        return False
    return x in (find_scope().layers if _is_repeated() else layers)


def find_scope() -> Scope:
    """Return what is accelerated now."""
    before = _repeated.get() or Scope(enabled_everywhere, layers, False)
    return before._replace(here=_enabled_here.get())


@constant_while_tracing
def _is_repeated() -> bool:
    return _repeated.get() is not None


@constant_while_tracing
def _is_left_here() -> bool:
    return _left_here.get()


@contextmanager
def restore_scope(scope: Scope) -> Iterator[None]:
    """Accelerate what was accelerated in a forward pass, for what is computed again."""
    with set_here(_repeated, scope), set_here(_enabled_here, scope.here):
        yield


def is_enabled_here() -> bool:
    """Return whether this thread or task is inside a layer of an accelerated model."""
    return _enabled_here.get()


def enable_here() -> AbstractContextManager[None]:
    """Enable heed for this thread or task."""
    return set_here(_enabled_here, True)


def reset_counts() -> None:
    """Start counting again."""
    with _lock:
        calls.clear()
        left_to_keras.clear()


def count(target: str) -> None:
    """Count a call that runs on heed."""
    with _lock:
        calls[target] += 1


def leave_to_keras(target: str, reason: str, original: Function, *args: Any, **kwargs: Any) -> Any:
    """Count a call that is left to Keras, with the reason, and make it."""
    _count_left(f"{target}: {reason}")
    return original(*args, **kwargs)


def _count_left(line: str) -> None:
    with _lock:
        left_to_keras[line] += 1


def _kind_of(owner: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the kind of a call for the rule of the device, or None."""
    options = (*kwargs, *kwargs.values(), is_training(None))
    return device_rule.kind_of(owner, (*(args if owner is None else args[1:]), *options))


def _leave_whole(line: str, original: Function, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Count a call that the device leaves to Keras, and make it: no part of it runs on heed.

    torch.compile traces no such switch: there each part is asked again.
    """
    _count_left(line)
    if current().hides_values():
        return original(*args, **kwargs)
    token = _left_here.set(True)
    try:
        return original(*args, **kwargs)
    finally:
        _left_here.reset(token)


def make_replacement(
    name: str | Callable[[Any], str],
    reason_to_leave: Callable[..., str | None],
    describe: Callable[..., device_rule.Call | None],
) -> Callable[[Function], Replacement]:
    """Turn a function that computes on heed into the replacement of Keras' function with the same parameters.

    The original may lack those parameters that have a default. Both functions get all arguments by name, with the
    defaults of the original.

    Args:
        name: name for the report, or a function that returns it for the first argument, the layer.
        reason_to_leave: returns why a call is left to Keras, or None.
        describe: returns what the rule of the device asks about; None for a call that Keras could not run.
    """

    def decorate(run: Function) -> Replacement:
        def make(original: Function) -> Function:
            signature = inspect.signature(original)
            reasons = device_rule.Reasons()

            @functools.wraps(original)
            def accelerated(*args: Any, **kwargs: Any) -> Any:
                first = args[0] if args else None
                if not is_enabled(first):
                    return original(*args, **kwargs)
                is_asked, kind = device_rule.is_asked(), None
                if is_asked:
                    owner = first if isinstance(first, keras.layers.Layer) else None
                    kind = _kind_of(owner, args, kwargs)
                    if kind is not None and (line := reasons.find(kind, owner)) is not None:
                        return _leave_whole(line, original, args, kwargs)
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                reason = reason_to_leave(**bound.arguments)
                target = name if isinstance(name, str) else name(bound.args[0])
                if reason:
                    return leave_to_keras(target, reason, original, *args, **kwargs)
                if is_asked and (
                    reason := device_rule.reason_to_leave(describe(**bound.arguments))
                ):
                    line = f"{target}: {reason}"
                    if kind is not None:
                        reasons.keep(kind, owner, line)
                    return _leave_whole(line, original, args, kwargs)
                count(target)
                return run(**bound.arguments)

            return accelerated

        parameters = inspect.signature(run).parameters.values()
        required = tuple(x.name for x in parameters if x.default is x.empty)
        return Replacement(
            make, required, tuple(x.name for x in parameters if x.default is not x.empty)
        )

    return decorate
