"""The decoder engine through its C interface, beside the same stack in NumPy, for each instruction set."""

from __future__ import annotations

import ast
import collections
import ctypes
import itertools
import re
import threading
from ctypes import c_int32, c_void_p
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heed import weights
from heed.ops.core import description
from heed.weights import WEIGHTS
from tests.native.core import LIBRARY
from tests.native.decoder import (
    ACTIVATIONS,
    CACHES,
    END,
    INTEGERS,
    PACKS,
    PAD,
    START,
    Call,
    DecodingStruct,
    Stack,
    address,
    assert_best,
    assert_drawn,
    beams_decided,
    check,
    declare,
    layers_of,
    rounded,
)
from tests.slow import slow

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="installed without the native library")


@pytest.fixture(autouse=True, scope="module")
def declared(any_library: Any) -> None:
    declare(any_library)


# The options of a stack and its call; a word alone is true.
CASES = (
    "layers=2",
    "norm_first=0 final_norm=0",
    "kv_heads=2 queries_per_kv=3 head_dim=6 value_dim=5",
    "width=70 hidden=133 kv_heads=4 queries_per_kv=1 head_dim=17",
    "vocabulary=333 tied width=33 layers=1",
    "biased=0 masked",
    "encoded_width=19 masked",
    "encoded_width=0",
    "table",
    "rotary head_dim=6",
    "bias",
    "encoded_width=0 prompted window=3 rotary gated",
    "layers=0",
    "pack=bfloat16 width=33 hidden=170 vocabulary=90",
    "pack=int8 width=33 hidden=170 tied",
    "pack=int4 width=33 hidden=2102 layers=1",
    "pack=int4 width=100 encoder vocabulary=90",
    "encoder masked",
    "encoder embedding_norm norm_first=0 final_norm=0 table encoded_width=19",
    "encoder rotary masked kv_heads=2 head_dim=6",
    "encoder bias masked",
    "root_mean_square width=19 biased=0",
    "gated hidden=37 activation=silu",
    "qk_norm head_dim=6 rotary encoder",
    "sinks kv_heads=2 masked",
    "soft_cap=0.7 bias encoder",
    "window=3",
    "window=2 encoder masked bias",
    "gate kv_heads=2 value_dim=5 encoded_width=19",
    "scale=0.2 logit_soft_cap=1.5 encoded_width=0",
    "post_norms encoder width=19",
    "experts=5 top_k=2 normalized gated encoder",
    "experts=4 top_k=3 normalized=0 shared gated gate_limit=0.5 up_offset=1.0 "
    "activation=quick_gelu width=19 encoded_width=0 prompted",
    "experts=3 top_k=1 normalized=0 shared pack=int8 encoded_width=0",
    "parallel encoded_width=0 post_norms prompted",
    "rotary head_dim=10 rotary_dim=6 encoder",
    "rotary rotations=2 layers=3 encoded_width=0 prompted",
    "cache=bfloat16 value_dim=5 encoder rotary",
    "cache=int8 kv_heads=2 head_dim=6 value_dim=5 window=4",
    "window=1 encoder",
    "prompted",
    "root_mean_square gated hidden=21 qk_norm sinks soft_cap=2.0 window=4 gate kv_heads=2 "
    "queries_per_kv=3 head_dim=10 value_dim=7 rotary encoder masked width=21 encoded_width=17 "
    "prompted",
    *(f"activation={name} hidden=40 vocabulary=200" for name in ACTIVATIONS),
)


