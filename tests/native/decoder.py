"""The decoder engine through `heed_decoder.h` by ctypes, and the same stack in NumPy, in float64, by plain loops."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_void_p
from math import erf
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tests.native.structs import decoder as structs

PAD, START, END = 0, 1, 2
DenseStruct, NormStruct, AttentionStruct = structs.Dense, structs.Norm, structs.Attention
ExpertsStruct, LayerStruct, StackStruct = structs.Experts, structs.Layer, structs.Stack
DecodingStruct, TokenListener = structs.Decoding, structs.OnToken
PACKS = ("float32", "bfloat16", "int8", "int4")
INTEGERS = PACKS[2:]
BLOCK = 32  # inputs with a factor of their own, in formats of integers
CACHES = ("float32", "bfloat16", "int8")
CACHE_BLOCK = 32  # keys that share factors
ACTIVATIONS = {
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(erf, otypes=[float])(x / np.sqrt(2))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
}
NORMS = ("self_norm", "cross_norm", "feed_forward_norm")
POST_NORMS = ("self_post_norm", "feed_forward_post_norm")
DENSE = ("query", "key", "value", "output", "gate")
POSITIONS = ("positions", "rotation", "relative_bias")
SOURCE_POSITIONS = tuple(f"source_{name}" for name in POSITIONS)


class Dense(NamedTuple):
    weight: np.ndarray
    bias: np.ndarray | None
    transposed: bool = False
    pack: str = "float32"
    # Integers like `weight` and factors (1, outputs), which the engine gets in place of it.
    given: tuple[np.ndarray, np.ndarray] | None = None

    def __call__(self, x: np.ndarray) -> np.ndarray:
        weight = self.weight.T if self.transposed else self.weight
        if self.pack in ("int8", "int4"):
            x = rounded_inputs(x)
        return x @ rounded(weight, self.pack) + (0 if self.bias is None else self.bias)

    def struct(self) -> DenseStruct:
        shape = self.weight.shape[-2:]
        shape = shape[::-1] if self.transposed else shape
        made = DenseStruct(address(self.weight), address(self.bias), *shape, self.transposed)
        if self.given is not None:
            made.weight, made.factor_inputs = None, shape[0]
            made.whole, made.factors = map(address, self.given)
        return made


def rounded(weight: np.ndarray, pack: str) -> np.ndarray:
    """Return weights (inputs, outputs) as they are once they are packed."""
    if pack == "bfloat16":
        return weight.astype(ml_dtypes.bfloat16).astype(float)
    if pack == "float32":
        return weight.astype(float)
    blocks = in_blocks(weight.astype(np.float32))  # (blocks, 32, outputs)
    most = np.take_along_axis(blocks, abs(blocks).argmax(1, keepdims=True), 1)
    factor = abs(most) / np.float32(127) if pack == "int8" else most / np.float32(-8)
    scaled = blocks * np.divide(1, factor, out=np.zeros_like(factor), where=factor != 0)
    if pack == "int8":  # halves are rounded away from zero
        whole = np.trunc(scaled + np.copysign(np.float32(0.5), scaled))
    else:
        whole = np.minimum(np.trunc(scaled + np.float32(8.5)), 15) - 8
    # Factors are float16 times a power of two, so that the largest of a column is in [2^14, 2^15).
    power = np.ldexp(1.0, np.frexp(abs(factor).max(0))[1] - 15)
    narrow = (factor / power).astype(np.float16).astype(float) * power
    return (whole * narrow).reshape(-1, weight.shape[1])[: len(weight)]


def rounded_inputs(x: np.ndarray) -> np.ndarray:
    """Return rows (rows, inputs) as formats of integers round them: in blocks, to [-127, 127] times a factor."""
    blocks = in_blocks(x.T)
    return to_bytes(blocks, 1).reshape(len(blocks) * BLOCK, len(x))[: x.shape[1]].T


def in_blocks(x: np.ndarray) -> np.ndarray:
    """Return rows in blocks, (blocks, 32, columns), the last one padded with zeros."""
    blocks = -(-len(x) // BLOCK)
    padding = np.zeros((blocks * BLOCK - len(x), x.shape[1]), x.dtype)
    return np.concatenate([x, padding]).reshape(blocks, BLOCK, x.shape[1])


def kept(keys: np.ndarray, values: np.ndarray, cache: str) -> tuple[np.ndarray, np.ndarray]:
    """Return keys (S, K, H) and values (S, K, V) as a cache of this format keeps them."""
    if cache == "bfloat16":
        keys, values = (x.astype(ml_dtypes.bfloat16).astype(float) for x in (keys, values))
    if cache == "int8":
        full = len(keys) // CACHE_BLOCK * CACHE_BLOCK
        blocks = keys[:full].reshape(-1, CACHE_BLOCK, *keys.shape[1:])
        keys = np.concatenate([to_bytes(blocks, 1).reshape(full, *keys.shape[1:]), keys[full:]])
        values = to_bytes(values, -1)
    return keys, values


def to_bytes(x: np.ndarray, axis: int) -> np.ndarray:
    """Return numbers rounded to 127ths of the largest along an axis."""
    factor = np.abs(x).max(axis, keepdims=True) / 127
    return np.rint(x / np.where(factor == 0, 1, factor)) * factor


class Norm(NamedTuple):
    gamma: np.ndarray
    beta: np.ndarray | None
    root_mean_square: bool = False

    def __call__(self, x: np.ndarray) -> np.ndarray:
        rest = x if self.root_mean_square else x - x.mean(-1, keepdims=True)
        scaled = rest / np.sqrt((rest**2).mean(-1, keepdims=True) + 1e-6)
        return scaled * self.gamma + (0 if self.beta is None else self.beta)

    def struct(self) -> NormStruct:
        return NormStruct(address(self.gamma), address(self.beta), 1e-6, self.root_mean_square)


class Experts(NamedTuple):
    """A mixture of feed-forward parts, and one that all tokens take."""

    router: Dense
    each: list[dict[str, Dense]]
    shared: dict[str, Dense]
    top_k: int
    normalized: bool

    def __call__(self, x: np.ndarray, feed: Any) -> np.ndarray:
        shares = np.exp(self.router(x))
        shares /= shares.sum(-1, keepdims=True)
        least = np.sort(shares, -1)[:, -self.top_k, None]
        shares = np.where(shares >= least, shares, 0)
        if self.normalized:
            shares /= shares.sum(-1, keepdims=True)
        made = sum(shares[:, e, None] * feed(x, part) for e, part in enumerate(self.each))
        if self.shared:
            made = made + feed(x, self.shared) / (1 + np.exp(-self.shared["gate"](x)))
        return made

    def struct(self) -> ExpertsStruct:
        shared = {f"shared_{name}": dense.struct() for name, dense in self.shared.items()}
        router = self.router.struct()
        return ExpertsStruct(
            len(self.each), self.top_k, router, normalized=self.normalized, **shared
        )


class Attention(NamedTuple):
    """Projections of an attention, and what bounds, hides and joins its scores."""

    dense: dict[str, Dense]
    norms: dict[str, Norm]
    sinks: np.ndarray | None
    soft_cap: float
    window: int
    scale: float = 0.0
    rotation: int = 0

    def normed(self, name: str, heads: np.ndarray) -> np.ndarray:
        return self.norms[name](heads) if name in self.norms else heads

    def struct(self) -> AttentionStruct:
        parts = {**self.dense, **self.norms}
        return AttentionStruct(
            **{name: part.struct() for name, part in parts.items()},
            options=structs.Options(address(self.sinks), self.soft_cap, self.window),
            scale=self.scale,
            rotation=self.rotation,
        )


def declare(library: Any) -> Any:
    """Return the library, whose functions of the engine are known by their types."""
    library.heed_decoder_make.argtypes = [POINTER(StackStruct), POINTER(c_void_p)]
    library.heed_decode.argtypes = [c_void_p, POINTER(DecodingStruct), c_void_p, c_void_p, c_int]
    library.heed_decoder_free.argtypes = [c_void_p]
    library.heed_decoder_free.restype = None
    for name in ("heed_decoder_make", "heed_decode"):
        getattr(library, name).restype = c_char_p
    return library


def layers_of(stack: Any) -> Any:
    """Return the structures of a stack's layers."""
    return (LayerStruct * stack.layer_count).from_address(stack.layers)


