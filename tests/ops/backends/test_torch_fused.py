"""PyTorch's own fused attention: chosen where its result is heed's.

On CPUs a stand-in takes the place of `varlen_attn`, PyTorch's kernels for CPUs that of its kernels for GPUs, and the
uncompiled form of `flex_attention`, which builds the scores, that of the compiled one. `tests/gpu` runs the real ones.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types
from collections.abc import Iterator
from typing import Any

import pytest

from tests.backend import BACKEND

if BACKEND != "torch":
    pytest.skip("is about PyTorch", allow_module_level=True)

import hypothesis
import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from keras import ops as keras_ops

import heed
from heed import Mask, ops
from heed.ops.backends.torch.fused import (
    _attention,
    _block_mask,
    _compiling,
    _pairs,
    _sequences,
    flex,
    implementation,
    varlen,
)
from heed.ops.backends.torch.native import implementation as native
from heed.ops.mask import as_mask
from heed.ops.scores import DotScore, FunctionScore
from tests import strategies, tolerances
from tests.ops.backends.fused_calls import Sizes, assert_as_portable, first, second
from tests.slow import slow

flex_module = pytest.importorskip("torch.nn.attention.flex_attention")
if not hasattr(flex_module, "AuxRequest"):
    pytest.skip("needs PyTorch 2.9", allow_module_level=True)

B, T, S, N, K, H = 2, 9, 11, 4, 2, 8


def stand_in(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Return `varlen_attn`, sequence by sequence."""
    assert enable_gqa == (query.shape[1] != key.shape[1])
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    group = query.shape[1] // key.shape[1]
    parts = []
    pairs = [list(itertools.pairwise(x)) for x in (cu_seq_q.tolist(), cu_seq_k.tolist())]
    for (begin, end), (low, high) in zip(*pairs, strict=True):
        assert 0 <= end - begin <= max_q
        assert 0 <= high - low <= max_k
        rows = query[begin:end].transpose(0, 1).float()
        keys, values = (
            x[low:high].transpose(0, 1).repeat_interleave(group, 0).float() for x in (key, value)
        )
        if high > low:
            left, right = (max_q + max_k if x < 0 else x for x in window_size)
            distance = torch.arange(high - low) - torch.arange(end - begin)[:, None]
            distance = distance - ((high - low) - (end - begin))
            hidden = (distance < -left) | (distance > right)
            scores = (scale * rows @ keys.mT).masked_fill(hidden, -torch.inf)
            rows = torch.softmax(scores, -1) @ values
        else:
            rows = torch.zeros_like(rows)
        parts.append(rows.transpose(0, 1))
    return torch.cat(parts).to(query.dtype)


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let heed see a machine with a GPU, with small blocks."""
    reason = ("there is a GPU, and the native kernels are for CPUs",)
    for place, name, new in (
        (implementation, "machine_reasons", lambda: ()),
        (implementation, "is_on_gpu", lambda _: True),
        (native, "machine_reasons", lambda: reason),
        (flex, "_machine_reasons", lambda: ()),
        (flex, "SHORTEST", 1),
        (flex, "WIDTHS", range(1, 257)),
        (_block_mask, "WIDTH", 4),
        (_compiling, "has_triton", lambda: False),
        (varlen, "varlen_attn", stand_in),
        (varlen, "ARGUMENTS", ("scale", "window_size", "enable_gqa")),
        # It refuses gradients on CPUs.
        (flex_module, "_validate_device", lambda *_: None),
    ):
        monkeypatch.setattr(place, name, new, raising=name != "_validate_device")
    # Even uncompiled, PyTorch traces, and after several calls with numbers as symbols.
    torch.compiler.reset()


pytestmark = pytest.mark.filterwarnings(
    "ignore:flex_attention called without torch.compile",
    "ignore:The .grad attribute of a Tensor that is not a leaf",
    "ignore:Dynamo detected a call to a `functools.lru_cache`",
    "ignore:<class .torch.autograd.function.Function.> should not be instantiated",
)


def inputs(
    dtype: str = "float32", keys: int = S, kv_heads: int = K, layout: str = "BTNH"
) -> list[torch.Tensor]:
    made = Sizes(B, T, keys, N, kv_heads, H).draw(dtype, layout)
    return [x.requires_grad_() for x in made]


SLOPES = np.array([0.5, 0.25, 0.1, 0.0], "float32")
IDS = np.array([[0, 0, 1, 1, 1, 2, 2, 2, 2], [3, 3, 1, 1, 1, 2, 2, 2, 2]])
KEY_IDS = np.array([[0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 2], [3, 1, 1, 1, 1, 1, 2, 2, 2, 2, 0]])
RANDOM = np.random.default_rng(0).random((N, T, S)) < 0.4
TABLE = torch.tensor(np.random.default_rng(1).normal(size=(N, S)), dtype=torch.float32)
SHOWN = np.random.default_rng(2).random((B, S)) < 0.7


# Name: implementation, dtype, shape, options.
CALLS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "all": ("sdpa", "float32", {"kv_heads": N}, {}),
    "causal": ("sdpa", "float32", {"kv_heads": N, "keys": T}, {"is_causal": True}),
    "causal to the end, grouped": (
        "sdpa",
        "float16",
        {"layout": "BNTH"},
        {"mask": Mask.causal("bottom_right"), "layout": "BNTH", "scale": 0.3},
    ),
    "lengths": ("varlen_attn", "float16", {}, {"mask": Mask.lengths([11, 0])}),
    "lengths of both": (
        "varlen_attn",
        "bfloat16",
        {"layout": "BNTH"},
        {"mask": Mask.lengths([30, 4], [7, 3]), "layout": "BNTH"},
    ),
    "window": ("flex_attention", "float32", {}, {"mask": Mask.window(3, 1)}),
    "window to the last key": (
        "varlen_attn",
        "float16",
        {},
        {"mask": Mask.window(3, 1, "bottom_right") & Mask.window(None, 0, "bottom_right")},
    ),
    "documents": (
        "varlen_attn",
        "bfloat16",
        {"keys": T, "layout": "BNTH"},
        {"mask": Mask.segments(IDS) & Mask.causal(), "layout": "BNTH"},
    ),
    "lengths of float32": ("flex_attention", "float32", {}, {"mask": Mask.lengths([11, 0])}),
    "segments": ("flex_attention", "float32", {}, {"mask": Mask.segments(IDS, KEY_IDS)}),
    "dense": ("flex_attention", "float32", {"kv_heads": N}, {"mask": RANDOM}),
    "soft cap and ALiBi": (
        "flex_attention",
        "float32",
        {},
        {"soft_cap": 2.0, "alibi_slopes": SLOPES},
    ),
    "several": (
        "flex_attention",
        "float32",
        {"layout": "BNTH"},
        {
            "mask": Mask.prefix(np.array([2, 5]), "bottom_right")
            & Mask.dilated(2, "bottom_right")
            & Mask.lengths([11, 9]),
            "alibi_slopes": SLOPES,
            "soft_cap": 3.0,
            "layout": "BNTH",
        },
    ),
    "function": (
        "flex_attention",
        "float32",
        {},
        {
            "score_mod": lambda s, b, h, i, j: keras_ops.where(j - i < 4, s * (h + 1), -1e31),
            "soft_cap": 3.0,
        },
    ),
    "functions": (
        "flex_attention",
        "float32",
        {"layout": "BNTH"},
        {
            "score_mod": lambda s, b, h, i, j: s + TABLE[h, j],
            "mask": Mask.where(lambda b, h, i, j: SHOWN[b, j] & (j <= i + h))
            & Mask.lengths([11, 0]),
            "alibi_slopes": SLOPES,
            "layout": "BNTH",
        },
    ),
}


@pytest.mark.usefixtures("with_gpu")
@pytest.mark.parametrize("name", CALLS)
def test_it_gives_what_the_portable_form_gives(name: str) -> None:
    chosen, dtype, shape, options = CALLS[name]
    tensors = inputs(dtype, **shape)
    assert heed.explain_dispatch(*tensors, **options).implementation == chosen
    assert_as_portable(first, tensors, options, dtype)


@pytest.mark.usefixtures("with_gpu")
@pytest.mark.parametrize("name", ["causal", *slow(["all", "window", "several"])])
def test_second_derivatives(name: str) -> None:
    _, dtype, shape, options = CALLS[name]
    assert_as_portable(second, inputs(dtype, **shape), options, dtype)


@pytest.mark.usefixtures("with_gpu")
@pytest.mark.parametrize("name", ["window", *slow(["lengths of float32", "soft cap and ALiBi"])])
def test_the_log_sum_exp_and_its_gradients_come_from_flex_attention(name: str) -> None:
    _, dtype, shape, options = CALLS[name]

    def run(tensors: list[torch.Tensor], options: dict[str, Any]) -> list[torch.Tensor]:
        output, lse = ops.dot_product_attention(*tensors, **options, return_lse=True)
        found = torch.autograd.grad([output, lse], tensors, [output.detach(), torch.ones_like(lse)])
        return [output, lse, *found]

    assert_as_portable(run, inputs(dtype, **shape), options, dtype)


def hide_near(table: torch.Tensor) -> Any:
    """Return a function that hides keys, where its logarithm has no value, and reads a table twice."""

    def score_mod(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        score = score + table[head, keras_ops.abs(key - query)] * keras_ops.log(4.0 + query - key)
        return keras_ops.where(key - query < 4, score * keras_ops.exp(table[0, 2]), -1e31)

    return score_mod


@pytest.mark.usefixtures("with_gpu")
@pytest.mark.parametrize("is_compiled", [False, *slow([True])])
def test_functions_and_the_gradients_of_what_they_capture(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_compiled:
        compile_ = functools.partial(torch.compile, backend="aot_eager")
        monkeypatch.setattr(torch, "compile", compile_)
        monkeypatch.setattr(_compiling, "has_triton", lambda: True)

    def run(tensors: list[torch.Tensor], options: dict[str, Any]) -> list[torch.Tensor]:
        *operands, table = tensors
        output = ops.dot_product_attention(*operands, score_mod=hide_near(table), **options)
        upstream = torch.linspace(-1, 1, output.numel()).reshape(output.shape)
        found = torch.autograd.grad(output, tensors, upstream, create_graph=True)
        return [output, *found, *torch.autograd.grad(sum(x.square().sum() for x in found), tensors)]

    tensors = [*inputs(), TABLE.clone().requires_grad_()]
    options = {"mask": Mask.window(6, 3)}
    told = heed.explain_dispatch(*tensors[:3], score_mod=hide_near(tensors[3]), **options)
    assert told.implementation == "flex_attention"
    assert_as_portable(run, tensors, options, "float32")
    torch.use_deterministic_algorithms(True)
    try:
        told = heed.explain_dispatch(*tensors[:3], score_mod=hide_near(tensors[3]), **options)
    finally:
        torch.use_deterministic_algorithms(False)
    assert told.implementation == "portable"
    assert "in no fixed order" in str(told)


def test_the_functions_of_one_call_are_known_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pairs, "_KNOWN", {})
    monkeypatch.setattr(_pairs, "_MOST_KNOWN", 2)
    rules = [
        as_mask(Mask.where(lambda b, h, i, j, n=n: j < n)).bind(B, N).rules[0] for n in (1, 2, 3)
    ]
    first, second, third = (rule.function for rule in rules)
    _pairs.remember(first, second)
    _pairs.remember(first, third)
    assert set(_pairs._KNOWN) == {first, third}


# Of each place, a number that no row sees under `lengths`, and one that some rows see.
PLACES = {"query": (0, [(1, 8), (0, 3)]), "key": (1, [(1, 10), (0, 3)]), "value": (2, [(1, 10)])}
HIDDEN = {
    "sdpa": {"mask": Mask.causal("bottom_right")},
    "varlen_attn": {"mask": Mask.lengths([11, 4], [9, 7])},
    "varlen_attn, window": {"mask": Mask.window(4, 1, "bottom_right")},
    "varlen_attn, documents": {"mask": Mask.segments(IDS) & Mask.window(None, 1)},
    "flex_attention": {"mask": Mask.window(3, 0, "bottom_right") & Mask.lengths([11, 4])},
}
FUNCTION = {
    "mask": Mask.where(lambda b, h, i, j: (j <= i + 2) & (j > i - 2) & (j + 7 * b < 11)),
    "score_mod": lambda s, b, h, i, j: keras_ops.where(
        j == 5, keras_ops.exp(s), keras_ops.where(j == 3, -1e31, s)
    ),
}


@pytest.mark.usefixtures("with_gpu")
@pytest.mark.parametrize(
    ("name", "place"),
    [
        *itertools.product(HIDDEN, PLACES),
        ("function", "value"),
        *slow([("function", "query"), ("function", "key")]),
    ],
)
def test_nonfinite_numbers_reach_the_rows_that_see_them(name: str, place: str) -> None:
    (operand, positions), options = PLACES[place], HIDDEN.get(name, FUNCTION)
    keys = T if "documents" in name else S
    name = name.partition(",")[0] if name in HIDDEN else "flex_attention"
    dtype = "float32" if name == "flex_attention" else "float16"
    tensors = inputs(dtype, keys=keys)
    assert heed.explain_dispatch(*tensors, **options).implementation == name
    with torch.no_grad():
        for (entry, position), number in zip(positions, (torch.nan, -torch.inf), strict=False):
            tensors[operand][entry, min(position, keys - 1), 1, 2] = number
    assert_as_portable(first, tensors, options, dtype)


@pytest.mark.usefixtures("with_gpu")
@pytest.mark.parametrize("name", HIDDEN)
def test_a_nonfinite_gradient_reaches_the_keys_of_its_row(name: str) -> None:
    upstream = np.ones((B, T, N, H))
    upstream[0, 4, 1, 2] = np.inf
    dtype = "float32" if name == "flex_attention" else "float16"
    keys = T if "documents" in name else S
    assert_as_portable(first, inputs(dtype, keys=keys), HIDDEN[name], dtype, upstream)


@pytest.mark.usefixtures("with_gpu")
def test_a_second_backward_pass_computes_the_forward_pass_again() -> None:
    tensors = inputs()
    output = ops.dot_product_attention(*tensors, mask=Mask.window(3, 1))
    one, other = (torch.autograd.grad(output.sum(), tensors, retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, one, other))


@pytest.mark.usefixtures("with_gpu")
def test_the_sequences_that_varlen_attn_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def record(*tensors: torch.Tensor, scale: float, **others: Any) -> torch.Tensor:
        calls.append(([x.tolist() for x in tensors[3:5]], *tensors[5:], scale, others))
        return stand_in(*tensors, scale=scale, **others)

    monkeypatch.setattr(varlen, "varlen_attn", record)
    tensors = [x.detach() for x in inputs("bfloat16")]
    ops.dot_product_attention(*tensors, mask=Mask.lengths([11, 4]), scale=0.5)
    both = Mask.lengths([30, 0], [7, 20]) & Mask.lengths([9, 9])
    ops.dot_product_attention(*tensors, mask=both, scale=0.25)
    groups = {"enable_gqa": True}
    assert calls == [
        ([[0, 9, 9, 18, 18], [0, 11, 11, 15, 22]], 9, 11, 0.5, groups),
        ([[0, 7, 9, 9, 18, 18, 18], [0, 9, 9, 11, 11, 11, 22]], 9, 11, 0.25, groups),
    ]


@pytest.mark.usefixtures("with_gpu")
def test_segments_that_change_in_place_are_read_again() -> None:
    tensors = [x.detach() for x in inputs("float16", keys=T)]
    ids = torch.tensor(IDS, dtype=torch.int32)
    mask = Mask.segments(ids)

    def check(name: str) -> None:
        assert heed.explain_dispatch(*tensors, mask=mask).implementation == name
        found = ops.dot_product_attention(*tensors, mask=mask)
        with heed.set_implementation("portable"):
            expected = ops.dot_product_attention(*tensors, mask=Mask.segments(ids.clone()))
        torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)

    check("varlen_attn")
    ids[0, 2] = 0
    check("varlen_attn")
    ids.data[0, 3] = 0  # which PyTorch does not count
    check("varlen_attn")
    ids.data[0, 8] = 0  # scattered, which is noticed when it is too late for `flex_attention`
    check("varlen_attn")
    check("flex_attention")


@pytest.mark.usefixtures("with_gpu")
def test_nothing_that_a_recording_makes_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that records a graph computes nothing yet."""
    monkeypatch.setattr(_sequences, "is_recording", lambda: True)
    monkeypatch.setattr(_attention, "is_recording", lambda: True)
    _sequences._kept_ends.cache_clear()
    tensors = [x.detach() for x in inputs("float16", keys=T)]
    assert_as_portable(
        lambda x, options: [ops.dot_product_attention(*x, **options)],
        tensors,
        {"mask": Mask.window(3, 0)},
        "float16",
    )
    assert not _sequences._kept_ends.cache_info().currsize
    documents = {"mask": Mask.segments(IDS)}  # whose numbers nobody can read
    assert heed.explain_dispatch(*tensors, **documents).implementation == "flex_attention"