def options_of(case: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for word in case.split():
        name, _, value = word.partition("=")
        options[name] = value if value.isidentifier() else ast.literal_eval(value or "True")
    return options


@pytest.mark.parametrize("seeds", [range(7, 8), *slow([range(3)])], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_greedy_takes_the_best_token(library: Any, case: str, seeds: range) -> None:
    options, found = options_of(case), set()
    for seed in seeds:
        stack = Stack(np.random.default_rng(seed), **options)
        call = Call(stack, 5, 7, 0 if stack.encoded_width == 0 else 6, **options)
        tokens = call.run(library, stack)
        assert_best(stack, call, tokens)
        found |= {*tokens.flat}
    assert len(found) > 1


def test_activations_have_one_order() -> None:
    """Their numbers are places in this list."""
    assert tuple(ACTIVATIONS) == description.ACTIVATIONS


def test_many_and_long_sources_are_encoded(library: Any) -> None:
    """A window makes a wrong position of a query change all that it sees."""
    sizes = {"encoder": True, "layers": 1, "vocabulary": 100, "bias": True, "window": 5}
    stack = Stack(np.random.default_rng(2), **sizes)
    call = Call(stack, 2, 8, 140, masked=True, bias=True)
    assert_best(stack, call, call.run(library, stack))
    call = Call(stack, 45, 2, 9, masked=True, bias=True)
    assert_best(stack, call, call.run(library, stack, threads=1))
    call.tokens[3, 4], call.source_mask[3, 4] = 13, True
    with pytest.raises(ValueError, match=r"tokens from 0 to 12\. Received: 13"):
        call.run(library, stack)
    call.source_mask[3, 4] = False
    call.run(library, stack)


def test_the_names_of_packs_follow_the_list_of_the_header() -> None:
    native = Path(__file__).parents[2] / "native"
    text = (native / "include" / "heed_decoder.h").read_text(encoding="utf-8")
    listed = tuple(re.findall(r'^ +DO\(\w+, "(\w+)"', text, re.MULTILINE))
    assert listed == WEIGHTS == PACKS
    assert all((native / "decoder" / "packs" / f"{name}.h").is_file() for name in listed)


@pytest.mark.parametrize("cache", CACHES)
def test_caches_keep_what_their_format_has(library: Any, cache: str) -> None:
    """The keys and values of one layer, and so its log probabilities, are those of rounded numbers."""
    options = {"encoded_width": 0, "layers": 1, "kv_heads": 2, "head_dim": 6, "value_dim": 5}
    stack = Stack(np.random.default_rng(4), rotary=True, window=50, cache=cache, **options)
    call = Call(stack, 3, 120, 0, rotary=True, prompted=True, sampling={"top_k": 1})
    call.prompt[:] = stack.rng.integers(3, stack.vocabulary, call.prompt.shape)
    lengths = (119, 64, 40)
    for row, length in zip(call.prompt, lengths, strict=True):
        row[length:] = PAD
    scores = np.zeros((3, 1), np.float32)
    first = call.run(library, stack, scores=scores, listener=lambda *_: False)
    exact = np.zeros(3)
    for kind in (cache, "float32"):
        stack.options["cache"] = kind
        for b, length in enumerate(lengths):
            logits = stack.scores([START, *call.prompt[b, :length]], call, b)[-1]
            most = logits.max()
            exact[b] = logits[first[b, length]] - most - np.log(np.exp(logits - most).sum())
        if kind == cache:
            # A number between two that the format has may become either.
            np.testing.assert_allclose(
                scores[:, 0], exact, atol=1e-4 if cache == "float32" else 2e-3
            )
            rounded_error = np.abs(scores[:, 0] - exact).max()
    # Rounding shows: a cache is of its format.
    assert cache == "float32" or np.abs(scores[:, 0] - exact).max() > 2 * rounded_error


def test_the_names_of_caches_follow_the_list_of_the_header() -> None:
    text = (Path(__file__).parents[2] / "native/include/heed_decoder.h").read_text("utf-8")
    (line,) = re.findall(r"define HEED_EACH_CACHE.*", text)
    assert tuple(re.findall(r'"(\w+)"', line)) == weights.CACHES == CACHES


def test_an_encoder_has_a_pack_of_its_own(library: Any) -> None:
    """Its scores are those of an encoder whose weights were rounded before."""

    def scores_of(pack: str, rounds: bool) -> np.ndarray:
        stack = Stack(np.random.default_rng(5), encoder=True, encoder_pack=pack)
        assert stack.encoder is not None
        for layer in stack.encoder.layers if rounds else ():
            dense = (*layer["self"].dense.values(), layer["hidden"], layer["back"])
            for weight in (part.weight for part in dense):
                weight[:] = rounded(weight, "bfloat16")
        scores = np.zeros(3, np.float32)
        Call(stack, 3, 4, 6, beams=2).run(library, stack, scores=scores)
        return scores

    packed, before = scores_of("bfloat16", False), scores_of("float32", True)
    few_roundings = 16 * np.finfo(np.float32).eps
    np.testing.assert_allclose(packed, before, rtol=few_roundings)
    assert (abs(packed - scores_of("float32", False)) > 10 * few_roundings * abs(packed)).all()


@pytest.mark.parametrize("pack", INTEGERS)
@pytest.mark.parametrize("value", [0.0, np.inf, np.nan])
def test_odd_weights_of_integers(library: Any, value: float, pack: str) -> None:
    """A column of zeros, or a block, stays one; one that is not finite leads to some token."""
    stack = Stack(np.random.default_rng(0), width=33, pack=pack)
    stack.layers[0]["hidden"].weight[:, 3] = stack.layers[0]["hidden"].weight[:32, 4] = value
    call = Call(stack, 3, 4, 4)
    tokens = call.run(library, stack)
    assert ((tokens >= 0) & (tokens < stack.vocabulary)).all()
    if value == 0:
        assert_best(stack, call, tokens)


def test_inputs_with_few_weights_leave_integers_to_their_neighbours(library: Any) -> None:
    """Those weights are as large as others: multiplied, they would take the precision of a block."""
    stack = Stack(np.random.default_rng(0), width=64, vocabulary=90, encoded_width=0, pack="int4")
    weight = stack.logits.weight
    few = weight[::3]
    few[:] = np.abs(weight).mean() * (np.arange(90) % 30 == np.arange(len(few))[:, None])
    call = Call(stack, 5, 4, 6, prompted=True)
    assert_best(stack, call, call.run(library, stack))


@pytest.mark.parametrize(("pack", "most"), [("int8", 127), ("int4", 8)])
def test_given_integers_are_kept(library: Any, pack: str, most: int) -> None:
    """Where each block holds the largest integer, packing finds the same ones: results are the same bits."""
    stack = Stack(np.random.default_rng(5), layers=1, width=40, vocabulary=90, hidden=96, pack=pack)
    call, scores, (layer,) = (
        Call(stack, 5, 4, 6, beams=1),
        np.zeros((2, 5), np.float32),
        stack.layers,
    )
    parts = {"logits": stack.logits, "hidden": layer["hidden"], "back": layer["back"]}
    for name, dense in parts.items():
        whole = stack.rng.integers(-most, most, dense.weight.shape).astype(np.int8)
        whole[::32] = -most
        factors = np.ldexp(np.float32(1), stack.rng.integers(-12, -9, (1, whole.shape[1])))
        dense.weight[:] = whole * factors
        parts[name] = dense._replace(given=(whole, factors.astype(np.float32)))
    call.run(library, stack, scores=scores[0])
    stack.logits = parts.pop("logits")
    layer.update(parts)
    call.run(library, stack, scores=scores[1])
    np.testing.assert_array_equal(scores[1], scores[0])
    stack.pack = "float32"
    call.run(library, stack, scores=scores[1])
    assert abs(scores[1] / scores[0] - 1).max() < 0.05  # inputs are rounded, too


def test_int8_columns_of_one_sign(library: Any) -> None:
    """Products of bytes add 128 to each input and take it back, which shows where weights do not cancel out."""
    stack = Stack(np.random.default_rng(5), layers=1, width=64, pack="int8")
    weight = stack.logits.weight
    weight[:] = abs(weight) * np.where(np.arange(weight.shape[1]) % 2, 1, -1)
    call = Call(stack, 5, 4, 6)
    assert_best(stack, call, call.run(library, stack))


def test_int8_products_do_not_depend_on_the_number_of_rows(library: Any) -> None:
    """AVX2 multiplies many rows in 16 bits and few in 8; the sums of both are exact, so the tokens are the same."""
    sizes = {"layers": 1, "width": 40, "hidden": 530, "vocabulary": 300}
    stack = Stack(np.random.default_rng(5), pack="int8", **sizes)
    call = Call(stack, 23, 12, 9, masked=True)
    tokens = call.run(library, stack, threads=1)
    for rows in (slice(0, 1), slice(4, 9)):
        np.testing.assert_array_equal(call.rows(rows).run(library, stack), tokens[rows])


@pytest.mark.parametrize(
    ("batch", "length", "source"), [(1, 20, 150), *slow([(1, 70, 150), (150, 3, 3)])]
)
def test_long_targets_and_large_batches(library: Any, batch: int, length: int, source: int) -> None:
    stack = Stack(np.random.default_rng(3), layers=1, vocabulary=300, bias=True)
    call = Call(stack, batch, length, source, masked=True, bias=True)
    assert_best(stack, call, call.run(library, stack, threads=1))


SAMPLING: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.5},
    {"top_k": 4, "temperature": 2.0},
    {"top_p": 0.6},
    {"top_k": 9, "top_p": 0.8},
    {"top_p": 1.0},
    {"min_p": 0.3},
    {"min_p": 0.2, "top_p": 0.9, "temperature": 2.0},
)


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
def test_sampling_inverts_the_cumulative_distribution(library: Any, sampling: Any) -> None:
    stack = Stack(np.random.default_rng(4))
    call = Call(stack, 6, 8, 5, sampling=sampling)
    tokens = call.run(library, stack)
    assert len({*tokens.flat}) > 4
    assert_drawn(stack, call, tokens)


