"""The native core by itself, through its C interface, for each instruction set of this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests import reference
from tests.native import core, fuzz_problems
from tests.native.core import DENSE, DILATED, LENGTHS, LIBRARY, PREFIX, RULES, SEGMENTS, WINDOW
from tests.slow import slow
from tests.tolerances import assert_gradients, assert_statistics, assert_values

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="installed without the native library")


def random_rules(
    rng: np.random.Generator, batch: int, queries: int, keys: int
) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Return up to three rules of a mask, and the booleans (B, 1, T, S) that they mean."""
    i, j = np.arange(queries)[:, None], np.arange(keys)[None]
    rules: list[dict[str, Any]] = []
    mask = np.ones((batch, 1, queries, keys), bool)
    for kind in rng.permutation(RULES)[: rng.integers(0, 4)]:
        align = rng.integers(-3, keys, batch)
        at = i + align[:, None, None, None]
        if kind == WINDOW:
            left, right = (int(n) for n in rng.integers(0, keys + 2, 2))
            rules.append({"rule": kind, "left": left, "right": right, "align": align})
            mask = mask & (j >= at - left) & (j <= at + right)
        elif kind == PREFIX:
            first = rng.integers(0, keys + 1, batch)
            rules.append({"rule": kind, "align": align, "first": first})
            mask = mask & ((j < first[:, None, None, None]) | (j <= at))
        elif kind == LENGTHS:
            first, second = rng.integers(-1, keys + 2, batch), rng.integers(0, queries + 2, batch)
            rules.append({"rule": kind, "first": first, "second": second})
            mask = mask & (j < first[:, None, None, None]) & (i < second[:, None, None, None])
        elif kind == SEGMENTS:
            first = np.sort(rng.integers(0, 3, (batch, queries)))
            second = np.sort(rng.integers(0, 3, (batch, keys)))
            rules.append({"rule": kind, "first": first, "second": second})
            mask = mask & (first[:, None, :, None] == second[:, None, None, :])
        elif kind == DILATED:
            dilation = int(rng.integers(1, rng.choice([3, 40, 2 * keys + 2])))
            rules.append({"rule": kind, "left": dilation, "align": align})
            mask = mask & ((at - j) % dilation == 0)
        else:
            dense = rng.random((batch if rng.random() < 0.5 else 1, 1, queries, keys)) < 0.7
            rules.append({"rule": kind, "dense": dense})
            mask = mask & dense
    return rules, mask


def random_call(seed: int) -> tuple[list[np.ndarray], dict[str, Any], dict[str, Any]]:
    """Return tensors, options of the core, and the same options for the reference, all from one seed."""
    rng = np.random.default_rng(seed)
    batch, kv_heads, queries_per_kv = (int(rng.integers(1, 4)) for _ in range(3))
    heads = kv_heads * queries_per_kv
    queries, keys = (int(rng.choice([1, 2, 5, 63, 64, 65, 128, 129, 150])) for _ in range(2))
    width, value_width = (int(rng.choice([1, 3, 8, 15, 16, 17, 40])) for _ in range(2))
    dtype = rng.choice([np.float32, np.float64])
    shapes = [(batch, queries, heads, width), (batch, keys, kv_heads, width)]
    shapes += [(batch, keys, kv_heads, value_width), (batch, queries, heads, value_width)]
    tensors = [rng.normal(size=shape).astype(dtype) for shape in shapes]
    rules, mask = random_rules(rng, batch, queries, keys)
    options: dict[str, Any] = {"rules": rules}
    expected: dict[str, Any] = {"mask": mask}
    if rng.random() < 0.3:
        options["soft_cap"] = expected["soft_cap"] = 2.0
    if rng.random() < 0.3:
        options["bias"] = expected["bias"] = rng.normal(size=(1, heads, queries, 1)).astype(dtype)
    if rng.random() < 0.3:
        options["slopes"] = expected["alibi_slopes"] = rng.random(heads)
    return tensors, options, expected


