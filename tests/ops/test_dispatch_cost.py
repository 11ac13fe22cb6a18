"""The overhead of a call: Python calls, created tensors, nodes of a graph."""

from __future__ import annotations

import collections
import cProfile
import gc
import pstats
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.about_tensorflow import tf

# isort: split
from heed import ops
from heed.ops import Mask
from heed.ops.backends.tensorflow.native import library
from tests.strategies import Shape

pytestmark = pytest.mark.skipif(bool(library.machine_reasons()), reason="needs the native kernels")

INPUTS = tuple(
    tf.constant(x, "float32") for x in Shape(B=2, T=5, S=5, N=4, K=2, H=8, V=8).inputs(0)
)
UNITS = tuple(tf.constant(np.ones((2, 5, 8), "float32")) for _ in range(3))
VECTOR, BIAS = tf.ones(8), tf.zeros((1, 1, 5, 5))
PADDING = Mask.lengths(tf.constant([3, 5])) & Mask.causal()

# Function calls, including TensorFlow's and C: about 50, 250, 170, 190 and 230 with TensorFlow 2.21.
CASES: dict[str, tuple[Callable[[], Any], int]] = {
    "causal": (lambda: ops.dot_product_attention(*INPUTS, is_causal=True), 80),
    "padding": (lambda: ops.dot_product_attention(*INPUTS, mask=PADDING), 370),
    "additive": (lambda: ops.additive_attention(*UNITS, VECTOR), 250),
    "bias": (lambda: ops.dot_product_attention(*INPUTS, bias=BIAS), 280),
    "leading": (lambda: ops.scaled_dot_product_attention(*INPUTS), 340),
}


def profile(call: Callable[[], Any]) -> pstats.Stats:
    """Profile ten calls after a warm-up."""
    for _ in range(3):
        call()
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(10):
        call()
    profile.disable()
    return pstats.Stats(profile)


@pytest.mark.parametrize("name", CASES)
def test_an_eager_call_is_little_python(name: str) -> None:
    call, most = CASES[name]
    stats: Any = profile(call)
    assert stats.total_calls / 10 <= most


def test_an_eager_call_makes_no_tensor() -> None:
    stats: Any = profile(CASES["causal"][0])
    made = {name: entry[0] for (_, _, name), entry in stats.stats.items() if "convert_to" in name}
    assert not made
    executed = [entry[0] for (_, _, name), entry in stats.stats.items() if "FastPath" in name]
    assert executed == [10]


def test_numbers_of_an_eager_call_are_no_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow keeps a kernel of some 40 KiB for each value of an attribute, for ever."""
    module, forms = library.ops(), set()

    def note(*inputs: Any, form: bytes, **others: Any) -> Any:
        forms.add(form)
        return module.heed_attention(*inputs, form=form, **others)

    monkeypatch.setattr(library, "ops", lambda: types.SimpleNamespace(heed_attention=note))
    for align in range(3):
        ops.dot_product_attention(*INPUTS, mask=Mask.causal(align), scale=0.1 + align)
    assert len(forms) == 1


def node_types(function: Callable[..., Any], *inputs: Any) -> collections.Counter[str]:
    graph = tf.function(function, autograph=False).get_concrete_function(*inputs).graph
    types = collections.Counter(op.type for op in graph.get_operations())
    return collections.Counter(
        {name: n for name, n in types.items() if name not in ("Placeholder", "Identity")}
    )


def test_ops_of_a_function_need_no_constants() -> None:
    def chain(query: Any, key: Any, value: Any) -> Any:
        for _ in range(5):
            query = ops.dot_product_attention(query, key, value, is_causal=True)
        return query

    assert node_types(chain, *INPUTS) == {"HeedAttention": 5}


def test_constants_serve_every_kind_of_graph() -> None:
    """Cached tensors are created in the first graph that needs them, and must not belong to it."""
    scale = 0.123  # unique to this test: not cached yet

    def attend(query: Any, key: Any, value: Any) -> Any:
        return ops.dot_product_attention(query, key, value, scale=scale, mask=Mask.causal(1))

    inputs = [x.numpy() for x in INPUTS]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        found = [session.run(attend(*map(tf.constant, inputs)))]
    loop = tf.function(
        lambda *x: tf.while_loop(lambda i, _: i < 1, lambda i, _: (i + 1, attend(*x)), (0, x[0]))[1]
    )
    found += [loop(*INPUTS), tf.function(attend)(*INPUTS), attend(*INPUTS)]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        found.append(session.run(attend(*map(tf.constant, inputs))))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_what_was_refused_is_refused_again() -> None:
    """Also what a cache may take for a call that it knows: True equals 1.0."""
    query, key, value = INPUTS
    for _ in range(3):
        with pytest.raises(ValueError, match="as many features"):
            ops.dot_product_attention(query, key[..., :4], value)
    ops.dot_product_attention(*INPUTS, scale=1.0)
    for _ in range(2):
        with pytest.raises(ValueError, match="scale"):
            ops.dot_product_attention(*INPUTS, scale=True)


def test_a_call_is_known_again_by_all_that_it_says() -> None:
    """Only calls with equal shapes, dtypes and numbers share a cached spec."""
    query, key, value = INPUTS
    plain = ops.dot_product_attention(*INPUTS)
    others = [
        ops.dot_product_attention(*INPUTS, is_causal=True),
        ops.dot_product_attention(*INPUTS, scale=2.0),
        ops.dot_product_attention(*INPUTS, soft_cap=0.5),
        ops.dot_product_attention(*INPUTS, mask=Mask.window(1, 1)),
        ops.dot_product_attention(*INPUTS, mask=Mask.lengths(tf.constant([3, 5]))),
        ops.dot_product_attention(*INPUTS, mask=Mask.lengths(tf.constant([2, 5]))),
        ops.dot_product_attention(*INPUTS, bias=tf.eye(5)),
        ops.dot_product_attention(*INPUTS, bias=2 * tf.eye(5)),
        ops.dot_product_attention(*INPUTS, alibi_slopes=tf.ones(4)),
        ops.dot_product_attention(*INPUTS, dropout=0.5, seed=1),
        ops.dot_product_attention(*INPUTS, dropout=0.5, seed=2),
    ]
    for i, one in enumerate([plain, *others]):
        assert all(np.abs(one - other).max() > 1e-3 for other in others[i:])
    np.testing.assert_array_equal(ops.dot_product_attention(*INPUTS), plain)
    half = ops.dot_product_attention(tf.cast(query, "float16"), key, value)
    assert half.dtype == tf.float32
    assert ops.dot_product_attention(*(tf.cast(x, "float16") for x in INPUTS)).dtype == tf.float16


def test_a_mask_of_tensors_is_forgotten() -> None:
    mask = Mask.lengths(tf.constant([1, 2]))
    ops.dot_product_attention(*INPUTS, mask=mask)
    gone = weakref.ref(mask)
    del mask
    gc.collect()
    assert gone() is None