@pytest.mark.parametrize(("beams", "results"), [(1, 1), (3, 2), (8, 8)])
@pytest.mark.parametrize("vocabulary", [4, 24])
def test_several_results_are_those_of_the_definition(
    library: Any, beams: int, results: int, vocabulary: int
) -> None:
    """A search for more goes on longer; of few tokens, or after a prompt that is full, there may be fewer."""
    decided = 0
    for seed, options in enumerate(({}, {"bias": True}, {"rotary": True}, {"encoded_width": 0})):
        options |= {"beams": beams, "results": results, "prompted": seed > 1}
        stack = Stack(np.random.default_rng(seed), vocabulary=vocabulary, **options)
        call = Call(stack, 4, 3 + 2 * seed, 4 if stack.encoded_width else 0, **options)
        if call.prompt is not None:
            call.prompt[0], call.prompt[1] = 3, [3, END, *[PAD] * (call.length - 2)]
        scores = np.full((4, results), 77, np.float32)
        tokens = call.run(library, stack, scores=scores)
        if call.prompt is not None:  # nothing is decided there
            assert scores[:2].tolist() == [[0.0, *[-np.inf] * (results - 1)]] * 2
            assert (tokens[:2, 0] == call.prompt[:2]).all()
            assert not tokens[:2, 1:].any()
            call, tokens, scores = call.rows(slice(2, 4)), tokens[2:], scores[2:]
        decided += beams_decided(stack, call, tokens, scores)
        assert (np.diff(scores[(tokens == END).any(-1).all(-1)]) <= 0).all()
        one = np.full((call.batch, 1), 77, np.float32)
        call.results = 1
        np.testing.assert_array_equal(call.run(library, stack, scores=one)[:, 0], tokens[:, 0])
        np.testing.assert_array_equal(one[:, 0], scores[:, 0])
    assert decided > 6