def busy_call(seed: int) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Return such a call with its batch repeated until it is worth several threads."""
    tensors, options, _ = random_call(seed)
    batch, queries, heads, width = tensors[0].shape
    work = batch * heads * queries * tensors[1].shape[1] * width
    times = int(np.clip(2e7 // work, 1, 500))

    def repeated(x: Any) -> Any:
        known = isinstance(x, np.ndarray) and len(x) == batch
        return np.concatenate([x] * times) if known else x

    rules = [{name: repeated(x) for name, x in rule.items()} for rule in options["rules"]]
    return [repeated(x) for x in tensors], {**options, "rules": rules}


def assert_close(actual: np.ndarray, expected: np.ndarray, what: str) -> None:
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(actual), finite, err_msg=what)
    largest = max(1.0, float(np.max(np.abs(expected[finite]), initial=0.0)))
    bound = {np.float32: 1e-5, np.float64: 1e-12}[actual.dtype.type] * largest
    np.testing.assert_allclose(actual[finite], expected[finite], rtol=0, atol=bound, err_msg=what)


@pytest.mark.parametrize("seed", [*range(20), *slow(range(20, 60))])
def test_random_calls_equal_the_reference(library, seed: int) -> None:
    (query, key, value, d_out), options, expected = random_call(seed)
    call = core.Call(library, query, key, value, **options)
    output, lse = call.forward()
    wanted = reference.dot_product_attention(query, key, value, **expected)
    assert_close(output, wanted.out, f"output, seed {seed}")
    assert_close(lse, wanted.lse, f"lse, seed {seed}")
    d_lse = np.random.default_rng(seed).normal(size=lse.shape).astype(lse.dtype)
    gradients = call.backward(output, d_out, d_lse)
    d_lse = np.where(np.isfinite(wanted.lse), d_lse, 0)
    backward = reference.dot_product_attention_backward(
        query, key, value, d_out=d_out, d_lse=d_lse, **expected
    )
    for name, actual in zip(("query", "key", "value"), gradients, strict=True):
        assert_close(actual, getattr(backward, name), f"gradient of {name}, seed {seed}")


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("seed", [*range(10), *slow(range(10, 30))])
def test_random_calls_of_two_bytes_equal_the_reference(library, seed: int, dtype: Any) -> None:
    tensors, options, expected = random_call(seed)
    query, key, value, d_out = (x.astype(dtype) for x in tensors)
    call = core.Call(library, query, key, value, **options)
    output, lse = call.forward()
    wide = [x.astype(np.float32) for x in (query, key, value)]
    wanted = reference.dot_product_attention(*wide, **expected)
    name = np.dtype(dtype).name
    assert_values(output, wanted.out, name)
    assert_statistics(lse, wanted.lse, name)
    gradients = call.backward(output, d_out)
    backward = reference.dot_product_attention_backward(
        *wide, d_out=d_out.astype(np.float32), **expected
    )
    allowed = "bfloat16, many queries" if name == "bfloat16" else name
    for which, actual in zip(("query", "key", "value"), gradients, strict=True):
        assert_gradients(actual, getattr(backward, which), allowed)


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("keys", [95, 2048, 3500])
def test_few_queries_against_many_keys(library, queries: int, keys: int) -> None:
    rng = np.random.default_rng(keys)
    query = rng.normal(size=(2, queries, 4, 40)).astype(np.float32)
    key = rng.normal(size=(2, keys, 2, 40)).astype(np.float32)
    value = rng.normal(size=(2, keys, 2, 24)).astype(np.float32)
    lengths = np.array([keys, keys // 3])
    hidden = np.arange(keys)[None] >= lengths[:, None]
    key[hidden], value[hidden] = np.nan, np.inf
    rules = [{"rule": LENGTHS, "first": lengths}]
    call = core.Call(library, query, key, value, rules=rules)
    output, lse = call.forward()
    clean = [np.where(hidden[..., None, None], 0, x) for x in (key, value)]
    wanted = reference.dot_product_attention(query, *clean, mask=~hidden[:, None, None])
    assert_close(output, wanted.out, "output")
    assert_close(lse, wanted.lse, "lse")
    for threads in (1, 3):
        np.testing.assert_array_equal(call.forward(threads)[0], output)


@pytest.mark.parametrize("queries", [1, 5, 130])
@pytest.mark.parametrize("dilation", [1, 3, 64, 128, 129, 300, 1000, 2**63 - 1])
def test_dilation(library, queries: int, dilation: int) -> None:
    """Also by itself far beyond T + S, where key i + a alone is left, with alignments of either sign."""
    keys, kinds = 300, ((np.float32, 0.0), (np.float32, 0.25), (ml_dtypes.bfloat16, 0.0))
    rng = np.random.default_rng(dilation % 1000)
    tensors = [rng.normal(size=(3, n, 1, 24)) for n in (queries, keys, keys, queries)]
    align = np.array([-(2**31), -77, keys - 2], np.int64)
    at = np.arange(queries)[:, None] + align[:, None, None, None]
    mask = (at - np.arange(keys)) % dilation == 0
    for dtype, dropout in kinds:
        query, key, value, d_out = (x.astype(dtype) for x in tensors)
        rules = [{"rule": DILATED, "left": dilation, "align": align}]
        options: dict[str, Any] = {"mask": mask}
        if dropout:
            kept = fuzz_problems.kept(dropout, (1, 2), (3, 1, queries, keys))
            options |= {"dropout": dropout, "keep": kept}
        call = core.Call(library, query, key, value, rules=rules, dropout=dropout, seed=(1, 2))
        output, lse = call.forward()
        name = np.dtype(dtype).name
        wide = [x.astype(np.float64) for x in (query, key, value)]
        wanted = reference.dot_product_attention(*wide, **options)
        assert_values(output, wanted.out, name)
        assert_statistics(lse, wanted.lse, name)
        backward = reference.dot_product_attention_backward(
            *wide, d_out.astype(np.float64), **options
        )
        for which, actual in zip(
            ("query", "key", "value"), call.backward(output, d_out), strict=True
        ):
            assert_gradients(actual, getattr(backward, which), name, which)


@pytest.mark.parametrize("queries", [1, 70])
@pytest.mark.parametrize("masked", [False, True])
def test_a_row_that_is_not_a_number_gives_none(library, queries: int, masked: bool) -> None:
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(1, n, 1, 8)).astype(np.float32) for n in (queries, 9, 9))
    query[0, 0] = np.nan
    rules = [{"rule": WINDOW}] if masked else []
    output, lse = core.Call(library, query, key, value, rules=rules).forward()
    assert np.isnan(output[0, 0]).all()
    assert np.isnan(lse[0, 0, 0])
    assert np.isfinite(output[0, 1:]).all()
    assert np.isfinite(lse[0, 0, 1:]).all()


@pytest.mark.parametrize("seed", [0, 7, *slow(range(14, 60, 7))])
def test_threads_and_repeats_do_not_change_a_bit(library, seed: int) -> None:
    (query, key, value, d_out), options = busy_call(seed)
    call = core.Call(library, query, key, value, **options)
    output, lse = call.forward(threads=1)
    gradients = call.backward(output, d_out, threads=1)
    for threads in (1, 2, 3, 7):
        again, lse_again = call.forward(threads)
        np.testing.assert_array_equal(again, output)
        np.testing.assert_array_equal(lse_again, lse)
        for a, b in zip(call.backward(output, d_out, threads=threads), gradients, strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_queries_of_one_key_head_are_split_alike(library) -> None:
    """Threads share the backward pass of a key head in parts, whose number must not depend on theirs."""
    rng = np.random.default_rng(0)
    query, key, value, d_out = (rng.normal(size=(1, 600, 1, 32)).astype("float32") for _ in "qkvd")
    call = core.Call(library, query, key, value)
    output, _ = call.forward()
    expected = call.backward(output, d_out, threads=1)
    for threads in (2, 5):
        for a, b in zip(call.backward(output, d_out, threads=threads), expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_many_callers_at_once(any_library) -> None:
    calls = [busy_call(seed) for seed in (5, 7)] * 4
    made = [core.Call(any_library, *tensors[:3], **options) for tensors, options in calls]
    expected = [call.forward(threads=1)[0] for call in made]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            for actual, wanted in zip(
                pool.map(lambda c: c.forward(4)[0], made), expected, strict=True
            ):
                np.testing.assert_array_equal(actual, wanted)


def test_a_child_after_fork_makes_threads_of_its_own(any_library) -> None:
    (query, key, value, _), options = busy_call(3)
    call = core.Call(any_library, query, key, value, **options)
    expected = call.forward(threads=2)[0]
    child = os.fork()
    if child == 0:
        # Nothing but the core runs here; a hang would be seen as the parent's time-out.
        same = np.array_equal(call.forward(threads=2)[0], expected)
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("masked", [False, True])
def test_a_query_that_is_not_a_number_gives_none(library, masked: bool) -> None:
    (query, key, value, d_out), _, _ = random_call(0)
    query[0, 0, 0, 0] = np.nan
    rules = [{"rule": LENGTHS, "first": key.shape[1]}] if masked else []
    call = core.Call(library, query, key, value, rules=rules)
    output, lse = call.forward()
    assert np.isnan(output[0, 0, 0]).all()
    assert np.isnan(lse[0, 0, 0])
    assert np.isnan(output).sum() == output.shape[-1]
    assert np.isnan(lse).sum() == 1
    d_query = call.backward(output, d_out)[0]
    assert np.isnan(d_query[0, 0, 0]).all()
    assert np.isnan(d_query).sum() == query.shape[-1]


def test_no_work_without_queries_and_keys(library) -> None:
    """However many heads have none."""
    x = np.zeros((2**29, 0, 2**29, 4), np.float32)
    call = core.Call(library, x, x, x, rules=[{"rule": LENGTHS, "first": 0}])
    output, _ = call.forward()
    assert [g.shape for g in call.backward(output, x)[:3]] == [x.shape] * 3


def test_keys_without_queries_get_gradients_of_zero(library) -> None:
    """Also where there are no query heads at all."""
    key = np.ones((2, 5, 3, 4), np.float32)
    for shape in ((2, 0, 6, 4), (2, 7, 0, 4)):
        query = np.ones(shape, np.float32)
        call = core.Call(library, query, key, key)
        _, d_key, d_value = call.backward(call.forward()[0], query)
        assert not d_key.any()
        assert not d_value.any()


FEW_THREADS = """
import resource, sys
import numpy as np
from tests.native import core