@pytest.mark.usefixtures("with_gpu")
def test_lengths_that_change_in_place_mean_0_below_it_and_forbid_a_backward_pass() -> None:
    lengths = torch.tensor([11, 4], dtype=torch.int32)
    mask = Mask.lengths(lengths)
    lengths[1] = -1
    tensors = inputs("float16")
    with torch.no_grad():
        tensors[1][0, 3] = torch.nan
    assert_as_portable(first, tensors, {"mask": mask}, "float16")
    output = ops.dot_product_attention(*tensors, mask=mask)
    lengths[1] = 4
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@given(data=st.data())
def test_ranges_are_what_the_mask_shows(data: st.DataObject) -> None:
    shape = data.draw(strategies.shapes((4, 4)))
    shape = dataclasses.replace(shape, S=max(shape.T, shape.S))
    window = strategies.window_masks(shape, "bottom_right")
    case = data.draw(st.one_of(strategies.lengths_masks(shape), window))
    if data.draw(st.booleans()):
        shape = dataclasses.replace(shape, S=shape.T)
        window = strategies.window_masks(shape, "bottom_right")
        case = data.draw(strategies.segments_masks(shape)) & data.draw(window)
    described: Any = types.SimpleNamespace(
        mask=as_mask(case.build()), lengths=(shape.T, shape.S), cache={}
    )
    ranges = _sequences.Ranges.of(described)
    hypothesis.assume(ranges is not None)
    first_key, end_key, first_query, end_query = ranges.reach(shape.T, shape.S, "cpu")
    dense = np.broadcast_to(case.dense, (shape.B, 1, shape.T, shape.S))[:, 0]
    j, i = np.arange(shape.S), np.arange(shape.T)[:, None]
    keys = (j >= first_key.numpy()[..., None]) & (j < end_key.numpy()[..., None])
    np.testing.assert_array_equal(np.broadcast_to(keys, dense.shape), dense)
    queries = (i >= first_query.numpy()[:, None]) & (i < end_query.numpy()[:, None])
    np.testing.assert_array_equal(np.broadcast_to(queries, dense.shape), dense)


