"""The decoder engine through `heed_decoder.h` by ctypes, beside the same stack written in NumPy, in float64."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from ctypes import POINTER, Structure, c_char_p, c_double, c_int, c_int32, c_int64, c_void_p
from math import erf
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.native.core import LIBRARY

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="installed without the native library")

PAD, START, END = 0, 1, 2
ACTIVATIONS = {
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "relu6": lambda x: np.clip(x, 0, 6),
    "leaky_relu": lambda x: np.where(x < 0, 0.2 * x, x),
    "elu": lambda x: np.where(x < 0, np.expm1(x), x),
    "softplus": lambda x: np.logaddexp(0, x),
}


class DenseStruct(Structure):
    _fields_ = (
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("inputs", c_int64),
        ("outputs", c_int64),
        ("transposed", c_int32),
    )


class NormStruct(Structure):
    _fields_ = (("gamma", c_void_p), ("beta", c_void_p), ("epsilon", c_double))


NORMS = ("self_norm", "cross_norm", "feed_forward_norm")
DENSE = ("query", "key", "value", "output")
CROSS = tuple(f"cross_{name}" for name in DENSE)


class LayerStruct(Structure):
    _fields_ = (
        *((name, NormStruct) for name in NORMS),
        *((name, DenseStruct) for name in (*DENSE, *CROSS, "hidden", "back")),
    )


class StackStruct(Structure):
    _fields_ = (
        *((name, c_int64) for name in ("width", "heads", "kv_heads", "head_dim", "value_dim")),
        ("encoded_width", c_int64),
        ("vocabulary", c_int64),
        ("embedding", c_void_p),
        ("embedding_scale", c_double),
        ("norm_first", c_int32),
        ("activation", c_int32),
        ("layer_count", c_int32),
        ("layers", POINTER(LayerStruct)),
        ("final_norm", NormStruct),
        ("logits", DenseStruct),
    )


class DecodingStruct(Structure):
    _fields_ = (
        *((name, c_int64) for name in ("batch", "length", "source_length")),
        *((name, c_void_p) for name in ("encoded", "source_mask", "positions", "rotation")),
        ("distance_bias", c_void_p),
        *((name, c_int32) for name in ("pad_token", "start_token", "end_token", "search")),
        ("uniform", c_void_p),
        ("temperature", c_double),
        ("top_p", c_double),
        ("top_k", c_int64),
        ("beams", c_int32),
        ("length_penalty", c_double),
    )


class Dense(NamedTuple):
    weight: np.ndarray
    bias: np.ndarray | None
    transposed: bool = False

    def __call__(self, x: np.ndarray) -> np.ndarray:
        weight = self.weight.T if self.transposed else self.weight
        return x @ weight.astype(float) + (0 if self.bias is None else self.bias)

    def struct(self) -> DenseStruct:
        shape = self.weight.shape[::-1] if self.transposed else self.weight.shape
        return DenseStruct(address(self.weight), address(self.bias), *shape, self.transposed)


class Norm(NamedTuple):
    gamma: np.ndarray
    beta: np.ndarray | None

    def __call__(self, x: np.ndarray) -> np.ndarray:
        rest = x - x.mean(-1, keepdims=True)
        scaled = rest / np.sqrt((rest**2).mean(-1, keepdims=True) + 1e-6)
        return scaled * self.gamma + (0 if self.beta is None else self.beta)

    def struct(self) -> NormStruct:
        return NormStruct(address(self.gamma), address(self.beta), 1e-6)


def address(x: np.ndarray | None) -> int | None:
    return None if x is None else x.ctypes.data


class Stack:
    """A stack of random weights, as structs and as a computation."""

    def __init__(self, rng: np.random.Generator, **sizes: Any) -> None:
        self.rng = rng
        self.kv_heads, queries_per_kv = sizes.get("kv_heads", 1), sizes.get("queries_per_kv", 2)
        self.heads = self.kv_heads * queries_per_kv
        self.head_dim, self.value_dim = sizes.get("head_dim", 4), sizes.get("value_dim", 4)
        self.width, self.vocabulary = sizes.get("width", 8), sizes.get("vocabulary", 20)
        self.encoded_width = sizes.get("encoded_width", 8)
        self.norm_first, self.biased = sizes.get("norm_first", True), sizes.get("biased", True)
        self.activation = sizes.get("activation", "relu")
        self.embedding, self.scale = self.numbers(self.vocabulary, self.width), 1.25
        self.layers = [self.layer(sizes.get("hidden", 12)) for _ in range(sizes.get("layers", 2))]
        self.final_norm = self.norm() if sizes.get("final_norm", True) else None
        if sizes.get("tied", False):
            self.logits = Dense(self.embedding, None, True)
        else:
            self.logits = self.dense(self.width, self.vocabulary)

    def numbers(self, *shape: int) -> np.ndarray:
        return (self.rng.normal(size=shape) * (0.7 if len(shape) > 1 else 0.2)).astype(np.float32)

    def dense(self, inputs: int, outputs: int) -> Dense:
        weight = self.numbers(inputs, outputs) * np.float32((8 / inputs) ** 0.5)
        return Dense(weight, self.numbers(outputs) if self.biased else None)

    def norm(self) -> Norm:
        return Norm(1 + self.numbers(self.width), self.numbers(self.width) if self.biased else None)

    def layer(self, hidden: int) -> dict[str, Any]:
        outputs = (
            self.heads * self.head_dim,
            self.kv_heads * self.head_dim,
            self.kv_heads * self.value_dim,
        )
        inputs = {"": (self.width,) * 3}
        if self.encoded_width:
            inputs["cross_"] = (self.width, self.encoded_width, self.encoded_width)
        parts = {name: self.norm() for name in NORMS}
        for prefix, widths in inputs.items():
            for name, width, count in zip(DENSE, widths, outputs, strict=False):
                parts[prefix + name] = self.dense(width, count)
            parts[prefix + "output"] = self.dense(self.heads * self.value_dim, self.width)
        parts["hidden"], parts["back"] = (
            self.dense(self.width, hidden),
            self.dense(hidden, self.width),
        )
        return parts

    def struct(self) -> StackStruct:
        layers = [LayerStruct(**{k: x.struct() for k, x in part.items()}) for part in self.layers]
        sizes = (self.width, self.heads, self.kv_heads, self.head_dim, self.value_dim)
        return StackStruct(
            *sizes,
            self.encoded_width,
            self.vocabulary,
            address(self.embedding),
            self.scale,
            self.norm_first,
            list(ACTIVATIONS).index(self.activation),
            len(layers),
            (LayerStruct * max(1, len(layers)))(*layers),
            NormStruct() if self.final_norm is None else self.final_norm.struct(),
            self.logits.struct(),
        )

    def change(self, x: Any, norm: Norm, part: Any) -> np.ndarray:
        return x + part(norm(x)) if self.norm_first else norm(x + part(x))

    def attend(self, queries: Any, keys: Any, values: Any, hidden: Any, bias: Any) -> np.ndarray:
        """Of (T, N, H), (S, K, H), (S, K, V), by plain loops over heads and queries; 0 where all is hidden."""
        out = np.zeros((len(queries), self.heads, self.value_dim))
        for n in range(self.heads):
            kv_head = n // (self.heads // self.kv_heads)
            for i, query in enumerate(queries[:, n]):
                seen = [j for j in range(len(keys)) if not hidden[i, j]]
                scores = [query @ keys[j, kv_head] / np.sqrt(self.head_dim) for j in seen]
                scores = np.array([s + bias(n, i, j) for s, j in zip(scores, seen, strict=True)])
                if seen:
                    weights = np.exp(scores - scores.max())
                    out[i, n] = weights / weights.sum() @ values[seen, kv_head]
        return out.reshape(len(queries), -1)

    def heads_of(self, x: np.ndarray, width: int) -> np.ndarray:
        return x.reshape(len(x), x.shape[1] // width, width)

    def scores(self, tokens: Any, call: Call, b: int) -> np.ndarray:
        """Of the token that follows the last one; everything computed again."""
        length = len(tokens)
        x = self.embedding[tokens].astype(float) * self.scale
        if call.positions is not None:
            x = x + call.positions[:length]
        later = np.triu(np.ones((length, length), bool), 1)
        shown = None if call.source_mask is None else call.source_mask[b]

        def turned(heads: np.ndarray) -> np.ndarray:
            if call.rotation is None:
                return heads
            cosine, sine = np.split(call.rotation[:length, None].astype(float), 2, -1)
            first, second = np.split(heads, 2, -1)
            return np.concatenate(
                [first * cosine - second * sine, first * sine + second * cosine], -1
            )

        def bias(n: int, i: int, j: int) -> float:
            return 0 if call.distance_bias is None else call.distance_bias[n, i - j]

        for layer in self.layers:

            def own(x: np.ndarray, layer: Any = layer) -> np.ndarray:
                queries = turned(self.heads_of(layer["query"](x), self.head_dim))
                keys = turned(self.heads_of(layer["key"](x), self.head_dim))
                values = self.heads_of(layer["value"](x), self.value_dim)
                return layer["output"](self.attend(queries, keys, values, later, bias))

            def cross(x: np.ndarray, layer: Any = layer) -> np.ndarray:
                encoded = call.encoded[b].astype(float)
                queries = self.heads_of(layer["cross_query"](x), self.head_dim)
                keys = self.heads_of(layer["cross_key"](encoded), self.head_dim)
                values = self.heads_of(layer["cross_value"](encoded), self.value_dim)
                hidden = np.zeros((len(x), len(keys)), bool)
                if shown is not None:
                    hidden |= ~shown
                return layer["cross_output"](
                    self.attend(queries, keys, values, hidden, lambda *_: 0)
                )

            def feed(x: np.ndarray, layer: Any = layer) -> np.ndarray:
                return layer["back"](ACTIVATIONS[self.activation](layer["hidden"](x)))

            x = self.change(x, layer["self_norm"], own)
            if self.encoded_width:
                x = self.change(x, layer["cross_norm"], cross)
            x = self.change(x, layer["feed_forward_norm"], feed)
        last = x[-1:] if self.final_norm is None else self.final_norm(x[-1:])
        scores = self.logits(last)[0]
        scores[[PAD, START]] = -np.inf
        return scores


class Call:
    """A batch to decode."""

    def __init__(self, stack: Stack, batch: int, length: int, source: int, **options: Any) -> None:
        rng = stack.rng
        self.batch, self.length, self.source = batch, length, source
        self.encoded = stack.numbers(batch, source, stack.encoded_width)
        self.source_mask = rng.random((batch, source)) < 0.7 if options.get("masked") else None
        self.positions = stack.numbers(length, stack.width) if options.get("table") else None
        self.rotation = self.distance_bias = self.uniform = None
        if options.get("rotary"):
            angles = rng.normal(size=(length, stack.head_dim // 2))
            self.rotation = np.concatenate([np.cos(angles), np.sin(angles)], -1).astype(np.float32)
        if options.get("bias"):
            self.distance_bias = stack.numbers(stack.heads, length)
        self.sampling, self.beams = options.get("sampling"), options.get("beams", 0)
        self.length_penalty = 0.6
        if self.sampling is not None:
            self.uniform = rng.random((batch, length)).astype(np.float32)

    def rows(self, rows: slice) -> Call:
        """The same for some rows of the batch."""
        part = object.__new__(Call)
        part.__dict__.update(self.__dict__)
        part.encoded = np.ascontiguousarray(self.encoded[rows])
        part.batch = len(part.encoded)
        for name in ("source_mask", "uniform"):
            if (x := getattr(self, name)) is not None:
                setattr(part, name, np.ascontiguousarray(x[rows]))
        return part

    def run(self, library: Any, stack: Stack, threads: int = 2) -> np.ndarray:
        decoder = c_void_p()
        check(library.heed_decoder_make(stack.struct(), ctypes.byref(decoder)))
        arrays = (self.encoded, self.source_mask, self.positions, self.rotation, self.distance_bias)
        cut = self.sampling or {}
        decoding = DecodingStruct(
            self.batch,
            self.length,
            self.source,
            *map(address, arrays),
            PAD,
            START,
            END,
            2 if self.beams else int(self.sampling is not None),
            address(self.uniform),
            cut.get("temperature", 1.0),
            cut.get("top_p", 0.0),
            cut.get("top_k", 0),
            self.beams,
            self.length_penalty,
        )
        tokens = np.full((self.batch, self.length), 77, np.int32)
        try:
            check(library.heed_decode(decoder, decoding, tokens.ctypes.data, threads))
        finally:
            library.heed_decoder_free(decoder)
        return tokens


def check(problem: bytes | None) -> None:
    if problem is not None:
        raise ValueError(problem.decode())


@pytest.fixture(autouse=True, scope="module")
def prototypes(any_library: Any) -> None:
    any_library.heed_decoder_make.argtypes = [POINTER(StackStruct), POINTER(c_void_p)]
    any_library.heed_decode.argtypes = [c_void_p, POINTER(DecodingStruct), c_void_p, c_int]
    any_library.heed_decoder_free.argtypes = [c_void_p]
    any_library.heed_decoder_free.restype = None
    for name in ("heed_decoder_make", "heed_decode"):
        getattr(any_library, name).restype = c_char_p


def assert_best(stack: Stack, call: Call, tokens: np.ndarray) -> None:
    """Each token is the best one after those before it, but for rounding; rows end once and are padded."""
    for b, row in enumerate(tokens):
        for t, token in enumerate(row):
            if t and (row[:t] == END).any():
                assert token == PAD
                continue
            scores = stack.scores([START, *row[:t]], call, b)
            assert scores[token] >= scores.max() - 1e-4 * np.abs(scores[2:]).max(), (b, t)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "post-norm, no final norm": {"norm_first": False, "final_norm": False},
    "grouped": {"kv_heads": 2, "queries_per_kv": 3, "head_dim": 6, "value_dim": 5},
    "wide": {"width": 70, "hidden": 133, "kv_heads": 4, "queries_per_kv": 1, "head_dim": 17},
    "wider vocabulary, tied": {"vocabulary": 333, "tied": True, "width": 33, "layers": 1},
    "no biases, masked": {"biased": False, "masked": True},
    "source of another width": {"encoded_width": 19, "masked": True},
    "nothing encoded": {"encoded_width": 0},
    "positions": {"table": True},
    "rotary": {"rotary": True, "head_dim": 6},
    "bias": {"bias": True},
    "no layers": {"layers": 0},
}


@pytest.mark.parametrize("case", CASES)
def test_greedy_takes_the_best_token(library: Any, case: str) -> None:
    options, found = CASES[case], set()
    for seed in range(3):
        stack = Stack(np.random.default_rng(seed), **options)
        call = Call(stack, 5, 7, 0 if stack.encoded_width == 0 else 6, **options)
        tokens = call.run(library, stack)
        assert_best(stack, call, tokens)
        found |= {*tokens.flat}
    assert len(found) > 3


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(library: Any, activation: str) -> None:
    stack = Stack(np.random.default_rng(1), activation=activation, hidden=40, vocabulary=200)
    call = Call(stack, 3, 6, 4)
    assert_best(stack, call, call.run(library, stack))


def test_a_long_sequence_and_a_large_batch(library: Any) -> None:
    stack = Stack(np.random.default_rng(3), layers=1, vocabulary=300, bias=True)
    call = Call(stack, 2, 70, 150, masked=True, bias=True)
    assert_best(stack, call, call.run(library, stack))
    call = Call(stack, 150, 4, 3)
    assert_best(stack, call, call.run(library, stack, threads=1))


SAMPLING: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.5},
    {"top_k": 4, "temperature": 2.0},
    {"top_p": 0.6},
    {"top_k": 9, "top_p": 0.8},
    {"top_p": 1.0},
)


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
def test_sampling_inverts_the_cumulative_distribution(library: Any, sampling: Any) -> None:
    stack = Stack(np.random.default_rng(4))
    call = Call(stack, 6, 8, 5, sampling=sampling)
    tokens = call.run(library, stack)
    assert len({*tokens.flat}) > 4
    for b, row in enumerate(tokens):
        for t, token in enumerate(row):
            if t and row[t - 1] in (END, PAD):
                break
            expected = set()
            for nudge in (-1e-5, 0, 1e-5):  # where rounding may decide
                scores = stack.scores([START, *row[:t]], call, b)
                expected.add(drawn(scores, call.uniform[b, t] + nudge, **sampling))
            assert token in expected


def drawn(
    scores: Any, uniform: float, temperature: float = 1.0, top_k: int = 0, top_p: float = 0.0
) -> int:
    order = np.argsort(-scores, kind="stable") if top_k or top_p else np.arange(len(scores))
    mass = np.exp((scores - scores.max()) / temperature)[order][: top_k or None]
    mass /= mass.sum()
    if top_p:
        before = np.cumsum(mass) - mass
        mass = np.where((before < top_p) | (np.arange(len(mass)) == 0), mass, 0)
    cumulative = np.cumsum(mass)
    return int(order[np.sum(cumulative < (1 - uniform) * cumulative[-1])])


def searched(stack: Stack, call: Call, b: int) -> tuple[list[int], float, float]:
    """A beam search as Wu et al. describe it: the sequence, its score, and by how much any choice was decided."""
    beams, margin = call.beams, np.inf
    open_, finished = [([], 0.0)], []

    def penalty(count: int) -> float:
        return ((5 + count) / 6) ** call.length_penalty

    for _ in range(call.length):
        grown = []
        for tokens, total in open_:
            scores = stack.scores([START, *tokens], call, b)
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
        best = max(finished, key=lambda x: x[1], default=None)
        if best and (beams == 1 or open_[0][1] / penalty(call.length) <= best[1]):
            break
    sequence, score = max(finished, key=lambda x: x[1], default=open_[0])
    return sequence, score, margin


@pytest.mark.parametrize("beams", [1, 2, 3, 8])
def test_beams_are_those_of_the_definition(library: Any, beams: int) -> None:
    decided = 0
    for seed, options in enumerate(({}, {"bias": True}, {"rotary": True}, {"encoded_width": 0})):
        sizes = {"vocabulary": 24, "kv_heads": 1 + seed % 2, "layers": 1 + seed % 2}
        stack = Stack(np.random.default_rng(seed), **sizes, **options)
        call = Call(stack, 3, 6, 0 if stack.encoded_width == 0 else 4, beams=beams, **options)
        tokens = call.run(library, stack)
        for b, row in enumerate(tokens):
            sequence, _, margin = searched(stack, call, b)
            if margin > 1e-5:
                decided += 1
                assert [*row] == [*sequence, *[PAD] * (call.length - len(sequence))]
    assert decided > 6


SEARCHES = ({}, {"sampling": {"top_k": 5}}, {"beams": 3})


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_rows_depend_neither_on_threads_nor_on_each_other(library: Any, search: Any) -> None:
    sizes = {"width": 40, "hidden": 70, "vocabulary": 100, "kv_heads": 2}
    stack = Stack(np.random.default_rng(5), **sizes)
    call = Call(stack, 23, 12, 9, masked=True, **search)
    tokens = call.run(library, stack, threads=1)
    for threads in (1, 2, 3, 7, 64, -5, 1000):
        np.testing.assert_array_equal(call.run(library, stack, threads), tokens)
    for rows in (slice(0, 1), slice(4, 9), slice(22, 23)):
        np.testing.assert_array_equal(call.rows(rows).run(library, stack), tokens[rows])


def test_rows_end_by_themselves(library: Any) -> None:
    stack = Stack(np.random.default_rng(6), vocabulary=6)
    call = Call(stack, 40, 20, 4)
    tokens = call.run(library, stack)
    lengths = {int((row == END).argmax()) for row in tokens if END in row}
    assert len(lengths) > 1
    assert_best(stack, call, tokens)


def test_what_a_mask_hides_never_reaches_a_result(library: Any) -> None:
    stack = Stack(np.random.default_rng(7))
    call = Call(stack, 4, 6, 5, masked=True)
    call.source_mask[0] = False  # nothing is seen: the attention gives 0
    tokens = call.run(library, stack)
    assert_best(stack, call, tokens)
    call.encoded[~call.source_mask] = np.nan
    np.testing.assert_array_equal(call.run(library, stack), tokens)


def test_nonfinite_numbers_end_well(library: Any) -> None:
    """Whatever a model computes, tokens are tokens."""
    for value, search in itertools.product((np.nan, np.inf, -np.inf), SEARCHES):
        stack = Stack(np.random.default_rng(8))
        call = Call(stack, 4, 6, 5, **search)
        call.encoded[1] = value
        tokens = call.run(library, stack)
        assert ((tokens >= 0) & (tokens < stack.vocabulary)).all()


def test_empty_batches_and_sources(library: Any) -> None:
    stack = Stack(np.random.default_rng(9))
    assert Call(stack, 0, 4, 3).run(library, stack).shape == (0, 4)
    call = Call(stack, 2, 4, 0)
    assert_best(stack, call, call.run(library, stack))


def faults() -> Iterator[tuple[str, Any, Any, str]]:
    def stack(name: str, value: Any) -> Any:
        return lambda s, d: setattr(s, name, value)

    def decoding(name: str, value: Any) -> Any:
        return lambda s, d: setattr(d, name, value)

    def layer(part: str, name: str, value: Any) -> Any:
        return lambda s, d: setattr(getattr(s.layers[1], part), name, value)

    yield "heads", stack("heads", 3), None, "`query` must have 8 inputs and 12 outputs"
    yield "kv_heads", stack("kv_heads", 5), None, "`kv_heads` must be in"
    yield "vocabulary", stack("vocabulary", 0), None, "`vocabulary` must be in"
    yield "activation", stack("activation", 99), None, "`activation` must be in [0, 9]"
    yield "embedding", stack("embedding", None), None, "the embedding is missing"
    yield "query", layer("query", "weight", None), None, "the weights of `query` are missing"
    yield "back", layer("back", "inputs", 5), None, "`back` must have 12 inputs and 8 outputs"
    yield "norm", layer("self_norm", "gamma", None), None, "`self_norm` is missing"
    yield "epsilon", layer("cross_norm", "epsilon", 0.0), None, "`epsilon` of `cross_norm`"
    yield "encoded", stack("encoded_width", 0), None, "`encoded_width` must be given"
    yield "length", None, decoding("length", 0), "`length` must be in [1,"
    yield "batch", None, decoding("batch", -1), "`batch` must be in [0,"
    yield "pad", None, decoding("pad_token", 20), "`pad_token` must be in [0, 19]"
    yield "search", None, decoding("search", 7), "`search` must be in [0, 2]"
    yield "beams", None, decoding("search", 2), "`beams` must be in [1, 32]"
    yield "uniform", None, decoding("search", 1), "`uniform` is missing"
    yield "no encoded", None, decoding("encoded", None), "`encoded` is missing"


@pytest.mark.parametrize("fault", list(faults()), ids=lambda x: x[0])
def test_what_cannot_be_is_refused(any_library: Any, fault: Any) -> None:
    _, of_stack, of_decoding, text = fault
    stack = Stack(np.random.default_rng(0))
    call = Call(stack, 2, 3, 4)
    struct, decoder = stack.struct(), c_void_p()
    if of_stack is not None:
        of_stack(struct, None)
        assert text in any_library.heed_decoder_make(struct, ctypes.byref(decoder)).decode()
        assert not decoder
        return
    assert any_library.heed_decoder_make(struct, ctypes.byref(decoder)) is None
    decoding = DecodingStruct(2, 3, 4, address(call.encoded))
    decoding.start_token, decoding.end_token, decoding.temperature = START, END, 1.0
    of_decoding(None, decoding)
    tokens = np.full((2, 3), 77, np.int32)
    said = any_library.heed_decode(decoder, decoding, tokens.ctypes.data, 1)
    any_library.heed_decoder_free(decoder)
    assert text in said.decode()
    assert (tokens == 77).all()
