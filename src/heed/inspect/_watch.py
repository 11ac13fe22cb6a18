"""Looking on while a model runs: which layer computes which attention, whoever wrote it.

Three places see every attention of a Keras model on TensorFlow:

- heed's ops show what they compute to whoever watches (heed's layers, accelerated Keras);
- `keras.ops.dot_product_attention` ends in one function of the backend;
- other layers hold the weights themselves: they come out of a softmax inside a layer that is an attention.

And `keras.layers.Layer.__call__` tells inside which layers that happens. Three functions are wrapped while a model
runs, for the thread that runs it; what they compute is computed as ever.
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

from heed._keras import backend_module
from heed._patching import ContextPatch, activate
from heed.inspect import _names
from heed.inspect._seen import FusedAttention, Seen, SoftmaxWeights, keras_attention
from heed.ops.observe import watching
from heed.ops.spec import AttentionSpec, Tensors

# Arguments by which layers of the world take what they read besides their own sequence.
_SOURCES = ("key_value", "encoder", "encoded", "context", "memory")
# Is shown the full name of each attention, what was seen, and "self", "causal" or "cross"; what it returns goes on in
# place of the output, None for the output itself. Where single states ask, it is shown each step, under one name.
Look = Callable[[str, Seen, str], Any]


class Frame(NamedTuple):
    """One layer that is being called."""

    layer: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Session:
    """What happens while one model runs."""

    def __init__(self, look: Look, layers: Sequence[str] | None) -> None:
        self.look, self.layers = look, layers
        self.frames: list[Frame] = []
        self.names: list[str] = []  # of all attentions that ran
        self.states: dict[tuple[Any, ...], str] = {}  # names of those that single states ask
        self.with_attention: set[int] = set()  # ids of the layers around them

    def layer(self, original: Callable[..., Any], layer: Any, /, *args: Any, **kwargs: Any) -> Any:
        """`keras.layers.Layer.__call__`; where the layer is the softmax of an attention, it gives the weights."""
        self.frames.append(Frame(layer, args, kwargs))
        try:
            output = original(layer, *args, **kwargs)
        finally:
            self.frames.pop()
        if not isinstance(layer, keras.layers.Softmax):
            return output
        mask = args[1] if len(args) > 1 else kwargs.get("mask")
        return self.held(args[0] if args else kwargs["inputs"], output, mask)

    def softmax(self, original: Callable[..., Any], x: Any, axis: Any = -1) -> Any:
        """The backend's softmax."""
        weights = original(x, axis=axis)
        return self.held(x, weights) if axis in (-1, len(x.shape) - 1) else weights

    def fused(self, original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The backend's attention, unless heed computes it and has shown it already."""
        before = len(self.names)
        output = original(*args, **kwargs)
        if len(self.names) != before:
            return output
        return self.show(output, lambda: keras_attention(output, *args, **kwargs))

    def heed(self, spec: AttentionSpec, tensors: Tensors, output: Any) -> Any:
        """An attention of heed's ops."""
        return self.show(output, lambda: FusedAttention(output, spec, tensors))

    def held(self, scores: Any, weights: Any, mask: Any = None) -> Any:
        """Weights that a layer holds."""
        layer = self.frames[-1].layer if self.frames else None
        if not is_attention(layer) or len(weights.shape) < 3:
            return weights
        return self.show(weights, lambda: SoftmaxWeights(layer, weights, scores, mask))

    def show(self, output: Any, describe: Callable[[], Seen]) -> Any:
        """Shows an attention of the chosen layers; returns the output that goes on."""
        from keras.src.backend.common.symbolic_scope import in_symbolic_scope

        if not self.frames or in_symbolic_scope():  # where Keras only works out shapes
            return output
        path = [frame.layer.name for frame in self.frames]
        if not hasattr(output, "numpy"):
            raise RuntimeError(
                f"The layer {path[-1]!r} runs inside a tf.function, where its attention has no values to show. Call "
                "the model without it, or first tf.config.run_functions_eagerly(True). "
                f"Received: a symbolic tensor inside {'/'.join(path)}"
            )
        seen = describe()
        name = self.name(path[1:] or path, seen)
        self.with_attention.update(id(frame.layer) for frame in self.frames)
        if self.layers is not None and not any(_names.answers(x, name) for x in self.layers):
            return output
        cross = _is_cross(self.frames[-1])
        kind = "cross" if cross else "causal" if seen.causal else "self"
        replaced = self.look(name, seen, kind)
        return output if replaced is None else replaced

    def name(self, path: Sequence[str], seen: Seen) -> str:
        """A name for what was seen: one of its own, or that of the single states (B, D) that asked this layer before.

        A recurrent decoder asks at each step; all of its steps are one attention.
        """
        frame = self.frames[-1]
        query = _arguments(frame).get("query")
        key = (id(frame.layer), *path, *seen.sizes)
        single = query is not None and len(query.shape) == 2
        if single and key in self.states:
            return self.states[key]
        name = _names.full_name(path, self.names)
        self.names.append(name)
        if single:
            self.states[key] = name
        return name


_session: ContextVar[Session] = ContextVar("heed_inspect_session")


@contextmanager
def watch(look: Look, layers: Sequence[str] | None) -> Iterator[Session]:
    """Shows `look` each attention that Keras layers, called by this thread, compute meanwhile.

    Args:
        look: what looks on.
        layers: which layers it is shown, by their full names or the ends of them; None for all.

    Raises:
        RuntimeError: if Keras has another backend than TensorFlow.
    """
    if keras.config.backend() != "tensorflow":
        raise RuntimeError(
            "heed.inspect needs Keras on its TensorFlow backend. "
            f"Received: keras.config.backend()={keras.config.backend()!r}"
        )
    session = Session(look, layers)
    token = _session.set(session)
    try:
        with watching(session.heed), activate(_patches()):
            yield session
    finally:
        _session.reset(token)


@functools.cache
def _patches() -> list[ContextPatch]:
    nn = backend_module("nn")

    def patch(owner: Any, name: str, method: Callable[..., Any]) -> ContextPatch:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *args, **kwargs: method(_session.get(), original, *args, **kwargs)

        return ContextPatch(owner, name, make)

    return [
        patch(keras.layers.Layer, "__call__", Session.layer),
        patch(nn, "softmax", Session.softmax),
        patch(nn, "dot_product_attention", Session.fused),
    ]


def is_attention(layer: Any) -> bool:
    """Whether a softmax inside this layer gives attention weights: by the name of its class, or of one above it."""
    return any("attention" in kind.__name__.lower() for kind in type(layer).__mro__)


def _is_cross(frame: Frame) -> bool:
    """Whether the layer reads another sequence than that of its queries."""
    given = _arguments(frame)
    if "query" in given:
        others = [given[name] for name in ("value", "key") if given.get(name) is not None]
        # Without a value the layer reads what was projected before: a cache of another sequence.
        return not others or not all(_same(given["query"], x) for x in others)
    first = next(iter(given.values()), None)
    if isinstance(first, (list, tuple)):
        return not all(_same(first[0], x) for x in first[1:])
    return any(
        x is not None and any(word in name for word in _SOURCES) and "mask" not in name
        for name, x in given.items()
    )


def _arguments(frame: Frame) -> dict[str, Any]:
    """The arguments of a call by their names, as far as they can be told."""
    try:
        bound = inspect.signature(frame.layer.call).bind_partial(*frame.args, **frame.kwargs)
    except (TypeError, ValueError):
        return {}
    return bound.arguments


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if tuple(one.shape) != tuple(other.shape):
        return False
    one, other = (keras.ops.cast(x, "float32") for x in (one, other))
    return bool(np.array_equal(one, other))