@pytest.mark.usefixtures("with_gpu")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"scale": -1.0}, "scale above 0"),
        ({"dropout": 0.1, "seed": 1}, "drops other weights"),
        ({"bias": np.zeros((T, S), "float32")}, "by a bias"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_other_calls_run_in_the_portable_form_and_say_why(
    options: dict[str, Any], reason: str
) -> None:
    tensors = [x.detach() for x in inputs()]
    told = heed.explain_dispatch(*tensors, **options)
    assert told.implementation == "portable"
    assert "the native kernels are for CPUs" in str(told)
    assert reason in str(told)
    assert len(set(told.reasons)) == len(told.reasons)
    with heed.set_implementation("sdpa"), pytest.raises(ValueError, match="sdpa implementation"):
        ops.dot_product_attention(*tensors, **options)


@pytest.mark.usefixtures("with_gpu")
def test_shapes_dtypes_and_masks_that_one_call_does_not_take() -> None:
    query, key, value = (x.detach() for x in inputs(kv_heads=N))
    half = [x.half() for x in (query, key, value)]
    lengths = {"mask": Mask.lengths([4, 5])}
    square = [x[:, :T] for x in half]
    scattered = np.array([[0, 0, 1, 1, 1, 2, 2, 2, 2], [3, 3, 1, 1, 1, 3, 2, 2, 2]])

    def double(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        return 2 * score

    end = {"mask": Mask.causal("bottom_right")}
    for operands, options, name, reason in (
        ((query, key[:, :, :2], value[:, :, :2]), {}, "sdpa", "grouped heads"),
        ((query, key, value[..., :4]), {}, "sdpa", "values as wide"),
        ((query, key, value), {"soft_cap": 2.0}, "sdpa", "no scores but scaled products"),
        ((query, key, value), {"alibi_slopes": SLOPES}, "sdpa", "no ALiBi"),
        ((query, key, value), {"is_causal": True}, "sdpa", "no mask but a causal one"),
        ((query, key, value), end, "sdpa", "the mask in memory"),
        ((query, key[:, :5], value[:, :5]), end, "sdpa", "no mask but a causal one"),
        ((query, key, value), lengths, "varlen_attn", "float16 and bfloat16"),
        (half, {"mask": Mask.prefix(2)}, "varlen_attn", "no mask but lengths, a window"),
        (half, {"mask": Mask.window(3, 0)}, "varlen_attn", "no mask but lengths, a window"),
        (half, {"mask": Mask.segments(IDS, KEY_IDS)}, "varlen_attn", "no mask but lengths"),
        (
            [half[0][:, :1], *(x[:, :, :2] for x in half[1:])],
            lengths,
            "varlen_attn",
            "single query",
        ),
        (square, {"mask": Mask.segments(scattered)}, "varlen_attn", "one run of positions"),
        (square, {"mask": Mask.segments(IDS) & Mask.lengths([4, 5])}, "varlen_attn", "no mask"),
        (half, lengths | {"soft_cap": 2.0}, "varlen_attn", "no scores but scaled products"),
        (half, lengths | {"alibi_slopes": SLOPES}, "varlen_attn", "no ALiBi"),
        (half, lengths | {"score_mod": double}, "varlen_attn", "no scores but scaled products"),
        (half, {"score_mod": double}, "sdpa", "no scores but scaled products"),
        ((*half[:2], half[2][..., :4]), lengths, "varlen_attn", "values as wide"),
        ([x[..., :6] for x in half], lengths, "varlen_attn", "multiples of 8"),
    ):
        told = heed.explain_dispatch(*operands, **options)
        assert told.implementation != name
        assert any(reason in x for x in told.reasons), (reason, told)
    for operands, reason in (
        ([x.double() for x in (query, key, value)], "float64"),
        ((query, key[:, :0], value[:, :0]), "at least one"),
    ):
        told = heed.explain_dispatch(*operands)
        assert told.implementation == "portable"
        assert reason in str(told)


@pytest.mark.usefixtures("with_gpu")
def test_few_queries_and_odd_widths_are_not_for_flex_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flex, "SHORTEST", 128)
    monkeypatch.setattr(flex, "WIDTHS", range(16, 129))
    told = heed.explain_dispatch(*inputs(), mask=Mask.window(3, 0))
    assert told.implementation == "portable"
    assert "flex_attention takes widths from 16 to 128" in str(told)
    assert "flex_attention gains nothing below 128 queries or keys" in str(told)


@pytest.mark.usefixtures("with_gpu")
def test_an_array_is_for_flex_attention_only_as_it_was_seen_to_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = heed.explain_dispatch(*inputs(), mask=RANDOM)
    assert told.implementation == "portable"
    assert "flex_attention was not seen to work on a GPU for a mask as an array" in str(told)
    monkeypatch.setattr(flex, "WIDEST_WITH_ARRAY", H - 1)
    equal = inputs(kv_heads=N)
    assert heed.explain_dispatch(*equal, mask=RANDOM).implementation == "portable"
    assert heed.explain_dispatch(*equal, mask=Mask.window(3, 1)).implementation == "flex_attention"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Yield the masks whose blocks were classified."""
    found: list[Any] = []
    classify = Mask.classify

    def record(mask: Mask, *blocks: Any) -> Any:
        found.append(mask)
        return classify(mask, *blocks)

    monkeypatch.setattr(Mask, "classify", record)
    _block_mask._make_lists.cache_clear()
    yield found
    _block_mask._make_lists.cache_clear()


@pytest.mark.usefixtures("with_gpu")
def test_the_blocks_of_a_mask_of_numbers_are_classified_once(made: list[Any]) -> None:
    def attend(mask: Any, tensors: list[torch.Tensor]) -> torch.Tensor:
        return ops.dot_product_attention(*tensors, mask=mask)

    tensors = inputs()
    with torch.inference_mode():  # whose tensors could not be kept for a backward pass
        attend(Mask.window(3, 1, "bottom_right"), tensors)
    assert len(made) == 1
    for _ in range(2):
        options = {"mask": Mask.window(3, 1, "bottom_right")}
        assert_as_portable(first, tensors, options, "float32")
    assert len(made) == 1
    attend(Mask.window(4, 1, "bottom_right"), tensors)
    attend(Mask.window(3, 1, "bottom_right"), inputs(keys=S + 1))
    assert len(made) == 3
    attend(Mask.segments(IDS, KEY_IDS), tensors)  # whose tensors may change in place
    assert len(made) == 4
    assert _block_mask._make_lists.cache_info().currsize == 3


def test_each_device_has_its_own_blocks(made: list[Any]) -> None:
    mask = as_mask(Mask.window(3, 1))
    for device in "cpu", "meta", "cpu", "meta":
        lists = _block_mask.prepare_blocks(mask, (), T, S, torch.device(device))
        assert {x.device.type for x in lists} == {device}
    assert len(made) == 2


@pytest.mark.usefixtures("with_gpu")
def test_a_call_that_cannot_be_compiled_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise torch._dynamo.exc.TorchDynamoException("no compiler\nand so on")

    monkeypatch.setattr(_compiling, "has_triton", lambda: True)
    monkeypatch.setattr(_compiling, "compiled", lambda *_: fail)
    monkeypatch.setattr(_compiling, "_failures", {})
    tensors, mask = inputs(), Mask.window(3, 1)
    with pytest.warns(RuntimeWarning, match="cannot compile flex_attention.*no compiler"):
        found = ops.dot_product_attention(*tensors, mask=mask)
    told = heed.explain_dispatch(*tensors, mask=mask)
    assert told.implementation == "portable"
    assert "no compiler" in str(told)
    assert torch.equal(found, ops.dot_product_attention(*tensors, mask=mask))


@pytest.mark.usefixtures("with_gpu")
def test_tensors_on_a_cpu_beside_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implementation, "is_on_gpu", lambda x: x.is_cuda)
    tensors, mask = inputs(), Mask.window(3, 1)
    monkeypatch.setattr(flex.Flex, "express", None)
    assert_as_portable(first, tensors, {"mask": mask}, "float32")


@pytest.mark.usefixtures("with_gpu")
@pytest.mark.slow
def test_inside_a_compiled_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compiling, "has_triton", lambda: True)
    ids = torch.tensor(IDS)

    def model(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        one = ops.dot_product_attention(query, key, value, mask=Mask.segments(ids) & Mask.causal())
        other = ops.dot_product_attention(query, key, value, mask=Mask.window(3, 1), soft_cap=2.0)
        return one + 2 * other + ops.dot_product_attention(query, key, value, is_causal=True)

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")

    def run(tensors: list[torch.Tensor], attend: Any) -> list[torch.Tensor]:
        output = attend(*tensors)
        return [output, *torch.autograd.grad(output.square().sum(), tensors)]

    tensors = inputs(keys=T, kv_heads=N)
    found = run(tensors, compiled)
    with heed.set_implementation("portable"):
        for one, other in zip(found, run(tensors, model), strict=True):
            tolerances.assert_gradients(one, tolerances.to_float64(other), "float32")


# One rule of these kinds says of each block what is true; several, and scattered segments, may compute some in vain.
EXACT = (*strategies.ALIGNED, strategies.lengths_masks, strategies.dense_masks)


@pytest.mark.parametrize("kind", EXACT, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_block_mask_of_one_rule_is_that_of_its_pairs(kind: Any, data: st.DataObject) -> None:
    width = data.draw(st.sampled_from((1, 3, 4)))
    shape = data.draw(strategies.shapes((width, width)))
    assert_block_mask(data.draw(kind(shape)), shape, width, exact=True)


@given(data=st.data())
def test_a_block_mask_of_several_rules_computes_all_their_pairs(data: st.DataObject) -> None:
    width = data.draw(st.sampled_from((1, 3, 4)))
    shape = data.draw(strategies.shapes((width, width)))
    assert_block_mask(data.draw(strategies.masks(shape)), shape, width, exact=False)


def test_documents_side_by_side_are_no_blocks_in_vain() -> None:
    shape = strategies.Shape(B=1, T=40, S=40)
    ids = np.repeat(np.arange(4), 10)[None]
    dense = (ids[:, :, None] == ids[:, None])[:, None]
    case = strategies.MaskCase("documents", lambda: Mask.segments(ids), dense)
    assert_block_mask(case, shape, 4, exact=True)


def test_the_blocks_of_functions_are_those_that_their_bounds_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_block_mask, "WIDTH", 4)
    place = 20, 24, torch.device("cpu")

    def lists(mask: Any, limits: Any = ()) -> list[Any]:
        mask = None if mask is None else as_mask(mask).bind(B, N)
        prepared = _block_mask.prepare_blocks(mask, limits, *place)
        made = _block_mask.block_mask(mask, B, *place, prepared)
        return [
            getattr(made, name).expand(B, -1, -1, *[-1] * (i % 2)).tolist()
            for i, name in enumerate(_block_mask._LISTS)
        ]

    shown = torch.tensor(SHOWN)
    window = Mask.where(lambda b, h, i, j: (j <= i) & (i - j < 9))
    expected = lists(Mask.window(8, 0))
    assert lists(window) == expected
    lengths = torch.tensor([24, 13])
    assert lists(window & Mask.lengths(lengths)) == lists(Mask.window(8, 0) & Mask.lengths(lengths))
    # An array says nothing of a block: all that the rest shows is computed.
    partial = lists(window & Mask.where(lambda b, h, i, j: shown[b, j % S]))
    assert partial[2] == np.zeros_like(partial[2]).tolist()
    assert partial[0] == np.add(expected[0], expected[2]).tolist()
    far = FunctionScore.of(
        DotScore(1.0),
        lambda s, b, h, i, j: keras_ops.where(i - j < 9, s, -1e31),
        (B, N, 20, 24),
        "float32",
    )
    # What the function of a score hides in a block, it hides itself.
    assert lists(None, far.limits)[0] == np.zeros((B, 1, 5), int).tolist()
    assert lists(None, far.limits)[2] == [[[6, 6, 6, 5, 4]]] * B


def assert_block_mask(
    case: strategies.MaskCase, shape: strategies.Shape, width: int, exact: bool
) -> None:
    """Check that blocks that are computed as a whole are those that are full; all that show a pair are computed."""
    dense = np.broadcast_to(case.dense, (shape.B, shape.N, shape.T, shape.S))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_block_mask, "WIDTH", width)
        made = _block_mask.block_mask(as_mask(case.build()), shape.B, shape.T, shape.S, "cpu")
    truth = torch.tensor(dense)
    expected = flex_module.create_block_mask(
        lambda b, h, i, j: truth[b, h, i, j], shape.B, shape.N, shape.T, shape.S, "cpu", width
    )
    pairs = flex_module.create_mask(made.mask_mod, shape.B, shape.N, shape.T, shape.S, "cpu")
    np.testing.assert_array_equal(pairs, truth)
    blocks = (shape.B, shape.N, -(-shape.T // width), -(-shape.S // width))

    def lists(mask: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return which blocks are partial, and which are full."""
        found = []
        for counts, columns in (
            (mask.kv_num_blocks, mask.kv_indices),
            (mask.full_kv_num_blocks, mask.full_kv_indices),
        ):
            chosen = torch.zeros(columns.shape, dtype=torch.bool)
            chosen.scatter_(-1, columns.long(), torch.arange(columns.shape[-1]) < counts[..., None])
            found.append(np.broadcast_to(np.asarray(chosen), blocks))
        return found[0], found[1]

    (partial, full), (least, whole) = lists(made), lists(expected)
    np.testing.assert_array_equal(full, whole)
    assert not (partial & full).any()
    assert (partial >= least).all()
    if exact:
        np.testing.assert_array_equal(partial, least)
