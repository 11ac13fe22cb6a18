"""Observes the attention of a running model, including layers of other libraries.

Three hooks see every attention of a Keras model:

- heed's ops report their calls to a watcher (heed's layers, accelerated Keras);
- `keras.ops.dot_product_attention` calls one function of the backend;
- all other layers compute their weights with a softmax inside a layer that is an attention.

`keras.layers.Layer.__call__` tells which layer is running. While a model runs, these functions of Keras are patched for
its thread; they compute what they always do. So are Keras' loops, because JAX compiles them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import keras
import numpy as np

from heed._keras import backend_module, recurrent_backend
from heed._patching import ContextPatch, Function, activate, set_here
from heed.inspect import _names
from heed.inspect._observed import FusedAttention, ObservedAttention, SoftmaxAttention
from heed.ops.backends import current
from heed.ops.observe import set_watcher
from heed.ops.spec import AttentionSpec, Tensors

# Names of arguments that hold another sequence than the layer's own.
_SOURCES = ("key_value", "encoder", "encoded", "context", "memory")
# Gets the full name of each attention, the attention, and "self", "causal" or "cross". What it returns replaces the
# output, unless it is None. The steps of a recurrent decoder come one by one, under one name.
Observer = Callable[[str, ObservedAttention, str], Any]


class Frame(NamedTuple):
    """A layer that is being called."""

    layer: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Session:
    """The observation of one run of a model.

    Args:
        observer, layers: see `watch`.
        traced: whether the run is traced, for its derivative. Nothing has values then, and no kind is determined: the
            observer gets "".
    """

    def __init__(
        self, observer: Observer, layers: Sequence[str] | None, traced: bool = False
    ) -> None:
        self.observer, self.layers, self.traced = observer, layers, traced
        self.frames: list[Frame] = []
        self.names: list[str] = []  # of all attentions that ran
        self.steps: dict[tuple[Any, ...], str] = {}  # names of those that single steps call
        self.with_attention: set[Any] = set()  # the layers around them
        self.without_values = False  # whether an attention ran in a compiled function

    def call_layer(self, original: Function, layer: Any, /, *args: Any, **kwargs: Any) -> Any:
        """`keras.layers.Layer.__call__`; a softmax layer inside an attention gives weights."""
        self.frames.append(Frame(layer, args, kwargs))
        try:
            output = original(layer, *args, **kwargs)
        finally:
            self.frames.pop()
        if not isinstance(layer, keras.layers.Softmax):
            return output
        mask = args[1] if len(args) > 1 else kwargs.get("mask")
        return self.observe_softmax(args[0] if args else kwargs["inputs"], output, mask)

    def call_softmax(self, original: Function, x: Any, axis: Any = -1) -> Any:
        """The backend's softmax."""
        weights = original(x, axis=axis)
        return self.observe_softmax(x, weights) if axis in (-1, len(x.shape) - 1) else weights

    def call_attention(self, original: Function, /, *args: Any, **kwargs: Any) -> Any:
        """The backend's attention, unless it runs on heed's op, which reports itself."""
        before = len(self.names)
        output = original(*args, **kwargs)
        if len(self.names) != before:
            return output
        return self.observe(output, lambda: FusedAttention.from_keras(output, *args, **kwargs))

    def call_loop(self, original: Function, /, *args: Any, **kwargs: Any) -> Any:
        """A loop of the backend. JAX compiles it, so it runs again step by step if there is attention inside."""
        if not self.traced:
            try:
                return original(*args, **kwargs)
            except RuntimeError:  # AutoGraph would replace an exception of our own
                if not self.without_values:
                    raise
                self.without_values = False
        with current().steps_with_values():
            return original(*args, **kwargs)

    def observe_op(self, spec: AttentionSpec, tensors: Tensors, output: Any) -> Any:
        """An attention of heed's ops."""
        return self.observe(output, lambda: FusedAttention(output, spec, tensors))

    def observe_softmax(self, scores: Any, weights: Any, mask: Any = None) -> Any:
        """The result of a softmax, which may be the weights of an attention."""
        layer = self.frames[-1].layer if self.frames else None
        if not is_attention(layer) or len(weights.shape) < 3:
            return weights
        return self.observe(weights, lambda: SoftmaxAttention(layer, weights, scores, mask))

    def observe(self, output: Any, describe: Callable[[], ObservedAttention]) -> Any:
        """Reports an attention of the chosen layers; returns the output for the model to use."""
        from keras.src.backend.common.symbolic_scope import in_symbolic_scope

        if not self.frames or in_symbolic_scope():  # Keras only infers shapes
            return output
        path = [frame.layer.name for frame in self.frames]
        if not (self.traced or current().has_values(output)):
            self.without_values = True
            raise RuntimeError(
                f"The layer {path[-1]!r} runs inside a compiled function (tf.function, jax.jit, torch.compile), where "
                "its attention has no values to show. Call the model without it; on TensorFlow "
                "tf.config.run_functions_eagerly(True) does, too. "
                f"Received: a symbolic tensor inside {'/'.join(path)}"
            )
        attention = describe()
        name = self.choose_name(path[1:] or path, attention)
        self.with_attention.update(frame.layer for frame in self.frames)
        if self.layers is not None and not any(_names.matches(x, name) for x in self.layers):
            return output
        replaced = self.observer(name, attention, self.find_kind(attention))
        return output if replaced is None else replaced

    def find_kind(self, attention: ObservedAttention) -> str:
        """See `Observer`."""
        if self.traced:
            return ""
        cross = _is_cross(self.frames[-1])
        return "cross" if cross else "causal" if attention.causal else "self"

    def choose_name(self, path: Sequence[str], attention: ObservedAttention) -> str:
        """A new name, or that of the earlier steps of a recurrent decoder, whose query is (B, D)."""
        frame = self.frames[-1]
        query = _bind_arguments(frame).get("query")
        key = (frame.layer, *path, *attention.sizes)
        single_step = query is not None and len(query.shape) == 2
        if single_step and key in self.steps:
            return self.steps[key]
        name = _names.make_full_name(path, self.names)
        self.names.append(name)
        if single_step:
            self.steps[key] = name
        return name


