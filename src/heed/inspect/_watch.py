"""Observes the attention of a running model, including layers of other libraries.

Three hooks see every attention of a Keras model:

- heed's ops report their calls to a watcher (heed's layers, accelerated Keras);
- `keras.ops.dot_product_attention` calls one function of the backend;
- all other layers compute their weights with a softmax inside a layer that is an attention.

`keras.layers.Layer.__call__` tells which layer is running, and gives the places of the residual stream. While a model
runs, these functions of Keras are patched for its thread; they compute what they always do. So are Keras' loops,
because JAX compiles them.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import numpy as np

from heed.inspect import _names
from heed.inspect._blocks import find_parts, find_projection, is_attention, is_norm
from heed.inspect._observed import FusedAttention, ObservedAttention, SoftmaxAttention
from heed.keras_modules import backend_module, recurrent_backend
from heed.layers.masks import carry, implicit_mask
from heed.ops.backends import current
from heed.ops.observe import set_watcher
from heed.ops.spec import AttentionSpec, Tensors
from heed.patching import ContextPatch, Function, activate, set_here

# Names of arguments that hold another sequence than the layer's own.
_SOURCES = ("key_value", "encoder", "encoded", "context", "memory")
# Gets the full name of each attention, the attention, and "self", "causal" or "cross". What it returns replaces the
# output, unless it is None. The steps of a recurrent decoder come one by one, under one name.
Observer = Callable[[str, ObservedAttention, str], Any]


class Place(NamedTuple):
    """A place where a running model has a tensor that can be recorded or replaced.

    Its full name is that of a block of the model and "input", "output", "attention_output", "cross_attention_output" or
    "feed_forward_output"; or that of an attention and "heads" or "weights"; or that of a normalisation and "norm_input"
    or "norm_output".
    """

    name: str
    layer: Any  # that is called there; of heads and weights the attention layer
    attention: ObservedAttention | None = None  # of heads and weights
    raw_shape: tuple[int, ...] = ()  # in which the layer has its heads

    @property
    def part(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def owner(self) -> str:
        return self.name.rpartition("/")[0]

    def shape(self, x: Any) -> Any:
        """Return a tensor of this place as taps get it."""
        if self.part != "heads" or self.attention is None:
            return x
        B, N, T, _ = self.attention.sizes
        shape = (B, T, N, math.prod(x.shape) // (B * T * N) if B * T * N else x.shape[-1])
        return x if tuple(x.shape) == shape else keras.ops.reshape(x, shape)


# Gets a place and its tensor, (B, T, D), or for heads (B, T, N, V); for weights an `ObservedAttention`, of which it
# returns another. What it returns is used in place of the tensor, unless it is None.
Tap = Callable[[Place, Any], Any]


class Returned(NamedTuple):
    """What a block returned."""

    output: Any
    names: Sequence[str]  # of the attentions that ran in it
    blocks: Sequence[str]  # that ran in it


@dataclass(eq=False)
class Frame:
    """A layer that is being called."""

    layer: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    parts: Mapping[Any, str] = field(default_factory=dict)  # of a block, see `find_parts`
    name: str = ""  # the full name of a block
    norm: str = ""  # the full name of a normalisation
    before: tuple[int, int] = (0, 0)  # how many attentions and blocks had run before a block
    heads: Place | None = None  # of an attention, from when they are computed until they are used

    @property
    def first(self) -> Any:
        return self.args[0] if self.args else next(iter(_bind_arguments(self).values()), None)

    def replace_first(self, x: Any) -> None:
        if self.args:
            self.args = (x, *self.args[1:])
        else:
            self.kwargs = {**self.kwargs, next(iter(_bind_arguments(self))): x}


@dataclass(eq=False)
class Session:
    """The observation of one run of a model."""

    observer: Observer | None = None  # gets the attentions; None where only taps are wanted
    # names of the layers to report, see `heed.inspect._names.selects`; None for all
    layers: Sequence[str] | None = None
    # whether the run is traced, for its derivative. Nothing has values then, and no kind is determined: the observer
    # gets "".
    traced: bool = False
    # get the tensors of all places, each what the taps before it made of them
    taps: Sequence[Tap] = ()
    # what blocks return by full name, instead of being called
    outputs: Mapping[str, Returned] = field(default_factory=dict)
    kept: dict[str, Returned] | None = None  # gets what each block returns, by full name
    norms: bool = False  # whether the inputs and outputs of normalisations are places too

    def __post_init__(self) -> None:
        self.frames: list[Frame] = []
        self.names: list[str] = []  # of all attentions that ran
        self.blocks: list[str] = []  # the names of all blocks that ran
        self.places: dict[str, None] = {}  # the names of all places that were tapped
        self.steps: dict[tuple[Any, ...], str] = {}  # names of those that single steps call
        self.with_attention: set[Any] = set()  # the layers around them
        self.without_values = False  # whether an attention ran in a compiled function
        self.error: Exception | None = None  # of a tap or the observer

    def call_layer(self, original: Function, layer: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Replace `keras.layers.Layer.__call__`; a softmax layer inside an attention gives weights."""
        frame, outer = Frame(layer, args, kwargs), self.frames[-1] if self.frames else None
        if outer is None:  # another call of the model
            self.names, self.blocks, self.steps, self.error = [], [], {}, None
        tapped = bool(self.taps) and not _is_symbolic()
        own: Exception | None = None
        self.frames.append(frame)
        try:
            if tapped:
                self.enter(frame, outer)
            if frame.name in self.outputs:
                output, names, blocks = self.outputs[frame.name]
                # As if they had run: a layer that is called again keeps the name of its second call.
                self.names.extend(names)
                self.blocks.extend(blocks)
            else:
                output = original(layer, *frame.args, **frame.kwargs)
            if tapped:
                output = self.leave(frame, outer, output)
        except Exception as error:
            # Keras adds the arguments of the layers around, which say nothing of this one.
            if outer is not None or self.error is None or str(self.error) not in str(error):
                raise
            own = self.error
        finally:
            self.frames.pop()
        if own is not None:
            raise own  # not in the handler, where it would lose its own cause
        if not isinstance(layer, keras.layers.Softmax):
            return output
        mask = args[1] if len(args) > 1 else kwargs.get("mask")
        return self.observe_softmax(args[0] if args else kwargs["inputs"], output, mask)

    def enter(self, frame: Frame, outer: Frame | None) -> None:
        """Tap the first argument of a layer: the input of a block, or the heads of an attention."""
        place = None
        if outer is not None and outer.heads and frame.layer is find_projection(outer.layer):
            place, outer.heads = outer.heads, None
        elif hasattr(frame.first, "shape") and (parts := find_parts(frame.layer)):
            path = self.find_path()
            self.check_values(frame.first)
            frame.parts, frame.name = parts, _names.make_full_name(path, self.blocks)
            self.blocks.append(frame.name)
            frame.before = len(self.names), len(self.blocks)
            place = Place(f"{frame.name}/input", frame.layer)
        elif self.norms and is_norm(frame.layer) and hasattr(frame.first, "shape"):
            frame.norm = _names.make_full_name(self.find_path(), self.blocks)
            self.blocks.append(frame.norm)
            place = Place(f"{frame.norm}/norm_input", frame.layer)
        if place is not None:
            x = self.tap(place, frame.first)
            if x is not frame.first:
                frame.replace_first(x)

    def leave(self, frame: Frame, outer: Frame | None, output: Any) -> Any:
        """Tap the output of a layer: of a block, of its parts, and of an attention that projects no heads."""
        if frame.heads is not None:
            output = self.tap_first(frame.heads, output)
        if frame.norm:
            output = self.tap_first(Place(f"{frame.norm}/norm_output", frame.layer), output)
        if outer is not None and frame.layer in outer.parts:
            name = f"{outer.name}/{outer.parts[frame.layer]}"
            output = self.tap_first(Place(name, frame.layer), output)
        if frame.name:
            output = self.tap_first(Place(f"{frame.name}/output", frame.layer), output)
            if self.kept is not None:
                names, blocks = frame.before
                self.kept[frame.name] = Returned(output, self.names[names:], self.blocks[blocks:])
        return output

    def tap_first(self, place: Place, output: Any) -> Any:
        if isinstance(output, (tuple, list)):
            return type(output)([self.tap(place, output[0]), *output[1:]])
        return self.tap(place, output)

    def tap(self, place: Place, x: Any) -> Any:
        """Show a tensor to each tap; return the one to go on with."""
        self.places[place.name] = None
        shaped = found = place.shape(x)
        if place.part == "heads":
            place = place._replace(raw_shape=tuple(x.shape))
        with self.own_errors():
            for tap in self.taps:
                new = tap(place, found)
                found = found if new is None else new
        if found is shaped:
            return x
        if place.part == "weights":
            return found
        found = keras.ops.reshape(keras.ops.cast(found, x.dtype), x.shape)
        carry(found, implicit_mask(x))
        return found

    def call_softmax(self, original: Function, x: Any, axis: Any = -1) -> Any:
        weights = original(x, axis=axis)
        return self.observe_softmax(x, weights) if axis in (-1, len(x.shape) - 1) else weights

    def call_attention(self, original: Function, /, *args: Any, **kwargs: Any) -> Any:
        """Return the backend's attention, unless it runs on heed's op, which reports itself."""
        before = len(self.names)
        output = original(*args, **kwargs)
        if len(self.names) != before:
            return output
        return self.observe(output, lambda: FusedAttention.from_keras(output, *args, **kwargs))

    def call_loop(self, original: Function, /, *args: Any, **kwargs: Any) -> Any:
        """Return a loop of the backend. JAX compiles it, so it runs again step by step if there is attention inside."""
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
        return self.observe(output, lambda: FusedAttention(output, spec, tensors))

    def observe_softmax(self, scores: Any, weights: Any, mask: Any = None) -> Any:
        """Return the result of a softmax, which may be the weights of an attention."""
        layer = self.frames[-1].layer if self.frames else None
        if not is_attention(layer) or len(weights.shape) < 3:
            return weights
        return self.observe(weights, lambda: SoftmaxAttention(layer, weights, scores, mask))

    def observe(self, output: Any, describe: Callable[[], ObservedAttention]) -> Any:
        """Report an attention of the chosen layers; return the output for the model to use."""
        if not self.frames or _is_symbolic():  # Keras only infers shapes
            return output
        path = self.find_path()
        self.check_values(output)
        attention = describe()
        name = self.choose_name(path, attention)
        self.with_attention.update(frame.layer for frame in self.frames)
        if self.taps:
            attention = self.tap_attention(name, attention)
            output = attention.output
        if self.observer is None:
            return output
        if self.layers is not None and not any(_names.selects(x, name) for x in self.layers):
            return output
        with self.own_errors():
            replaced = self.observer(name, attention, self.find_kind(attention))
        return output if replaced is None else replaced

    @contextmanager
    def own_errors(self) -> Iterator[None]:
        """Remember an error that is not one of the model."""
        try:
            yield
        except Exception as error:
            self.error = error
            raise

    def tap_attention(self, name: str, attention: ObservedAttention) -> ObservedAttention:
        """Tap the weights, and the heads where they are: here, or before a projection, or at the end of the layer."""
        frame = self.frames[-1]
        attention = self.tap(Place(f"{name}/weights", frame.layer, attention), attention)
        place = Place(f"{name}/heads", frame.layer, attention)
        if attention.is_projected_by(find_projection(frame.layer)):
            frame.heads = place
        elif isinstance(attention, FusedAttention):
            heads = attention.heads
            new = self.tap(place, heads)
            return attention if new is heads else attention.replace_heads(new)
        elif attention.sizes[1] == 1:
            frame.heads = place
        return attention

    def find_path(self) -> list[str]:
        """Return the names of the layers that run, without that of the model."""
        path = [frame.layer.name for frame in self.frames]
        return path[1:] or path

    def check_values(self, x: Any) -> None:
        """Raise a RuntimeError if a tensor has no values, inside a compiled function."""
        if self.traced or isinstance(x, np.ndarray) or current().has_values(x):
            return
        self.without_values = True
        path = [frame.layer.name for frame in self.frames]
        self.error = RuntimeError(
            f"The layer {path[-1]!r} runs inside a compiled function (tf.function, jax.jit, torch.compile), where "
            "its attention has no values to show. Call the model without it; on TensorFlow "
            "tf.config.run_functions_eagerly(True) does, too. "
            f"Received: a symbolic tensor inside {'/'.join(path)}"
        )
        raise self.error

    def find_kind(self, attention: ObservedAttention) -> str:
        if self.traced:
            return ""
        cross = _is_cross(self.frames[-1])
        return "cross" if cross else "causal" if attention.causal else "self"

    def choose_name(self, path: Sequence[str], attention: ObservedAttention) -> str:
        """Return a new name, or that of the earlier steps of a recurrent decoder, whose query is (B, D)."""
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
_taps: ContextVar[tuple[Tap, ...]] = ContextVar("heed_inspect_taps", default=())


@contextmanager
def watch(session: Session) -> Iterator[Session]:
    """Observe what Keras layers compute in this thread; the taps of sessions around this one come first."""
    session.taps = (*_taps.get(), *session.taps)
    with (
        set_here(_taps, session.taps),
        set_here(_session, session),
        set_watcher(session.observe_op),
        activate(_patches()),
    ):
        yield session


def is_edited() -> bool:
    """Return whether taps of blocks around this one may change what a model computes."""
    return bool(_taps.get())


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


def _is_symbolic() -> bool:
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope

    return bool(in_symbolic_scope())


def _is_cross(frame: Frame) -> bool:
    """Return whether the layer reads another sequence than its own."""
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
    """Return the arguments of a call by name; empty if the signature is unknown."""
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