library = core.load(sys.argv[1])
x = np.ones((1, 512, 2, 16), np.float32)
call = core.Call(library, x, x, x)
in_use = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
# Not enough for the stack of one more thread.
resource.setrlimit(resource.RLIMIT_AS, (in_use + (4 << 20), -1))
print(float(abs(call.forward(threads=4)[0] - 1).max()))
"""


def run_script(text: str) -> float:
    """Return the number that a fresh process prints, which gets the path of the library."""
    child = subprocess.run(
        [sys.executable, "-c", text, str(LIBRARY)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return float(child.stdout)


def test_the_interface_is_declared_without_keras() -> None:
    """Sanitizers cannot watch the core beside a framework."""
    loaded = "import sys\nfrom tests.native import fuzz\nprint(float('keras' in sys.modules))"
    assert run_script(loaded) == 0


def test_where_no_thread_can_be_started_the_caller_does_the_work() -> None:
    assert run_script(FEW_THREADS) < 1e-6


SWITCHES = """
import resource, sys
import numpy as np
from tests.native import core

library = core.load(sys.argv[1])
x = np.ones((1, 96, 8, 32), np.float32)
call = core.Call(library, x, x, x)
long = np.ones((1, 512, 8, 16), np.float32)
core.Call(library, long, long, long).forward(threads=32)
before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
for _ in range(200):
    call.forward(threads=2)