_session: ContextVar[Session] = ContextVar("heed_inspect_session")


@contextmanager
def watch(
    observer: Observer, layers: Sequence[str] | None, traced: bool = False
) -> Iterator[Session]:
    """Reports each attention that Keras layers compute in this thread.

    Args:
        observer: gets the attentions.
        layers: full names, or the ends of full names, of the layers to report; None for all.
        traced: see `Session`.
    """
    session = Session(observer, layers, traced)
    with set_here(_session, session), set_watcher(session.observe_op), activate(_patches()):
        yield session


@functools.cache
def _patches() -> list[ContextPatch]:
    def make_patch(owner: Any, name: str, method: Function) -> ContextPatch:
        def make(original: Function) -> Function:
            return lambda *args, **kwargs: method(_session.get(), original, *args, **kwargs)

        return ContextPatch(owner, name, make)

    nn, core = backend_module("nn"), backend_module("core")
    loops = [(core, name) for name in ("scan", "map", "while_loop", "fori_loop")]
    return [
        *(make_patch(owner, name, Session.call_loop) for owner, name in loops),
        make_patch(recurrent_backend(), "rnn", Session.call_loop),
        make_patch(keras.layers.Layer, "__call__", Session.call_layer),
        make_patch(nn, "softmax", Session.call_softmax),
        make_patch(nn, "dot_product_attention", Session.call_attention),
    ]


def is_attention(layer: Any) -> bool:
    """Whether a softmax inside this layer gives attention weights, by the name of its class or of a base class."""
    return any("attention" in cls.__name__.lower() for cls in type(layer).__mro__)


def _is_cross(frame: Frame) -> bool:
    """Whether the layer reads another sequence than its own."""
    arguments = _bind_arguments(frame)
    if "query" in arguments:
        others = [arguments[name] for name in ("value", "key") if arguments.get(name) is not None]
        # Without a value, the layer reads a cache of keys and values projected from another sequence.
        return not others or not all(_is_same(arguments["query"], x) for x in others)
    first = next(iter(arguments.values()), None)
    if isinstance(first, (list, tuple)):
        return not all(_is_same(first[0], x) for x in first[1:])
    return any(
        x is not None and any(word in name for word in _SOURCES) and "mask" not in name
        for name, x in arguments.items()
    )


def _bind_arguments(frame: Frame) -> dict[str, Any]:
    """The arguments of a call by name; empty if the signature is unknown."""
    try:
        bound = inspect.signature(frame.layer.call).bind_partial(*frame.args, **frame.kwargs)
    except (TypeError, ValueError):
        return {}
    return bound.arguments


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if tuple(one.shape) != tuple(other.shape):
        return False
    one, other = (keras.ops.convert_to_numpy(keras.ops.cast(x, "float32")) for x in (one, other))
    return bool(np.array_equal(one, other))