def test_scores_of_draws(library: Any) -> None:
    """Log probabilities of the model, whatever draws sharpen or cut; a prompt costs nothing."""
    stack = Stack(np.random.default_rng(0), vocabulary=24)
    call = Call(stack, 5, 6, 4, sampling={"temperature": 0.5, "top_k": 3}, prompted=True)
    call.prompt[0, 1:], call.prompt[1] = PAD, 3
    scores = np.full((5, 1), 77, np.float32)
    tokens = call.run(library, stack, scores=scores)
    for b, row in enumerate(tokens):
        expected = 0.0
        for t, token in enumerate(row):
            if call.prompt[b, t] == PAD and token != PAD:
                logits = stack.scores([START, *row[:t]], call, b)[-1]
                expected += (
                    logits[token] - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
                )
        np.testing.assert_allclose(scores[b, 0], expected, atol=1e-4)
    assert scores[1] == 0
    assert (scores[[0, 2]] < 0).all()


@pytest.mark.parametrize("search", [{"beams": 1}, {"beams": 4}, {"sampling": {}}], ids=str)
def test_prompts_of_any_length(library: Any, search: Any) -> None:
    """Also with windows, where a beam's keys lie in the caches of several."""
    decided = 0
    for seed in range(3):
        options = {"window": 3 if seed else 0, "prompted": True, **search}
        stack = Stack(np.random.default_rng(seed), vocabulary=24, **options)
        call = Call(stack, 5, 7, 4, **options)
        call.prompt[0, 2:], call.prompt[1] = PAD, PAD
        tokens = call.run(library, stack)
        given = call.prompt != PAD
        np.testing.assert_array_equal(tokens[given], call.prompt[given])
        if "beams" in search:
            decided += beams_decided(stack, call, tokens)
        else:
            assert_drawn(stack, call, tokens)
    assert decided > 9 or "sampling" in search


@pytest.mark.parametrize("search", [{}, {"beams": 3}, {"sampling": {}}], ids=str)
def test_a_prompt_that_ends_is_all(library: Any, search: Any) -> None:
    stack = Stack(np.random.default_rng(3))
    call = Call(stack, 3, 6, 4, prompted=True, **search)
    call.prompt[:] = [[7, END, PAD, PAD, PAD, PAD], [7, END, 8, PAD, PAD, PAD], [3, 4, 5, 6, 7, 8]]
    tokens = call.run(library, stack)
    expected = [[7, END, 0, 0, 0, 0], [7, END, 0, 0, 0, 0], [3, 4, 5, 6, 7, 8]]
    np.testing.assert_array_equal(tokens, expected)


LONG: tuple[dict[str, Any], ...] = (
    {"rotary": True, "encoded_width": 0},
    {"bias": True, "window": 40, "kv_heads": 2, "masked": True, "qk_norm": True},
    {"table": True, "window": 70, "encoder": True, "sinks": True, "pack": "bfloat16"},
)


