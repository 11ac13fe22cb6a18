"""The native core by itself, through its C interface, for each instruction set of this machine."""

from __future__ import annotations

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests import reference
from tests.native import core, fuzz, fuzz_problems
from tests.native.core import DENSE, DILATED, LENGTHS, LIBRARY, WINDOW
from tests.native.programs import run_script
from tests.slow import slow
from tests.tolerances import assert_gradients, assert_statistics, assert_values

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="installed without the native library")


def busy_call(seed: int) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Return query, key, value and the output's gradient of a call that is worth several threads, and options."""
    rng = np.random.default_rng(seed)
    shape = batch, heads, queries, keys = 24, 4, 129, 150
    sizes = [(batch, queries, heads, 16), *[(batch, keys, 2, 16)] * 2, (batch, queries, heads, 16)]
    rules, _ = fuzz_problems.random_rules(rng, shape, 2)
    options = {"rules": rules, "bias": rng.normal(size=(1, heads, queries, 1)), "soft_cap": 2.0}
    return [rng.normal(size=size).astype(np.float32) for size in sizes], options


@pytest.mark.parametrize("seed", [*range(60), *slow(range(60, 200))])
def test_random_calls_equal_the_reference(library, seed: int) -> None:
    """Nothing else is written to, and inputs stay as they were."""
    fuzz.usual(library, seed)


@pytest.mark.parametrize("seed", [*range(20), *slow(range(20, 60))])
def test_unusual_random_calls_equal_the_reference(library, seed: int) -> None:
    """Of any size, also 0, with numbers of any size, and with NaN and infinities, which reach who sees them."""
    fuzz.legal(library, seed)


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
    assert_values(output, wanted.out, "float32")
    assert_statistics(lse, wanted.lse, "float32")
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
        rules = [{"rule": DILATED, "left": dilation, "align": align}]
        problem = fuzz_problems.made([x.astype(dtype) for x in tensors], rules, mask)
        if dropout:
            kept = fuzz_problems.kept(dropout, (1, 2), (3, 1, queries, keys))
            problem.options |= {"dropout": dropout, "seed": (1, 2)}
            problem.expected |= {"dropout": dropout, "keep": kept}
        fuzz.check_passes(core.Call(library, *problem.inputs, **problem.options), problem)


@pytest.mark.parametrize("queries", [1, 70])
@pytest.mark.parametrize("masked", [False, True])
def test_a_query_that_is_not_a_number_gives_none(library, queries: int, masked: bool) -> None:
    rng = np.random.default_rng(0)
    sizes = (queries, 9, 9, queries)
    query, key, value, d_out = (rng.normal(size=(1, n, 1, 8)).astype(np.float32) for n in sizes)
    query[0, 0, 0, 0] = np.nan
    call = core.Call(library, query, key, value, rules=[{"rule": WINDOW}] if masked else [])
    output, lse = call.forward()
    d_query = call.backward(output, d_out)[0]
    for rows in (output[0, :, 0], lse[0].T, d_query[0, :, 0]):
        assert np.isnan(rows[0]).all()
        assert np.isfinite(rows[1:]).all()


def one_head(_: int) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Return a call of which threads share the backward pass of one key head, in parts that do not depend on them."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=(1, 600, 1, 32)).astype(np.float32) for _ in range(4)], {}


@pytest.mark.parametrize(
    ("make", "seed"),
    [
        (one_head, 0),
        *((busy_call, n) for n in range(2)),
        *slow((busy_call, n) for n in range(2, 8)),
    ],
)
def test_threads_and_repeats_do_not_change_a_bit(library, make: Any, seed: int) -> None:
    (query, key, value, d_out), options = make(seed)
    core.Call(library, query, key, value, **options).assert_same_bits(d_out)


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


def test_the_interface_is_declared_without_keras() -> None:
    """Sanitizers cannot watch the core beside a framework."""
    loaded = "import sys\nfrom tests.native import fuzz\nprint('keras' in sys.modules)"
    assert run_script(loaded) == "False"


def test_where_no_thread_can_be_started_the_caller_does_the_work() -> None:
    assert float(run_script(FEW_THREADS, LIBRARY)) < 1e-6


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
    assert float(run_script(SWITCHES, LIBRARY)) < 8


COUNT_THREADS = """
import os, sys
import numpy as np
from tests.native import core

library = core.load(sys.argv[1])
before = len(os.listdir("/proc/self/task"))
for shape in ((1, 8, 8, 64), (1, 16, 8, 16), (2, 256, 8, 64)):
    x = np.ones(shape, np.float32)
    call = core.Call(library, x, x, x)
    output, _ = call.forward(threads=2)
    call.backward(output, x, threads=2)
    print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads as Linux tells them")
def test_small_work_wakes_no_thread() -> None:
    assert run_script(COUNT_THREADS, LIBRARY).split() == ["0", "0", "1"]


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
    assert int(run_script(ALL_THREADS, LIBRARY)) >= 0


def test_any_number_of_threads_may_be_asked_for(any_library) -> None:
    """A number out of reason starts no thousands of threads."""
    x = np.ones((1, 64, 2000, 16), np.float32)
    output, _ = core.Call(any_library, x, x, x).forward(threads=2**31 - 1)
    np.testing.assert_allclose(output, 1, rtol=1e-6)
    threads = int(re.search(r"Threads:\s+(\d+)", Path("/proc/self/status").read_text()).group(1))
    assert threads < 1000


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
        assert_gradients(actual, getattr(wanted, name), "float32", name)
    assert not gradients[1][0, [7, 130]].any()
    assert_gradients(call.bias_gradient(bias.shape, output, d_out), wanted.bias, "float32", "bias")


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
    core.Call(library, query, key, value).assert_same_bits(d_out, (1, *[2] * 5))


def test_what_float_cannot_hold_is_refused(any_library) -> None:
    x = np.zeros((1, 4, 1, 8), np.float32)
    for option, value in (("scale", 1e38), ("soft_cap", 1e39), ("soft_cap", 1e-40)):
        with pytest.raises(ValueError, match=f"{option} must be"):
            core.Call(any_library, x, x, x, **{option: value}).forward()
    double = x.astype(np.float64)
    assert not core.Call(any_library, double, double, double, scale=1e38).forward()[0].any()