def address(x: np.ndarray | None) -> int | None:
    return None if x is None else x.ctypes.data


class Stack:
    """A stack of random weights, as structs and as a computation."""

    def __init__(self, rng: np.random.Generator, **sizes: Any) -> None:
        self.rng, self.place = rng, sizes.get("place", lambda x: x)
        self.kv_heads, queries_per_kv = sizes.get("kv_heads", 1), sizes.get("queries_per_kv", 2)
        self.heads = self.kv_heads * queries_per_kv
        self.head_dim, self.value_dim = sizes.get("head_dim", 4), sizes.get("value_dim", 4)
        self.width, self.vocabulary = sizes.get("width", 8), sizes.get("vocabulary", 20)
        self.encoded_width = sizes.get("encoded_width", 8)
        self.rotary_dim = sizes.get("rotary_dim", self.head_dim)
        self.norm_first, self.biased = sizes.get("norm_first", True), sizes.get("biased", True)
        self.activation = sizes.get("activation", "relu")
        self.pack = sizes.get("pack", "float32")
        self.in_place = 0  # as the engine decides; of the encoder, too
        self.options = sizes
        self.encoder: Stack | None = None
        self.kept: list[Any] = []
        if sizes.get("encoder"):
            own = {"width": self.encoded_width, "encoded_width": 0, "encoder": False}
            own |= {"pack": sizes.get("encoder_pack", self.pack), "cache": "float32"}
            self.encoder = Stack(rng, **{**sizes, **own, "vocabulary": 13, "tied": False})
        self.embedding, self.scale = self.numbers(self.vocabulary, self.width), 1.25
        self.layers = [
            self.layer(sizes.get("hidden", 12), i) for i in range(sizes.get("layers", 2))
        ]
        self.embedding_norm = self.norm() if sizes.get("embedding_norm") else None
        self.final_norm = self.norm() if sizes.get("final_norm", True) else None
        if sizes.get("tied", False):
            self.logits = Dense(self.embedding, None, True, self.pack)
        else:
            self.logits = self.dense(self.width, self.vocabulary)

    def numbers(self, *shape: int) -> np.ndarray:
        scale = 0.7 if len(shape) > 1 else 0.2
        return self.place((self.rng.normal(size=shape) * scale).astype(np.float32))

    def dense(self, inputs: int, outputs: int) -> Dense:
        weight = self.numbers(inputs, outputs)
        weight *= (8 / inputs) ** 0.5
        return Dense(weight, self.numbers(outputs) if self.biased else None, False, self.pack)

    def norm(self) -> Norm:
        return self.norm_of(self.width, self.options.get("root_mean_square", False))

    def norm_of(self, width: int, root_mean_square: bool) -> Norm:
        gamma = self.numbers(width)
        gamma += 1
        return Norm(gamma, self.numbers(width) if self.biased else None, root_mean_square)

    def attention(self, width: int, window: int) -> Attention:
        """Draw an attention to vectors of this width."""
        attended = self.heads * self.value_dim
        dense = {
            "query": self.dense(self.width, self.heads * self.head_dim),
            "key": self.dense(width, self.kv_heads * self.head_dim),
            "value": self.dense(width, self.kv_heads * self.value_dim),
            "output": self.dense(attended, self.width),
        }
        if self.options.get("gate"):
            dense["gate"] = self.dense(self.width, attended)
        norms = {}
        if self.options.get("qk_norm"):
            norms = {name: self.norm_of(self.head_dim, True) for name in ("query_norm", "key_norm")}
        sinks = self.numbers(self.heads) if self.options.get("sinks") else None
        cap, scale = self.options.get("soft_cap", 0.0), self.options.get("scale", 0.0)
        return Attention(dense, norms, sinks, cap, window, scale)

    def layer(self, hidden: int, index: int) -> dict[str, Any]:
        parts = {name: self.norm() for name in NORMS}
        if self.options.get("post_norms"):
            parts |= {name: self.norm() for name in POST_NORMS}
        parts["self"] = self.attention(self.width, self.options.get("window", 0))
        if tables := self.options.get("rotations"):  # each layer has its own, the last one none
            rotation = -1 if index == self.options.get("layers", 2) - 1 else index % tables
            parts["self"] = parts["self"]._replace(rotation=rotation)
        if self.encoded_width:
            parts["cross"] = self.attention(self.encoded_width, 0)
        parts["hidden"], parts["back"] = (
            self.dense(self.width, hidden),
            self.dense(hidden, self.width),
        )
        if self.options.get("gated"):
            parts["up"] = self.dense(self.width, hidden)
        if self.options.get("experts"):
            parts["experts"] = self.experts(parts, 3 + hidden // 2)
        return parts

    def experts(self, parts: dict[str, Any], hidden: int) -> Experts:
        """Return some copies of the feed-forward part with weights of their own, and perhaps a part for all tokens."""
        count, names = self.options["experts"], [x for x in ("hidden", "up", "back") if x in parts]
        own = []
        for name in names:
            inputs, outputs = parts[name].weight.shape
            copies = [self.dense(inputs, outputs) for _ in range(count)]
            own.append(copies)
            stacked = [np.stack([getattr(x, part) for x in copies]) for part in ("weight", "bias")]
            parts[name] = Dense(self.place(stacked[0]), self.place(stacked[1]), False, self.pack)
        each = [dict(zip(names, one, strict=True)) for one in zip(*own, strict=True)]
        shared: dict[str, Dense] = {}
        if self.options.get("shared"):
            shared = {"hidden": self.dense(self.width, hidden), "gate": self.dense(self.width, 1)}
            shared["back"] = self.dense(hidden, self.width)
            if "up" in parts:
                shared["up"] = self.dense(self.width, hidden)
        router = self.dense(self.width, count)
        return Experts(router, each, shared, *(self.options[x] for x in ("top_k", "normalized")))

    def struct(self) -> StackStruct:
        if self.encoder is not None:
            self.encoder.in_place = self.in_place
        layers = [
            LayerStruct(
                **{k: x.struct() for k, x in part.items()},
                gate_limit=self.options.get("gate_limit", 0.0),
                up_offset=self.options.get("up_offset", 0.0),
                activation=list(ACTIVATIONS).index(self.activation),
                norm_first=self.norm_first,
                parallel=self.options.get("parallel", False),
            )
            for part in self.layers
        ]
        sizes = (self.width, self.heads, self.kv_heads, self.head_dim, self.value_dim)
        return StackStruct(
            *sizes,
            self.encoded_width,
            self.vocabulary,
            address(self.embedding),
            self.scale,
            PACKS.index(self.pack),
            len(layers),
            self.keep((LayerStruct * max(1, len(layers)))(*layers)),
            NormStruct() if self.embedding_norm is None else self.embedding_norm.struct(),
            NormStruct() if self.final_norm is None else self.final_norm.struct(),
            self.logits.struct(),
            self.options.get("logit_soft_cap", 0.0),
            self.rotary_dim,
            None if self.encoder is None else self.keep(self.encoder.struct()),
            self.in_place,
        )

    def keep(self, struct: Any) -> int:
        self.kept.append(struct)
        return ctypes.addressof(struct)

    def change(self, x: Any, norm: Norm, part: Any, post: Any = None) -> np.ndarray:
        post = post or (lambda y: y)
        return x + post(part(norm(x))) if self.norm_first else norm(x + post(part(x)))

    def attend(
        self, how: Attention, x: Any, queries: Any, keys: Any, values: Any, hidden: Any, bias: Any
    ) -> np.ndarray:
        """Attend for (T, N, H), (S, K, H), (S, K, V), a bias (N, T, S); 0 where all is hidden."""
        keys, values = (np.repeat(x, self.heads // self.kv_heads, axis=1) for x in (keys, values))
        scale = how.scale or 1 / np.sqrt(self.head_dim)
        scores = np.einsum("tnh,snh->nts", queries, keys) * scale
        if how.soft_cap:
            scores = how.soft_cap * np.tanh(scores / how.soft_cap)
        scores = np.where(hidden, -np.inf, scores + bias)
        sink = -np.inf if how.sinks is None else how.sinks[:, None, None].astype(float)
        most = np.maximum(scores.max(-1, keepdims=True, initial=-np.inf), sink)
        most = np.where(np.isinf(most), 0.0, most)
        weights = np.exp(scores - most)
        total = weights.sum(-1, keepdims=True) + np.exp(sink - most)
        out = np.einsum("nts,snv->tnv", weights / np.where(total == 0, 1, total), values)
        heads = out.reshape(len(queries), self.heads * self.value_dim)
        if "gate" in how.dense:
            heads = heads / (1 + np.exp(-how.dense["gate"](x)))
        return how.dense["output"](heads)

    def feed(self, x: np.ndarray, part: dict[str, Any]) -> np.ndarray:
        limit = self.options.get("gate_limit", 0.0) or np.inf
        inner = part["hidden"](x)
        if "up" not in part:
            return part["back"](ACTIVATIONS[self.activation](inner))
        up = part["up"](x).clip(-limit, limit) + self.options.get("up_offset", 0.0)
        return part["back"](ACTIVATIONS[self.activation](np.minimum(inner, limit)) * up)

    def heads_of(self, x: np.ndarray, width: int) -> np.ndarray:
        return x.reshape(len(x), x.shape[1] // width, width)

    def scores(self, tokens: Any, call: Call, b: int) -> np.ndarray:
        """Return the scores of the tokens that follow each of these."""
        encoded = call.visible_source(self, b)
        length, offset = len(tokens), call.length - 1
        later = np.triu(np.ones((length, length), bool), 1)
        tables = [getattr(call, name) for name in POSITIONS]
        x = self.run(tokens, np.arange(length), later, offset, encoded, *tables)
        scores = self.logits(x)
        if cap := self.options.get("logit_soft_cap"):
            scores = cap * np.tanh(scores / cap)
        if call.first_tokens is None:
            scores[:, [PAD, START]] = -np.inf
        return scores

    def run(
        self, tokens: Any, at: Any, hidden: Any, offset: int, encoded: Any, *tables: Any
    ) -> np.ndarray:
        """Return tokens that stand at the positions `at` through all layers."""
        positions, rotation, relative_bias = tables
        x = self.embedding[tokens].astype(float) * self.scale
        if positions is not None:
            x = x + positions[at]
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)

        def turned(heads: np.ndarray, table: int) -> np.ndarray:
            if rotation is None or table < 0:
                return heads
            cosine, sine = np.split(rotation[table][at][:, None].astype(float), 2, -1)
            first, second, rest = np.split(heads, [self.rotary_dim // 2, self.rotary_dim], -1)
            return np.concatenate(
                [first * cosine - second * sine, first * sine + second * cosine, rest], -1
            )

        bias = 0.0
        if (
            relative_bias is not None
        ):  # a decoder's table has no entries for later keys, which are hidden
            distances = offset + at - at[:, None]
            bias = relative_bias[:, distances.clip(max=relative_bias.shape[1] - 1)]

        for layer in self.layers:

            def projected(how: Attention, x: Any, source: Any) -> tuple[Any, Any, Any]:
                queries = self.heads_of(how.dense["query"](x), self.head_dim)
                keys = self.heads_of(how.dense["key"](source), self.head_dim)
                values = self.heads_of(how.dense["value"](source), self.value_dim)
                return how.normed("query_norm", queries), how.normed("key_norm", keys), values

            def own(x: np.ndarray, how: Any = layer["self"]) -> np.ndarray:
                queries, keys, values = projected(how, x, x)
                unseen = hidden
                if how.window:
                    unseen = hidden | (abs(at[:, None] - at) >= how.window)
                queries, keys = (turned(heads, how.rotation) for heads in (queries, keys))
                keys, values = kept(keys, values, self.options.get("cache", "float32"))
                return self.attend(how, x, queries, keys, values, unseen, bias)

            def cross(x: np.ndarray, layer: Any = layer) -> np.ndarray:
                how = layer["cross"]
                queries, keys, values = projected(how, x, encoded)
                nothing = np.zeros((len(x), len(keys)), bool)
                return self.attend(how, x, queries, keys, values, nothing, 0.0)

            def feed(x: np.ndarray, layer: Any = layer) -> np.ndarray:
                if "experts" not in layer:
                    return self.feed(x, layer)
                return layer["experts"](x, self.feed)

            start = x
            x = self.change(x, layer["self_norm"], own, layer.get("self_post_norm"))
            if self.encoded_width:
                x = self.change(x, layer["cross_norm"], cross)
            norm, post = layer["feed_forward_norm"], layer.get("feed_forward_post_norm")
            if self.options.get("parallel"):
                x = x + (self.change(start, norm, feed, post) - start)
            else:
                x = self.change(x, norm, feed, post)
        return x if self.final_norm is None else self.final_norm(x)


class Call:
    """A batch to decode."""

    def __init__(self, stack: Stack, batch: int, length: int, source: int, **options: Any) -> None:
        rng = stack.rng
        self.batch, self.length, self.source = batch, length, source
        self.encoded = stack.numbers(batch, source, stack.encoded_width)
        visible = rng.random((batch, source)) < 0.7
        self.source_mask = stack.place(visible) if options.get("masked") else None
        self.tokens = None
        self.tables = dict.fromkeys((*POSITIONS, *SOURCE_POSITIONS))
        self.fill(stack, "", length, length, options)
        if stack.encoder is not None:
            self.tokens = stack.place(rng.integers(0, 13, (batch, source)).astype(np.int32))
            self.encoded = None
            self.fill(stack.encoder, "source_", source, 2 * source, options)
        self.uniform = None
        self.sampling, self.beams = options.get("sampling"), options.get("beams", 0)
        self.length_penalty, self.results = 0.6, options.get("results", 0)
        self.prompt = self.first_tokens = self.stop_tokens = None
        self.tokens_read = np.zeros((), np.int64)  # of the last run
        self.cache = stack.options.get("cache", "float32")
        if options.get("prompted"):
            self.prompt = rng.integers(3, stack.vocabulary, (batch, length)).astype(np.int32)
            lengths = rng.integers(0, length + 1, (batch, 1))
            self.prompt = stack.place(np.where(np.arange(length) < lengths, self.prompt, PAD))
        if self.sampling is not None:
            self.uniform = stack.place(rng.random((batch, length)).astype(np.float32))

    def fill(self, stack: Stack, prefix: str, length: int, room: int, options: Any) -> None:
        if options.get("table"):
            self.tables[f"{prefix}positions"] = stack.numbers(length, stack.width)
        if options.get("rotary"):
            tables = (options.get("rotations", 1) if prefix == "" else 1, length)
            angles = stack.rng.normal(size=(*tables, stack.rotary_dim // 2))
            both = np.concatenate([np.cos(angles), np.sin(angles)], -1)
            self.tables[f"{prefix}rotation"] = stack.place(both.astype(np.float32))
        if options.get("bias"):
            self.tables[f"{prefix}relative_bias"] = stack.numbers(stack.heads, room)

    def __getattr__(self, name: str) -> Any:
        if name in (*POSITIONS, *SOURCE_POSITIONS):
            return self.tables[name]
        raise AttributeError(name)

    def visible_source(self, stack: Stack, b: int) -> np.ndarray:
        """Return the encoded source without its masked positions."""
        at = np.arange(self.source)
        if self.source_mask is not None:
            at = at[self.source_mask[b]]
        if stack.encoder is None:
            return self.encoded[b, at].astype(float)
        tables = [self.tables[name] for name in SOURCE_POSITIONS]
        none = np.zeros((len(at), len(at)), bool)
        return stack.encoder.run(self.tokens[b, at], at, none, self.source, None, *tables)

    def rows(self, rows: slice) -> Call:
        """Return the same for some rows of the batch."""
        part = object.__new__(Call)
        part.__dict__.update(self.__dict__)
        part.batch = len(range(self.batch)[rows])
        for name in ("encoded", "tokens", "source_mask", "uniform", "prompt"):
            if (x := getattr(self, name)) is not None:
                setattr(part, name, np.ascontiguousarray(x[rows]))
        return part

    def run(
        self,
        library: Any,
        stack: Stack,
        threads: int = 2,
        scores: np.ndarray | None = None,
        listener: Any = None,
    ) -> np.ndarray:
        """Return tokens (B, L), or if several `results` are asked for (B, N, L); `scores` (B, N) is written.

        `listener(target, token)` says whether a target goes on.
        """
        decoder = c_void_p()
        check(library.heed_decoder_make(stack.struct(), ctypes.byref(decoder)))
        arrays = (self.tokens, self.encoded, self.source_mask, *self.tables.values())
        cut = self.sampling or {}
        decoding = DecodingStruct(
            self.batch,
            self.length,
            self.source,
            *map(address, arrays),
            *((PAD, START, END) if self.first_tokens is None else (-1, -1, -1)),
            address(self.prompt),
            2 if self.beams else int(self.sampling is not None),
            address(self.uniform),
            cut.get("temperature", 1.0),
            cut.get("top_p", 0.0),
            cut.get("top_k", 0),
            self.beams,
            self.length_penalty,
            self.results,
            first_tokens=address(self.first_tokens),
            stop_tokens=address(self.stop_tokens),
            stop_count=0 if self.stop_tokens is None else len(self.stop_tokens),
            top_p_of_all=cut.get("top_p_of_all", False),
            min_p=cut.get("min_p", 0.0),
            rotations=1 if self.tables["rotation"] is None else len(self.tables["rotation"]),
            tokens_read=address(self.tokens_read),
            cache=CACHES.index(self.cache),
        )
        self.tokens_read[...] = 0
        if listener is not None:
            decoding.on_token = TokenListener(lambda _, target, token: listener(target, token))
        shape = (self.batch, *([self.results] if self.results else []), self.length)
        tokens = stack.place(np.full(shape, 77, np.int32))
        try:
            check(
                library.heed_decode(decoder, decoding, tokens.ctypes.data, address(scores), threads)
            )
        finally:
            library.heed_decoder_free(decoder)
        return tokens


def check(problem: bytes | None) -> None:
    if problem is not None:
        raise ValueError(problem.decode())


def assert_best(stack: Stack, call: Call, tokens: np.ndarray) -> None:
    """Check that each token is the best one after those before it, but for rounding; rows end once and are padded.

    A number between two that a format has may become either.
    """
    cache = stack.options.get("cache", "float32")
    whole = stack.pack in INTEGERS or cache == "int8"
    slack = 0.05 if whole else 0.01 if cache == "bfloat16" else 1e-4
    for b, row in enumerate(tokens):
        following = stack.scores([START, *row[:-1]], call, b)
        for t, (token, scores) in enumerate(zip(row, following, strict=True)):
            if t and (row[:t] == END).any():
                assert token == PAD
                continue
            if call.prompt is not None and call.prompt[b, t] != PAD:
                assert token == call.prompt[b, t]
                continue
            assert scores[token] >= scores.max() - slack * np.abs(scores[2:]).max(), (b, t)


def assert_drawn(stack: Stack, call: Call, tokens: np.ndarray) -> None:
    """Check that each token is the one that its number in [0, 1) draws, but for rounding."""
    for b, row in enumerate(tokens):
        following = stack.scores([START, *row[:-1]], call, b)
        for t, (token, scores) in enumerate(zip(row, following, strict=True)):
            if t and row[t - 1] in (END, PAD):
                break
            if call.prompt is not None and call.prompt[b, t] != PAD:
                assert token == call.prompt[b, t]
                continue
            expected = set()
            for nudge in (-1e-5, 0, 1e-5):  # where rounding may decide
                expected.add(drawn(scores, call.uniform[b, t] + nudge, **call.sampling))
            assert token in expected


def drawn(
    scores: Any,
    uniform: float,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 0.0,
    top_p_of_all: bool = False,
    min_p: float = 0.0,
) -> int:
    order = np.argsort(-scores, kind="stable") if top_k or top_p else np.arange(len(scores))
    mass = np.exp((scores - scores.max()) / temperature)[order]
    mass, every = mass[: top_k or None], mass.sum()
    likely = mass >= min_p
    mass /= every if top_p_of_all else mass.sum()
    if top_p:
        before = np.cumsum(mass) - mass
        mass = np.where((before < top_p) | (np.arange(len(mass)) == 0), mass, 0)
    cumulative = np.cumsum(np.where(likely, mass, 0))
    return int(order[np.sum(cumulative < (1 - uniform) * cumulative[-1])])


def searched(stack: Stack, call: Call, b: int) -> tuple[list[tuple[list[int], float]], float]:
    """Search with beams as Wu et al. do; return the sequences, their scores, and by how much any choice was decided."""
    beams, count, margin = call.beams, call.results or 1, np.inf
    prompt = [] if call.prompt is None else [*call.prompt[b][call.prompt[b] != PAD]]
    open_, finished = [(prompt, 0.0)], []

    def penalty(count: int) -> float:
        return ((5 + count - len(prompt)) / 6) ** call.length_penalty

    for _ in range(call.length - len(prompt)):
        grown = []
        for tokens, total in open_:
            scores = stack.scores([START, *tokens], call, b)[-1]
            steps = scores - scores.max()
            steps -= np.log(np.exp(steps).sum())
            grown += [([*tokens, t], total + step) for t, step in enumerate(steps) if t > START]
        grown.sort(key=lambda x: -x[1])
        if len(grown) > 2 * beams:
            totals = np.array([total for _, total in grown[: 2 * beams + 1]])
            margin = min(margin, np.min(totals[:-1] - totals[1:]))
        ended = [x for x in grown[:beams] if x[0][-1] == END]
        finished += [(tokens, total / penalty(len(tokens))) for tokens, total in ended]
        open_ = [x for x in grown if x[0][-1] != END][:beams]
        finished.sort(key=lambda x: -x[1])
        if finished and (not open_ or beams == 1):
            break
        if finished[count - 1 :] and open_[0][1] / penalty(call.length) <= finished[count - 1][1]:
            break
    cut = [(tokens, total / penalty(call.length)) for tokens, total in open_]
    scores = np.array([score for _, score in finished[: count + 1]])
    margin = min([margin, *(scores[:-1] - scores[1:])])
    return (finished + cut)[:count], margin


def beams_decided(
    stack: Stack, call: Call, tokens: np.ndarray, scores: np.ndarray | None = None
) -> int:
    """Return how many rows a beam search in float64 finds without a near tie; each must be the one that is there."""
    decided = 0
    for b, row in enumerate(tokens):
        found, margin = searched(stack, call, b)
        if margin > (0.3 if stack.pack in INTEGERS else 1e-5):
            decided += 1
            for n, given in enumerate(np.atleast_2d(row)):
                sequence, score = found[n] if n < len(found) else ([], -np.inf)
                assert [*given] == [*sequence, *[PAD] * (call.length - len(sequence))]
                if scores is not None:
                    np.testing.assert_allclose(scores[b, n], score, atol=1e-4)
    return decided
