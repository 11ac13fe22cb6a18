"""The decoder engine of the core, `native/include/heed_decoder.h`: NumPy arrays in and out.

Structures are those of the header, field by field; see there for their meaning.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
import weakref
from collections.abc import Callable
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_void_p,
)
from typing import Any

import numpy as np

from heed.ops.core import description
from heed.ops.core.description import (
    ACTIVATIONS,
    METHODS,
    Batch,
    DecoderAttention,
    DecoderLayer,
    DecoderStack,
    Integers,
    Positions,
    ScoreOptions,
    Search,
)
from heed.ops.core.library import check, load
from heed.weights import CACHES, WEIGHTS

# Gets a null pointer, the target and its next token; 0 ends the target there.
OnToken = ctypes.CFUNCTYPE(c_int32, c_void_p, c_int64, c_int32)


class Dense(Structure):
    """`HeedDense`."""

    _fields_ = (
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("inputs", c_int64),
        ("outputs", c_int64),
        ("transposed", c_int32),
        ("whole", c_void_p),
        ("factors", c_void_p),
        ("factor_inputs", c_int64),
    )


class Norm(Structure):
    """`HeedNorm`."""

    _fields_ = (
        ("gamma", c_void_p),
        ("beta", c_void_p),
        ("epsilon", c_double),
        ("root_mean_square", c_int32),
    )


# How an option of scores travels, by the type of its field.
_BY_TYPE: dict[str, Any] = {"Any": c_void_p, "float | None": c_double, "int | None": c_int64}
_SCORE_OPTIONS: Any = tuple(
    (x.name, _BY_TYPE[str(x.type)]) for x in dataclasses.fields(ScoreOptions)
)


class Options(Structure):
    """`HeedScoreOptions`."""

    _fields_ = _SCORE_OPTIONS


class Attention(Structure):
    """`HeedDecoderAttention`."""

    _fields_ = (
        *((name, Dense) for name in ("query", "key", "value", "output", "gate")),
        ("query_norm", Norm),
        ("key_norm", Norm),
        ("options", Options),
        ("scale", c_double),
        ("rotation", c_int32),
    )


_NORMS = (
    "self_norm",
    "cross_norm",
    "feed_forward_norm",
    "self_post_norm",
    "feed_forward_post_norm",
)


_SHARED = ("shared_hidden", "shared_up", "shared_back", "shared_gate")


class Experts(Structure):
    """`HeedExperts`."""

    _fields_ = (
        ("count", c_int64),
        ("top_k", c_int64),
        ("router", Dense),
        ("normalized", c_int32),
        *((name, Dense) for name in _SHARED),
    )


class Layer(Structure):
    """`HeedDecoderLayer`."""

    _fields_ = (
        *((name, Norm) for name in _NORMS[:3]),
        ("self", Attention),
        ("cross", Attention),
        *((name, Dense) for name in ("hidden", "up", "back")),
        ("activation", c_int32),
        ("norm_first", c_int32),
        ("parallel", c_int32),
        *((name, Norm) for name in _NORMS[3:]),
        ("experts", Experts),
        ("gate_limit", c_double),
        ("up_offset", c_double),
    )


class Stack(Structure):
    """`HeedDecoderStack`."""

    _fields_ = (
        *((name, c_int64) for name in ("width", "heads", "kv_heads", "head_dim", "value_dim")),
        ("encoded_width", c_int64),
        ("vocabulary", c_int64),
        ("embedding", c_void_p),
        ("embedding_scale", c_double),
        ("pack", c_int32),
        ("layer_count", c_int32),
        ("layers", c_void_p),
        ("embedding_norm", Norm),
        ("final_norm", Norm),
        ("logits", Dense),
        ("logit_soft_cap", c_double),
        ("rotary_dim", c_int64),
        ("encoder", c_void_p),
        ("in_place", c_int32),
    )


class Decoding(Structure):
    """`HeedDecoding`."""

    _fields_ = (
        *((name, c_int64) for name in ("batch", "length", "source_length")),
        *((name, c_void_p) for name in ("source", "encoded", "source_mask")),
        *((name, c_void_p) for name in ("positions", "rotation", "relative_bias")),
        *((f"source_{name}", c_void_p) for name in ("positions", "rotation", "relative_bias")),
        *((name, c_int32) for name in ("pad_token", "start_token", "end_token")),
        ("prompt", c_void_p),
        ("search", c_int32),
        ("uniform", c_void_p),
        ("temperature", c_double),
        ("top_p", c_double),
        ("top_k", c_int64),
        ("beams", c_int32),
        ("length_penalty", c_double),
        ("results", c_int32),
        ("on_token", OnToken),
        ("listener", c_void_p),
        ("first_tokens", c_void_p),
        ("stop_tokens", c_void_p),
        ("stop_count", c_int64),
        ("top_p_of_all", c_int32),
        ("rotations", c_int32),
        ("tokens_read", c_void_p),
        ("min_p", c_double),
        ("cache", c_int32),
    )


# The numbers of it by name: an option of `generate` of the same name travels in it.
SEARCH_NUMBERS = frozenset(
    name for name, kind, *_ in Decoding._fields_ if kind in (c_double, c_int32, c_int64)
)


@functools.cache
def _library() -> Any:
    """Return the core library with the types of the engine's functions."""
    library = load()[0]
    library.heed_decoder_make.argtypes = [POINTER(Stack), POINTER(c_void_p)]
    library.heed_decode.argtypes = [c_void_p, POINTER(Decoding), c_void_p, c_void_p, c_int]
    library.heed_decoder_free.argtypes = [c_void_p]
    library.heed_decoder_free.restype = None
    for name in ("heed_decoder_make", "heed_decode"):
        getattr(library, name).restype = c_char_p
    return library