print((resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before) / 200)
"""


def test_a_call_wakes_no_more_threads_than_it_uses() -> None:
    """Each thread that wakes goes back to sleep, which is a switch of threads; the pool has 32."""
    assert run_script(SWITCHES) < 8


ALL_THREADS = """
import os, sys
import numpy as np
from tests.native import core

library = core.load(sys.argv[1])
x = np.ones((4, 512, 8, 64), np.float32)
before = len(os.listdir("/proc/self/task"))
core.Call(library, x, x, x).forward(threads=0)
started = len(os.listdir("/proc/self/task")) - before
print(started + 1 - min(library.heed_available_threads(), 32))  # 32 tiles of queries and more
"""


def test_0_threads_are_as_many_as_the_process_may_use() -> None:
    assert run_script(ALL_THREADS) >= 0


def test_any_number_of_threads_may_be_asked_for(any_library) -> None:
    """A number out of reason starts no thousands of threads."""
    x = np.ones((1, 64, 2000, 16), np.float32)
    output, _ = core.Call(any_library, x, x, x).forward(threads=2**31 - 1)
    np.testing.assert_allclose(output, 1, rtol=1e-6)
    threads = int(re.search(r"Threads:\s+(\d+)", Path("/proc/self/status").read_text()).group(1))
    assert threads < 1000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_heads": 3}, "N must be a multiple of K"),
        ({"head_dim": 0}, "H or U, and V"),
        ({"query_length": -1}, "sizes"),
        ({"key_length": 1 << 40}, "sizes"),
        ({"batch": 1 << 31, "query_length": 1 << 31}, "63 bits"),
        ({"scoring": core.Scoring(float("nan"))}, "scale"),
        ({"scoring": core.Scoring(1.0, -1.0)}, "soft_cap"),
        ({"dropout": 1.0}, "dropout"),
        ({"rule_count": 9}, "8 mask rules"),
        ({"rule_count": 1, "rules": None}, "rules are missing"),
        ({"dtype": 4}, "dtype"),
        ({"score": 2}, "score must be"),
        ({"query": core.Tensor()}, "`query` is missing"),
        ({"key": core.Tensor()}, "`key` is missing"),
        ({"value": core.Tensor()}, "`value` is missing"),
    ],
)
def test_arguments_that_cannot_be_right_are_refused(any_library, change: Any, message: str) -> None:
    x = np.zeros((1, 4, 4, 8), np.float32)
    call = core.Call(any_library, x, x, x)
    for name, value in change.items():
        setattr(call.attention, name, value)
    with pytest.raises(ValueError, match=message):
        call.forward()
    assert re.search(message, any_library.heed_check(call.attention).decode())


TWO, THREE = np.zeros(2, np.int64), np.zeros(3, np.int64)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"rule": LENGTHS}, "`key_lengths` of the mask is missing"),
        ({"rule": LENGTHS, "first": THREE}, r"`key_lengths` .* \(B,\). Received: shape \(3, 1\)"),
        ({"rule": LENGTHS, "first": TWO, "second": THREE}, r"`query_lengths` .* \(B,\)"),
        ({"rule": PREFIX}, "`n` of the mask is missing"),
        ({"rule": WINDOW, "align": THREE}, r"`align` .* \(B,\)"),
        ({"rule": WINDOW, "left": -1}, "a window must reach 0 or more"),
        ({"rule": DILATED, "left": 0}, "a dilation must be 1 or more"),
        ({"rule": SEGMENTS, "first": [[0] * 4] * 2}, "`key_ids` of the mask is missing"),
        ({"rule": SEGMENTS, "first": [[0] * 4], "second": [[0] * 6]}, r"`key_ids` .* \(B, S\)"),
        ({"rule": SEGMENTS, "first": [[0] * 6]}, r"`query_ids` .* \(B, T\)"),
        ({"rule": DENSE}, "the array of a dense mask is missing"),
        ({"rule": 77}, "unknown kind of mask rule. Received: 77"),
    ],
)
def test_rules_that_cannot_be_right_are_refused(any_library, rule: Any, message: str) -> None:
    query, key = np.zeros((2, 4, 1, 8), np.float32), np.zeros((2, 5, 1, 8), np.float32)
    with pytest.raises(ValueError, match=message):
        core.Call(any_library, query, key, key, rules=[rule]).forward()


@pytest.mark.parametrize("name", ["bias", "mask"])
def test_what_does_not_broadcast_is_refused(any_library, name: str) -> None:
    x = np.zeros((2, 4, 3, 8), np.float32)
    array = np.zeros((2, 1, 4, 4))
    options = {"bias": array} if name == "bias" else {"rules": [{"rule": DENSE, "dense": array}]}
    call = core.Call(any_library, x, x, x, **options)
    given = call.attention.bias if name == "bias" else call.attention.rules[0].dense
    for shape, strides in (((2, 1, 4, 3), None), ((1, 1, 4, 4), None), (None, (16, 1, 4, 1))):
        for axis in range(4):
            given.shape[axis] = (shape or array.shape)[axis]
            given.stride[axis] = (strides or (16, 0, 4, 1))[axis]
        with pytest.raises(ValueError, match=f"`{name}` must broadcast to .B, N, T, S.. Received:"):
            call.forward()


def test_results_that_are_missing_are_refused(any_library) -> None:
    x = np.zeros((1, 4, 2, 8), np.float32)
    call = core.Call(any_library, x, x, x, bias=np.zeros((1, 1, 1, 4), np.float32))
    output, _ = call.forward()
    pass_ = call.received(output, x, None)
    assert b"gradient" in any_library.heed_backward(call.attention, pass_, 1)
    assert b"`bias_gradient`" in any_library.heed_bias_gradient(call.attention, pass_, 1)
    pass_.softmax, pass_.bias_gradient = None, x.ctypes.data
    assert b"`softmax`" in any_library.heed_bias_gradient(call.attention, pass_, 1)
    for missing in ("output", "lse", "softmax"):
        results = core.Forward(core.tensor(output), call.softmax.ctypes.data, x.ctypes.data)
        setattr(results, missing, core.Tensor() if missing == "output" else None)
        problem = any_library.heed_forward(call.attention, results, 1)
        assert missing.encode() in problem


def test_float16_denormals_count_in_every_thread(any_library) -> None:
    """Threads of others flush denormal floats to zero; what float16 holds must not depend on that."""
    rng = np.random.default_rng(0)
    tiny = (rng.integers(1, 1024, (16, 96, 2, 16)) * 2.0**-24).astype(np.float16)
    query = np.zeros((16, 70, 2, 16), np.float16)
    call = core.Call(any_library, query, query[:, :1].repeat(96, 1), tiny)
    output, _ = call.forward(threads=1)
    expected = tiny.astype(np.float64).mean(1)[:, None].repeat(70, 1)
    np.testing.assert_allclose(output, expected, rtol=0, atol=2.0**-24)
    for _ in range(20):
        np.testing.assert_array_equal(call.forward(threads=2)[0], output)


@pytest.mark.parametrize("queries", [1, 70])
@pytest.mark.parametrize("what", ["key", "value"])
def test_a_masked_key_that_is_not_a_number_stays_out_of_gradients(
    library, queries: int, what: str
) -> None:
    """Hidden by itself, among keys that are seen."""
    rng = np.random.default_rng(0)
    query, d_out = (rng.normal(size=(1, queries, 2, 16)).astype(np.float32) for _ in range(2))
    key, value = (rng.normal(size=(1, 140, 1, 16)).astype(np.float32) for _ in range(2))
    mask = np.ones((1, 1, 1, 140), bool)
    mask[..., [7, 130]] = False
    clean = [query, key.copy(), value.copy()]
    {"key": key, "value": value}[what][0, 7] = np.nan
    {"key": key, "value": value}[what][0, 130, 0, 3] = np.inf
    bias = np.zeros((1, 1, 1, 140), np.float32)
    call = core.Call(library, query, key, value, rules=[{"rule": DENSE, "dense": mask}], bias=bias)
    output, _ = call.forward()
    wanted = reference.dot_product_attention_backward(*clean, d_out, mask=mask, bias=bias)
    gradients = call.backward(output, d_out)
    for name, actual in zip(("query", "key", "value"), gradients, strict=True):
        assert_close(actual, getattr(wanted, name), f"gradient of {name}")
    assert not gradients[1][0, [7, 130]].any()
    assert_close(call.bias_gradient(bias.shape, output, d_out), wanted.bias, "gradient of bias")


@pytest.mark.parametrize("queries", [4, 70])
@pytest.mark.parametrize("masked", [False, True])
def test_a_log_sum_exp_whose_row_or_gradient_is_not_a_number(
    library, queries: int, masked: bool
) -> None:
    rng = np.random.default_rng(0)
    query, d_out = (rng.normal(size=(1, queries, 1, 16)).astype(np.float32) for _ in range(2))
    key, value = (rng.normal(size=(1, 140, 1, 16)).astype(np.float32) for _ in range(2))
    mask = np.ones((1, 1, queries, 140), bool)
    if masked:
        mask[:, :, 1, 135] = mask[:, :, 2, 20] = False
    rules = [{"rule": DENSE, "dense": mask}] if masked else []
    d_lse = rng.normal(size=(1, 1, queries)).astype(np.float32)
    d_lse[0, 0, 2] = np.nan
    call = core.Call(library, query, key, value, rules=rules)
    output, lse = call.forward()
    assert np.isfinite(lse).all()
    d_query, d_key, d_value = call.backward(output, d_out, d_lse)
    row = np.arange(queries) == 2
    np.testing.assert_array_equal(np.isnan(d_query[0, :, 0]).all(-1), row)
    np.testing.assert_array_equal(np.isnan(d_query[0, :, 0]).any(-1), row)
    np.testing.assert_array_equal(np.isnan(d_key[0, :, 0]).all(-1), mask[0, 0, 2])
    assert not masked or np.isfinite(d_value[0, 20]).all()

    key[0, 135, 0, 3] = np.nan
    output, lse = core.Call(library, query, key, value, rules=rules).forward()
    np.testing.assert_array_equal(np.isnan(lse[0, 0]), mask[0, 0, :, 135])
    np.testing.assert_array_equal(np.isnan(output[0, :, 0]).all(-1), mask[0, 0, :, 135])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_denormal_numbers_count_alike_with_one_thread_and_two(library, dtype: Any) -> None:
    """The caller alone computes as threads of the pool do."""
    rng = np.random.default_rng(0)
    tensors = [rng.normal(size=(2, 150, 2, 16)) for _ in range(4)]
    for x in tensors[2:]:
        x *= 2.0 ** (-16 if dtype == np.float16 else -128)
    query, key, value, d_out = (x.astype(dtype) for x in tensors)
    call = core.Call(library, query, key, value)
    output, _ = call.forward(threads=1)
    gradients = call.backward(output, d_out, threads=1)
    for _ in range(5):
        np.testing.assert_array_equal(call.forward(threads=2)[0], output)
        for a, b in zip(call.backward(output, d_out, threads=2), gradients, strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_float_cannot_hold_is_refused(any_library) -> None:
    x = np.zeros((1, 4, 1, 8), np.float32)
    for option, value in (("scale", 1e38), ("soft_cap", 1e39), ("soft_cap", 1e-40)):
        with pytest.raises(ValueError, match=f"{option} must be"):
            core.Call(any_library, x, x, x, **{option: value}).forward()
    double = x.astype(np.float64)
    assert not core.Call(any_library, double, double, double, scale=1e38).forward()[0].any()