@pytest.mark.parametrize("options", LONG, ids=str)
def test_long_prompts_are_read_in_tiles(library: Any, options: Any) -> None:
    """A tile has 64 tokens of one target; so many targets do not go through the layers together."""
    for length, free in ((66, (1, 2, 0, 1, 0, 0, 1)), (131, (2,))):
        stack = Stack(np.random.default_rng(length), vocabulary=40, **options)
        call = Call(
            stack, len(free), length, 3 if stack.encoded_width else 0, prompted=True, **options
        )
        call.prompt[:] = stack.rng.integers(3, 40, call.prompt.shape)
        for row, count in zip(call.prompt, free, strict=True):
            row[length - count :] = PAD
        tokens = call.run(library, stack, threads=1)
        assert_best(stack, call, tokens)


@pytest.mark.parametrize("options", LONG, ids=str)
@pytest.mark.parametrize("search", [{"beams": 3}, {"sampling": {"top_k": 5}}], ids=str)
def test_long_prompts_beside_short_ones(library: Any, search: Any, options: Any) -> None:
    """The bits of a row are its own, however prompts share the room in which they are read."""
    stack = Stack(np.random.default_rng(5), vocabulary=40, **options)
    source = 3 if stack.encoded_width else 0
    call = Call(stack, 9, 150, source, prompted=True, **options, **search)
    tokens = call.run(library, stack, threads=1)
    np.testing.assert_array_equal(tokens[call.prompt != PAD], call.prompt[call.prompt != PAD])
    assert len({*tokens[call.prompt == PAD].flat}) > 4
    for threads in (2, 7):
        np.testing.assert_array_equal(call.run(library, stack, threads), tokens)
    for row in range(0, 9, 4):
        rows = slice(row, row + 1)
        np.testing.assert_array_equal(call.rows(rows).run(library, stack), tokens[rows])


def test_tiny_vocabularies(library: Any) -> None:
    stack = Stack(np.random.default_rng(3), vocabulary=3)  # padding, start, end
    for search in SEARCHES:
        tokens = Call(stack, 2, 4, 3, **search).run(library, stack)
        np.testing.assert_array_equal(tokens, [[END, PAD, PAD, PAD]] * 2)
    stack = Stack(np.random.default_rng(3), vocabulary=1)
    decoder, tokens = c_void_p(), np.full((2, 4), 77, np.int32)
    assert library.heed_decoder_make(stack.struct(), ctypes.byref(decoder)) is None
    decoding = DecodingStruct(2, 4, 0, temperature=1.0, beams=2)  # its only token is all three
    for decoding.search in (0, 2):
        assert library.heed_decode(decoder, decoding, tokens.ctypes.data, None, 2) is None
        assert (tokens == 0).all()
    library.heed_decoder_free(decoder)


def test_a_listener_gets_each_token_and_may_stop(library: Any) -> None:
    stack, lock = Stack(np.random.default_rng(3), queries_per_kv=1), threading.Lock()
    heard: dict[int, list[int]] = collections.defaultdict(list)

    def hear(target: int, token: int, most: int = 9) -> int:
        with lock:
            heard[target].append(token)
        return len(heard[target]) < most

    for search in ({}, {"sampling": {"top_k": 5}}):
        call = Call(stack, 5, 6, 3, prompted=True, **search)
        whole = call.run(library, stack)
        heard.clear()
        np.testing.assert_array_equal(call.run(library, stack, listener=hear), whole)
        given = (call.prompt != PAD).sum(1)
        ends = [[x for x in row[n:] if x != PAD] for row, n in zip(whole, given, strict=True)]
        assert [heard[target] for target in range(5)] == ends
        heard.clear()
        short = call.run(library, stack, listener=lambda *args: hear(*args, most=1))
        at = np.arange(6)
        np.testing.assert_array_equal(short, np.where(at <= given[:, None], whole, PAD))
        assert all(len(tokens) == 1 for tokens in heard.values())
    with pytest.raises(ValueError, match="`on_token` must be NULL"):
        Call(stack, 1, 4, 3, beams=2).run(library, stack, listener=lambda *_: 1)


SEARCHES = ({}, {"sampling": {"top_k": 5}}, {"beams": 3})