class PackedDecoder:
    """A decoder, and the encoder of its sources, with weights that are packed for the processor.

    Several threads may use it at once. It copies weights, but holds and reads in place the embeddings and, of a stack
    of "float32" with HEED_LEAST_IN_PLACE weights (see `heed_decoder.h`), the kernels of dense layers. Where their
    numbers change, it reads the new ones from then on, also in the middle of a decoding.

    Args:
        decoder: with float32 arrays as weights.
        encoder: likewise; None where there are no sources or they come encoded.

    Raises:
        ValueError: if a weight has another size than the others make it, or a size is out of its range.
    """

    def __init__(self, decoder: DecoderStack, encoder: DecoderStack | None) -> None:
        self._handle = c_void_p()
        self._stacks = _read_in_place(decoder), None if encoder is None else _read_in_place(encoder)
        stacks = describe(decoder, encoder, address_of)
        start = ctypes.addressof(stacks)
        for stack, name in ((stacks.decoder, "decoder"), (stacks.encoder, "encoder")):
            stack.layers = start + getattr(type(stacks), f"{name}_layers").offset
        if encoder is not None:
            stacks.decoder.encoder = start + type(stacks).encoder.offset
        self._encoded_width = stacks.decoder.encoded_width
        library = _library()
        check(library.heed_decoder_make(stacks.decoder, ctypes.byref(self._handle)))
        # Not `__del__`, which finds the module empty when the process ends. Nothing is freed then: threads may decode.
        weakref.finalize(self, library.heed_decoder_free, self._handle).atexit = False

    def decode(
        self,
        batch: Batch,
        search: Search,
        threads: int,
        on_token: Callable[[int, int], bool] | None = None,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return tokens (B, N, L) int32, padded after the end; and their scores (B, N) float32, or None.

        Args:
            batch: of arrays.
            search: how to choose tokens.
            threads: the most threads to use; 0 for all that the process may use.
            on_token: called with a target (an index of the batch) and its next token, as soon as it is decoded, from
                one of these threads; False ends the target there. Not of a beam search.

        Raises:
            ValueError: if an array has another shape than the others make it, or the engine refuses what it holds.
        """
        decoding, held = describe_decoding(batch, search, *self._stacks, self._encoded_width)
        callback = OnToken() if on_token is None else OnToken(lambda _, row, x: on_token(row, x))
        decoding.on_token = callback
        rows = batch.source.shape[0]
        tokens = np.empty((rows, search.results, search.length), np.int32)
        scores = np.empty(tokens.shape[:2], np.float32) if search.return_scores else None
        check(
            _library().heed_decode(
                self._handle, decoding, address_of(tokens), address_of(scores), threads
            )
        )
        del held
        return tokens, scores


def _read_in_place(stack: DecoderStack) -> DecoderStack:
    """Return a stack with the weights that the core may read in place, and its sizes."""
    if stack.weights == "float32":
        return stack
    return dataclasses.replace(stack, layers=(), logits=None)


def address_of(x: np.ndarray | None) -> int | None:
    """Return the address of an array's numbers, which lie one after the other."""
    return None if x is None else x.ctypes.data


def describe(
    decoder: DecoderStack, encoder: DecoderStack | None, address: Callable[[Any], int | None]
) -> Any:
    """Return a structure of both stacks, `.decoder` and `.encoder` (zeros if there is none), and of all their layers.

    Args:
        decoder, encoder: of tensors with known shapes.
        address: returns what stands for the address of a tensor's numbers. Those of layers and encoder stay 0.

    Raises:
        ValueError: if a weight has another size than the others make it.
    """
    layers = [[] if stack is None else stack.layers for stack in (decoder, encoder)]

    class Stacks(Structure):
        _fields_ = (
            ("decoder", Stack),
            ("encoder", Stack),
            ("decoder_layers", Layer * len(layers[0])),
            ("encoder_layers", Layer * len(layers[1])),
        )

    made = Stacks()
    writer = _Writer(address)
    encoded_width = 0
    if encoder is not None:
        writer.fill("encoder", made.encoder, made.encoder_layers, encoder, 0)
        encoded_width = made.encoder.width
    elif layers[0] and (cross := layers[0][0].cross_attention) is not None:
        encoded_width = cross.key.kernel.shape[0]
    writer.fill("decoder", made.decoder, made.decoder_layers, decoder, encoded_width)
    return made


class _Writer:
    """Writes stacks into structures; paths such as "decoder/layer_0/self_attention/query" are for messages."""

    def __init__(self, address: Callable[[Any], int | None]) -> None:
        self._address = address

    def fill(
        self, path: str, to: Stack, layers: Any, stack: DecoderStack, encoded_width: int
    ) -> None:
        """Write a stack and its layers."""
        shape = tuple(stack.embedding.shape)
        if len(shape) != 2:
            raise ValueError(
                f"`{path}/embedding` must have shape (vocabulary, D). Received: shape {shape}"
            )
        to.vocabulary, to.width = shape
        to.encoded_width = encoded_width
        for name in ("heads", "kv_heads", "head_dim", "value_dim", "embedding_scale"):
            setattr(to, name, getattr(stack, name))
        to.embedding = self._address(stack.embedding)
        to.pack, to.layer_count = WEIGHTS.index(stack.weights), len(layers)
        for index, (layer, given) in enumerate(zip(layers, stack.layers, strict=True)):
            self._layer(f"{path}/layer_{index}", layer, to, given)
        to.embedding_norm = self._norm(f"{path}/embedding_norm", stack.embedding_norm, to.width)
        to.final_norm = self._norm(f"{path}/final_norm", stack.final_norm, to.width)
        to.logit_soft_cap, to.rotary_dim = stack.logit_soft_cap or 0, stack.rotary_dim or 0
        to.logits = self._dense(f"{path}/logits", stack.logits, to.width, to.vocabulary)

    def _layer(self, path: str, to: Layer, stack: Stack, layer: DecoderLayer) -> None:
        for name in _NORMS:
            setattr(to, name, self._norm(f"{path}/{name}", getattr(layer, name), stack.width))
        for name, width in (("self", stack.width), ("cross", stack.encoded_width)):
            attention = getattr(layer, f"{name}_attention")
            if attention is not None:
                whole = f"{path}/{name}_attention"
                setattr(to, name, self._attention(whole, stack, attention, width))
        copies = 1
        if layer.experts is not None:
            to.experts = self._experts(f"{path}/experts", stack, layer.experts)
            copies = layer.experts.count
        hidden = math.prod(layer.hidden.kernel.shape) // max(copies * stack.width, 1)
        to.hidden = self._dense(f"{path}/hidden", layer.hidden, stack.width, hidden, copies)
        to.up = self._dense(f"{path}/up", layer.up, stack.width, hidden, copies)
        to.back = self._dense(f"{path}/back", layer.back, hidden, stack.width, copies)
        to.gate_limit, to.up_offset = layer.gate_limit or 0, layer.up_offset
        to.activation = ACTIVATIONS.index(layer.activation)
        to.norm_first, to.parallel = layer.norm_first, layer.parallel

    def _experts(self, path: str, s: Stack, given: description.Experts) -> Experts:
        made = Experts(count=given.count, top_k=given.top_k, normalized=given.normalized)
        made.router = self._dense(f"{path}/router", given.router, s.width, given.count)
        if given.shared_hidden is not None:
            hidden = math.prod(given.shared_hidden.kernel.shape) // max(s.width, 1)
            inputs = (s.width, s.width, hidden, s.width)
            outputs = (hidden, hidden, s.width, 1)
            for name, *sizes in zip(_SHARED, inputs, outputs, strict=True):
                setattr(made, name, self._dense(f"{path}/{name}", getattr(given, name), *sizes))
        return made

    def _attention(self, path: str, s: Stack, given: DecoderAttention, width: int) -> Attention:
        keys, attended = s.kv_heads * s.head_dim, s.heads * s.value_dim
        sizes = {
            "query": (s.width, s.heads * s.head_dim),
            "key": (width, keys),
            "value": (width, s.kv_heads * s.value_dim),
            "output": (attended, s.width),
            "gate": (s.width, attended),
        }
        return Attention(
            **{
                name: self._dense(f"{path}/{name}", getattr(given, name), *size)
                for name, size in sizes.items()
            },
            query_norm=self._norm(f"{path}/query_norm", given.query_norm, s.head_dim),
            key_norm=self._norm(f"{path}/key_norm", given.key_norm, s.head_dim),
            options=self._options(path, given, s.heads),
            scale=given.scale or 0,
            rotation=-1 if given.rotation is None else given.rotation,
        )

    def _options(self, path: str, given: ScoreOptions, heads: int) -> Options:
        made = Options()
        for name, kind in _SCORE_OPTIONS:
            value = getattr(given, name)
            if kind is c_void_p:
                value = self._weight(f"{path}/{name}", value, heads)
            if value is not None:
                setattr(made, name, value)
        return made

    def _dense(
        self,
        path: str,
        given: description.Dense | None,
        inputs: int,
        outputs: int,
        copies: int = 1,
    ) -> Dense:
        if given is None:
            return Dense()
        made = Dense(
            bias=self._weight(f"{path}/bias", given.bias, copies * outputs),
            inputs=inputs,
            outputs=outputs,
            transposed=given.transposed,
        )
        kernel, count = given.kernel, copies * inputs * outputs
        if isinstance(kernel, Integers):
            groups = -(-inputs // kernel.group)
            made.whole = self._weight(f"{path}/kernel", kernel.whole, count)
            made.factors = self._weight(
                f"{path}/factors", kernel.factors, copies * groups * outputs
            )
            made.factor_inputs = kernel.group
        else:
            made.weight = self._weight(f"{path}/kernel", kernel, count)
        return made

    def _norm(self, path: str, given: description.Norm | None, width: int) -> Norm:
        if given is None:
            return Norm()
        return Norm(
            self._weight(f"{path}/gamma", given.gamma, width),
            self._weight(f"{path}/beta", given.beta, width),
            given.epsilon,
            given.root_mean_square,
        )

    def _weight(self, path: str, x: Any, count: int) -> int | None:
        if x is None:
            return None
        shape = tuple(x.shape)
        if math.prod(shape) != count:
            raise ValueError(f"`{path}` must hold {count} numbers. Received: shape {shape}")
        return self._address(x)


def describe_decoding(
    batch: Batch,
    search: Search,
    decoder: DecoderStack,
    encoder: DecoderStack | None,
    encoded_width: int,
) -> tuple[Decoding, list[Any]]:
    """Return the structure of a batch of arrays and a search, and what must live as long as it.

    Raises:
        ValueError: if an array has another shape than the others make it.
    """
    held: list[np.ndarray] = []
    rows, positions = batch.source.shape

    def place(name: str, x: Any, shape: tuple[int, ...], dtype: Any = np.float32) -> int | None:
        if x is None or 0 in shape:
            return None
        if tuple(x.shape) != shape:
            raise ValueError(
                f"`{name}` must fit the other inputs and the weights, which makes it shape {shape}. "
                f"Received: shape {tuple(x.shape)}"
            )
        held.append(np.ascontiguousarray(x, dtype))
        return address_of(held[-1])

    def tables(prefix: str, given: Positions, stack: DecoderStack, count: int, room: int) -> None:
        rotations = () if given.rotation is None else given.rotation.shape[:-2]
        for name, x, shape in (
            ("positions", given.table, (count, stack.embedding.shape[1])),
            ("rotation", given.rotation, (*rotations, count, stack.rotary_dim or stack.head_dim)),
            ("relative_bias", given.relative_bias, (stack.heads, room)),
        ):
            setattr(made, prefix + name, place(prefix + name, x, shape))

    made = describe_search(search)
    made.batch, made.source_length = rows, positions
    made.source_mask = place("source_mask", batch.source_mask, (rows, positions), np.uint8)
    made.prompt = place("prompt", batch.prompt, (rows, search.length), np.int32)
    made.uniform = place("uniform", batch.uniform, (rows, search.length))
    made.first_tokens = place("first_tokens", batch.first_tokens, (rows,), np.int32)
    made.stop_tokens = place(
        "stop_tokens", np.array(search.stop_tokens), (made.stop_count,), np.int32
    )
    if batch.positions.rotation is not None and batch.positions.rotation.ndim == 3:
        made.rotations = len(batch.positions.rotation)
    tables("", batch.positions, decoder, search.length, search.length)
    if encoder is not None:
        made.source = place("source", batch.source, (rows, positions), np.int32)
        tables("source_", batch.source_positions, encoder, positions, 2 * positions)
    elif encoded_width:
        made.encoded = place("encoded", batch.encoded, (rows, positions, encoded_width))
    return made, held


def describe_search(search: Search) -> Decoding:
    """Return the structure of a search, without a batch."""
    return Decoding(
        length=search.length,
        pad_token=search.pad,
        start_token=search.start,
        end_token=search.end,
        search=METHODS.index(search.method),
        beams=search.beam_size,
        results=search.results,
        stop_count=len(search.stop_tokens),
        cache=CACHES.index(search.cache),
        **search.numbers,
    )