@pytest.mark.parametrize("encoder", [False, True])
@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_rows_depend_neither_on_threads_nor_on_each_other(
    library: Any, search: Any, encoder: bool
) -> None:
    sizes = {"width": 40, "hidden": 70, "vocabulary": 100, "kv_heads": 2, "encoder": encoder}
    extras = {"window": 4, "sinks": True, "gate": True, "qk_norm": True, "gated": True}
    extras |= {"experts": 4, "top_k": 2, "normalized": True, "shared": True, "post_norms": True}
    stack = Stack(np.random.default_rng(5), **sizes, **(extras if encoder else {}))
    call = Call(stack, 23, 12, 9, masked=True, prompted=encoder, **search)
    if encoder:
        call.cache = "bfloat16" if "beams" in search else "int8"
    tokens = call.run(library, stack, threads=1)
    for threads in (1, 2, 3, 7, 64, -5, 1000):
        np.testing.assert_array_equal(call.run(library, stack, threads), tokens)
    for rows in (slice(0, 1), slice(4, 9), slice(22, 23)):
        np.testing.assert_array_equal(call.rows(rows).run(library, stack), tokens[rows])


@pytest.mark.parametrize(
    ("search", "read", "pack"),
    [
        ({}, 70, "float32"),  # so long that they share the heads, too
        *slow(itertools.product(SEARCHES[1:], [9, 70], ["float32"])),
        *slow(itertools.product(SEARCHES, [70], ["bfloat16", "int8"])),
        *slow(itertools.product([{}], [9], ["float32", "streamed"])),
    ],
    ids=str,
)
def test_threads_share_a_sentence(library: Any, search: Any, read: int, pack: str) -> None:
    """A model so large that threads without a row of their own take columns of its products."""
    sizes = {"width": 256, "hidden": 530, "vocabulary": 32777, "layers": 1, "pack": pack}
    if pack == "streamed":  # so large that they share rows which each could have for itself
        sizes |= {"vocabulary": 65537, "pack": "float32"}
    heads = {"kv_heads": 4, "queries_per_kv": 2, "head_dim": 32, "value_dim": 33}
    stack = Stack(np.random.default_rng(5), encoder=True, gated=True, **sizes, **heads)
    call = Call(stack, 2, read + 5, read, masked=True, prompted=True, **search)
    call.prompt[:, read:] = PAD
    tokens = call.run(library, stack, threads=1)
    for rows, threads in ((slice(0, 1), 2), (slice(0, 1), 3), (slice(0, 2), 5), (slice(0, 2), 2)):
        np.testing.assert_array_equal(call.rows(rows).run(library, stack, threads), tokens[rows])


@pytest.mark.parametrize(
    "options",
    [
        {"tied": True, "gated": True, "gate": True, "encoder": True},
        *slow(
            [
                {"encoded_width": 0, "experts": 3, "top_k": 2, "normalized": True, "gated": True},
                {"encoded_width": 77, "width": 64, "hidden": 2048, "vocabulary": 1024},
                {"tied": True, "width": 19, "hidden": 16, "vocabulary": 21},
            ]
        ),
    ],
    ids=str,
)
def test_weights_in_place_give_the_bits_of_packed_ones(library: Any, options: Any) -> None:
    """Of layers that begin and end inside panels, for a row, some rows and many."""
    sizes = {"width": 150, "hidden": 533, "vocabulary": 1111, "layers": 1, "kv_heads": 2}
    heads = {"queries_per_kv": 2, "head_dim": 37, "value_dim": 33}
    stack = Stack(np.random.default_rng(5), **sizes | heads | options)
    for batch, search in ((1, {"beams": 1}), (4, {"beams": 3}), (33, {"sampling": {}})):
        call = Call(stack, batch, 8, 5, prompted=batch > 1, **search)
        made = set()
        for in_place, threads in ((-1, 2), (1, 1), (1, 3)):
            stack.in_place, scores = in_place, np.full(batch, np.nan, np.float32)
            made.add((call.run(library, stack, threads, scores).tobytes(), scores.tobytes()))
            assert np.isfinite(scores).all()
        assert len(made) == 1


@pytest.mark.parametrize("in_place", [-1, 1])
def test_weights_in_place_may_change_at_any_time(library: Any, in_place: int) -> None:
    """The next token is that of the new ones; a copy stays what it was."""
    stack = Stack(np.random.default_rng(5), encoded_width=0, vocabulary=90)
    stack.in_place, call = in_place, Call(stack, 1, 6, 0)
    stack.logits.bias[END] = -1e9  # the text goes on

    def change(target: int, token: int) -> bool:
        stack.logits.weight[...] = np.nan
        return True

    expected = call.run(library, stack)
    changed = call.run(library, stack, listener=change)
    assert changed[0, 0] == expected[0, 0]
    assert (changed == expected).all() == (in_place < 0)


@pytest.mark.slow
def test_large_weights_lie_in_huge_pages(any_library: Any) -> None:
    """One matrix is larger than a block of memory, the others share one."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("this system has no huge pages for a process that asks for them")

    def huge_mebibytes() -> float:
        found = re.search(r"AnonHugePages: *(\d+) kB", Path("/proc/self/smaps_rollup").read_text())
        assert found is not None
        return int(found[1]) / 1024

    stack = Stack(np.random.default_rng(5), width=256, hidden=2048, vocabulary=40000, layers=4)
    decoder, before = c_void_p(), huge_mebibytes()
    check(any_library.heed_decoder_make(stack.struct(), ctypes.byref(decoder)))
    made = huge_mebibytes() - before
    any_library.heed_decoder_free(decoder)
    assert made > 48  # of 57 MiB
    assert huge_mebibytes() - before < 8


def with_first_tokens(stack: Stack, length: int, **options: Any) -> Call:
    """Return four targets with first tokens and prompts of their own, of which no token is forbidden."""
    call = Call(stack, 4, length, 0, **options)
    call.first_tokens = stack.place(np.array([3, PAD, START, 5], np.int32))
    prompt = np.full((4, length), -1, np.int32)
    prompt[0, 0], prompt[1, :2] = 4, (END, 4)
    call.prompt = stack.place(prompt)
    return call


def test_first_tokens_and_stops(library: Any) -> None:
    options = {"encoded_width": 0, "rotary": True}
    stack = Stack(np.random.default_rng(1), **options)
    call = with_first_tokens(stack, 7, **options)
    free = call.run(library, stack)
    for b, row in enumerate(free):
        for t, token in enumerate(row):
            if call.prompt[b, t] >= 0:
                assert token == call.prompt[b, t]
                continue
            scores = stack.scores([call.first_tokens[b], *row[:t]], call, b)[-1]
            assert scores[token] >= scores.max() - 1e-4 * np.abs(scores).max(), (b, t)
    call.stop_tokens = stack.place(free[[0, 2], [3, 2]])
    expected = free.copy()
    for b, row in enumerate(expected):
        ends = np.isin(row, call.stop_tokens) & (call.prompt[b] < 0)
        row[np.cumsum(ends) - ends > 0] = -1
    assert (expected == -1).any()
    np.testing.assert_array_equal(call.run(library, stack), expected)


def test_a_beam_search_stops_when_all_hypotheses_hold_a_stop(library: Any) -> None:
    options = {"encoded_width": 0, "beams": 2, "results": 2}
    stack = Stack(np.random.default_rng(4), **options)
    call = with_first_tokens(stack, 7, **options)
    stops = np.arange(9, dtype=np.int32)
    call.length_penalty, call.stop_tokens = 0.0, stack.place(stops)
    found, ends = call.run(library, stack), set()
    for b in range(4):
        prompt = [int(x) for x in call.prompt[b] if x >= 0]
        beams = [(0.0, prompt)]
        while len(beams[0][1]) < 7 and not all({*x[len(prompt) :]} & {*stops} for _, x in beams):
            extended = []
            for score, tokens in beams:
                scores = stack.scores([call.first_tokens[b], *tokens], call, b)[-1]
                share = score + scores - scores.max() - np.log(np.exp(scores - scores.max()).sum())
                extended += [(x, [*tokens, token]) for token, x in enumerate(share)]
            beams = sorted(extended, reverse=True)[:2]
        length = len(beams[0][1])
        ends.add(length)
        np.testing.assert_array_equal(found[b, :, :length], [tokens for _, tokens in beams])
        assert (found[b, :, length:] == -1).all()
    assert len(ends) > 1


@pytest.mark.parametrize("of_all", [False, True])
def test_top_p_of_the_best_or_of_all(library: Any, of_all: bool) -> None:
    sampling = {"top_k": 4, "top_p": 0.5, "temperature": 3.0, "top_p_of_all": of_all}
    stack = Stack(np.random.default_rng(2), encoded_width=0)
    call = Call(stack, 40, 2, 0, sampling=sampling)
    assert_drawn(stack, call, call.run(library, stack))


def test_the_first_of_equal_tokens_is_taken(library: Any) -> None:
    stack = Stack(np.random.default_rng(6), vocabulary=70, biased=False)
    stack.logits.weight[:, 3:] = stack.logits.weight[:, 3:4]
    stack.logits.weight[:, END] = -stack.logits.weight[:, 3]
    assert {*Call(stack, 9, 3, 4).run(library, stack).flat} <= {PAD, END, 3}


def test_rows_end_by_themselves(library: Any) -> None:
    stack = Stack(np.random.default_rng(6), vocabulary=6)
    call = Call(stack, 20, 12, 4, prompted=True)
    tokens = call.run(library, stack)
    lengths = {int((row == END).argmax()) for row in tokens if END in row}
    assert len(lengths) > 1
    assert_best(stack, call, tokens)
    # No padding of a prompt goes through the layers, and nothing of a row that has ended.
    free = (call.prompt == PAD).any(1)
    ended = (call.prompt == END).any(1)
    assert call.tokens_read == (tokens[free & ~ended] != PAD).sum() < tokens.size


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


PROMPTS = ((c_int32 * 6)(5, 20, 0, 4, 0, 7), (c_int32 * 6)(5, 6, 0, 4, 0, 7))
UNKNOWN, BROKEN = map(ctypes.addressof, PROMPTS)
WHOLE = {"weight": None, "whole": 64, "factors": 64, "factor_inputs": 3}  # no address is read
# What is spoilt, which fields, and the words.
FAULTS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("stack", {"heads": 3}, "`self.query` must have 8 inputs and 12 outputs"),
    ("stack", {"kv_heads": 5}, "`kv_heads` must be in"),
    ("stack", {"vocabulary": 0}, "`vocabulary` must be in"),
    ("stack", {"pack": 4}, "`pack` must be in [0, 3]"),
    ("stack", {"embedding": None}, "the embedding is missing"),
    ("stack", {"encoded_width": 0}, "`encoded_width` must be given"),
    ("layer.hidden", WHOLE | {"factors": None}, "the factors of `hidden` are missing"),
    ("layer.hidden", WHOLE, "`factor_inputs` of `hidden` must be a multiple of 32, or at least"),
    ("layer", {"activation": 99}, "`activation` must be in [0, 7]"),
    ("layer.self.query", {"weight": None}, "the weights of `self.query` are missing"),
    ("layer.self.options", {"soft_cap": -1.0}, "`self.soft_cap` must be at least 0"),
    ("layer.self.options", {"sliding_window": -1}, "`self.sliding_window` must be in [0,"),
    ("layer.cross.options", {"sliding_window": 2}, "`cross.sliding_window` must be 0. Received: 2"),
    ("layer.back", {"inputs": 5}, "`back` must have 12 inputs and 8 outputs"),
    ("layer.self_norm", {"gamma": None}, "`self_norm` is missing"),
    ("layer.cross_norm", {"epsilon": 0.0}, "`epsilon` of `cross_norm`"),
    ("decoding", {"prompt": UNKNOWN}, "`prompt` must hold tokens from 0 to 19. Received: 20"),
    (
        "decoding",
        {"prompt": BROKEN},
        "`prompt` must hold padding from the end of a row's tokens on.",
    ),
    ("decoding", {"length": 0}, "`length` must be in [1,"),
    ("decoding", {"batch": -1}, "`batch` must be in [0,"),
    ("decoding", {"pad_token": 20}, "`pad_token` must be in [-1, 19]"),
    ("decoding", {"search": 7}, "`search` must be in [0, 2]"),
    ("decoding", {"cache": 3}, "`cache` must be in [0, 2]. Received: 3"),
    (
        "decoding",
        {"search": 2, "beams": 2, "cache": 2},
        "`cache` must not be int8 for a beam search",
    ),
    ("decoding", {"search": 2}, "`beams` must be in [1, 32]"),
    ("decoding", {"search": 2, "beams": 2, "results": 3}, "`results` must be in [0, 2]"),
    ("decoding", {"search": 1}, "`uniform` is missing"),
    ("decoding", {"encoded": None}, "`encoded` is missing"),
)


@pytest.mark.parametrize(
    ("what", "fields", "words"),
    FAULTS,
    ids=[" ".join((what, *fields)) for what, fields, _ in FAULTS],
)
def test_what_cannot_be_is_refused(any_library: Any, what: str, fields: Any, words: str) -> None:
    stack = Stack(np.random.default_rng(0))
    call = Call(stack, 2, 3, 4)
    struct, decoder = stack.struct(), c_void_p()
    decoding = DecodingStruct(2, 3, 4, None, address(call.encoded))
    decoding.start_token, decoding.end_token, decoding.temperature = START, END, 1.0
    part, _, path = what.partition(".")
    spoilt = {"stack": struct, "layer": layers_of(struct)[1]}.get(part, decoding)
    spoilt = attrgetter(path)(spoilt) if path else spoilt
    for name, value in fields.items():
        setattr(spoilt, name, value)
    said = any_library.heed_decoder_make(struct, ctypes.byref(decoder))
    if part in ("stack", "layer"):
        assert not decoder
    else:
        assert said is None
        tokens = np.full((2, 3), 77, np.int32)
        said = any_library.heed_decode(decoder, decoding, tokens.ctypes.data, None, 1)
        any_library.heed_decoder_free(decoder)
        assert (tokens == 77).all()
    assert words in said.decode()
