"""Eager, traced, compiled, saved and threaded execution give the same result."""

from __future__ import annotations

import contextvars
import functools
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.about_tensorflow import tf

# isort: split
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

import heed
from heed import ops
from heed.ops import Mask
from heed.ops.dispatch import get_implementation
from tests import reference, tolerances
from tests.backend import vjp
from tests.ops.harness import small_blocks
from tests.slow import slow
from tests.strategies import Shape

SHAPE = Shape(B=2, T=9, S=11, N=4, K=2, H=4, V=3)
ARGUMENTS = ("query", "key", "value")


def everything(query: Any, key: Any, value: Any) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    """Return output, log-sum-exp and gradients of an attention that uses most options."""
    attend = functools.partial(
        ops.dot_product_attention,
        mask=Mask.causal(align=1) & Mask.lengths([11, 6]),
        soft_cap=5.0,
        alibi_slopes=ops.alibi_slopes(4),
        dropout=0.2,
        seed=3,
        return_lse=True,
    )
    (out, lse), pull = vjp(attend, query, key, value)
    return out, lse, pull([out, tf.zeros_like(lse)])


def assert_same(actual: Any, expected: Any, **tolerance: float) -> None:
    for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(a, b, **(tolerance or {"atol": 1e-12}))


@pytest.mark.slow
def test_compiled_equals_eager(implementation: str) -> None:
    inputs = SHAPE.inputs(0)
    with small_blocks((4, 4)):
        assert_same(tf.function(everything, jit_compile=True)(*inputs), everything(*inputs))


@pytest.mark.slow
@pytest.mark.parametrize(
    "mask",
    [
        None,
        Mask.window(2, 1),
        Mask.prefix([3, 5]),
        Mask.segments(np.arange(9)[None].repeat(2, 0) // 3, np.arange(11)[None].repeat(2, 0) // 3),
        Mask.dense(np.random.default_rng(0).random((2, 1, 9, 11)) < 0.5),
    ],
    ids=["none", "window", "prefix", "segments", "dense"],
)
def test_each_kind_of_mask_compiles(implementation: str, mask: Mask | None) -> None:
    inputs = SHAPE.inputs(0)

    def run(*inputs: tf.Tensor) -> Any:
        out, pull = vjp(functools.partial(ops.dot_product_attention, mask=mask), *inputs)
        return out, pull()

    with small_blocks((4, 4)):
        assert_same(tf.function(run, jit_compile=True)(*inputs), run(*inputs))


def test_masks_from_tensors_compile() -> None:
    """Lengths, aligns and arrays that are unknown until the compiled program runs, with gradients."""
    inputs = [tf.constant(x) for x in SHAPE.inputs(0)]

    @tf.function(jit_compile=True)
    def run(lengths: tf.Tensor, align: tf.Tensor, array: tf.Tensor) -> Any:
        mask = Mask.lengths(lengths) & Mask.causal(align=align) & Mask.dense(array)
        out, pull = vjp(functools.partial(ops.dot_product_attention, mask=mask), *inputs)
        return out, pull()

    rng = np.random.default_rng(1)
    with small_blocks((4, 4)):
        for lengths, align in (([11, 0], 0), ([3, 8], 5)):
            array = rng.random((2, 1, 9, 11)) < 0.7
            out, gradients = run(tf.constant(lengths), tf.constant(align), tf.constant(array))
            visible = array & (np.arange(11) < np.array(lengths)[:, None, None, None])
            visible &= np.arange(11) <= np.arange(9)[:, None] + align
            expected = reference.dot_product_attention(*inputs, mask=visible)
            tolerances.assert_values(out, expected.out, "float64")
            backward = reference.dot_product_attention_backward(
                *inputs, np.ones(out.shape), mask=visible
            )
            for name, gradient in zip(ARGUMENTS, gradients, strict=True):
                tolerances.assert_gradients(gradient, getattr(backward, name), "float64")


def test_one_trace_serves_all_sizes(implementation: str) -> None:
    """Batch and lengths unknown while tracing, forward and backward."""
    traces = []
    options = {"mask": Mask.causal(align="bottom_right"), "dropout": 0.1, "seed": 1}

    def run(*inputs: Any) -> Any:
        traces.append(inputs)
        out, pull = vjp(functools.partial(ops.dot_product_attention, **options), *inputs)
        assert out.shape[2:] == (4, 3)
        return out, pull()

    specs = [tf.TensorSpec([None, None, *n], tf.float64) for n in ((4, 4), (2, 4), (2, 3))]
    traced = tf.function(run, input_signature=specs)
    traced.get_concrete_function()
    with small_blocks((4, 4)):
        for B, T, S in (
            (2, 9, 11),
            (3, 1, 17),
            (1, 8, 3),
            (0, 4, 4),
            (2, 0, 3),
            (2, 3, 0),
        ):
            inputs = Shape(B=B, T=T, S=S, N=4, K=2, H=4, V=3).inputs(0)
            assert_same(traced(*inputs), run(*inputs))
    assert len(traces) == 1 + 6


def test_masks_and_biases_of_unknown_size(implementation: str) -> None:
    """An axis of unknown length may turn out to be 1, and then broadcasts."""

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None, None, None], tf.bool),
            tf.TensorSpec([None, None, None, None], tf.float64),
            *(tf.TensorSpec([None, None, n, 4], tf.float64) for n in (4, 2, 2)),
        ]
    )
    def run(
        mask: tf.Tensor, bias: tf.Tensor, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor
    ) -> Any:
        attend = functools.partial(ops.dot_product_attention, query, key, value, mask=mask)
        out, pull = vjp(lambda bias: attend(bias=bias), bias)
        return out, pull()[0]

    shape = Shape(B=2, T=9, S=11, N=4, K=2, H=4, V=4)
    inputs = shape.inputs(0)
    rng = np.random.default_rng(0)
    for mask_shape, bias_shape in (
        ((2, 4, 9, 11), (2, 4, 9, 11)),
        ((1, 1, 9, 1), (1, 4, 1, 11)),
        ((2, 1, 1, 11), (1, 1, 9, 1)),
        ((1, 1, 1, 1), (1, 1, 1, 1)),
    ):
        mask, bias = rng.random(mask_shape) < 0.7, rng.normal(size=bias_shape)
        with small_blocks((4, 4)):
            out, gradient = run(mask, bias, *inputs)
        expected = reference.dot_product_attention(*inputs, mask=mask, bias=bias)
        tolerances.assert_values(out, expected.out, "float64")
        backward = reference.dot_product_attention_backward(
            *inputs, np.ones(out.shape), mask=mask, bias=bias
        )
        tolerances.assert_gradients(gradient, backward.bias, "float64")


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("length", [11, *slow([8, 1])])
def test_derivatives_of_unknown_lengths(jit: bool, length: int) -> None:
    """The last block of queries overlaps the one before, and each block finds its own keys."""

    def run(*tensors: tf.Tensor) -> Any:
        query, key, value, bias = tensors
        mask = Mask.causal() & Mask.window(5, None)
        with tf.GradientTape() as outer:
            outer.watch(tensors)
            with tf.GradientTape() as inner:
                inner.watch(tensors)
                out = ops.dot_product_attention(query, key, value, mask=mask, bias=bias)
                loss = tf.reduce_sum(tf.sin(out))
            first = inner.gradient(loss, tensors)
            total = sum(tf.reduce_sum(tf.cos(x)) for x in first)
        return [*first, *outer.gradient(total, tensors)]

    shapes = ([None, None, 2, 3], [None, None, 2, 3], [None, None, 2, 3], [1, 2, None, None])
    signature = [tf.TensorSpec(shape, tf.float64) for shape in shapes]
    arrays = Shape(B=1, T=length, S=length, N=2, K=2, H=3, V=3).inputs(0)
    bias = np.random.default_rng(5).normal(size=(1, 2, length, length))
    inputs = [tf.constant(x) for x in (*arrays, bias)]
    with heed.set_implementation("portable"), small_blocks((4, 4)):
        expected = run(*inputs)
        actual = tf.function(run, input_signature=signature, jit_compile=jit)(*inputs)
    for one, other in zip(actual, expected, strict=True):
        tolerances.assert_gradients(one, other.numpy(), "float64", "")


def test_static_shapes_survive_tracing(implementation: str) -> None:
    @tf.function
    def run(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> Any:
        out, lse = ops.dot_product_attention(query, key, value, return_lse=True)
        weights = ops.attention_weights(query, key)
        assert out.shape == (2, 9, 4, 3)
        assert lse.shape == (2, 4, 9)
        assert weights.shape == (2, 4, 9, 11)
        return out

    with small_blocks((4, 4)):
        run(*SHAPE.inputs(0))


def test_inside_a_tensorflow_loop(implementation: str) -> None:
    """As in a decoder: the step number is a tensor, the shapes are fixed."""
    query, key, value = (tf.constant(x) for x in Shape(T=6, S=6).inputs(0))

    @tf.function
    def run() -> tf.Tensor:
        rows = tf.TensorArray(tf.float64, size=6)
        for step in tf.range(6):
            row = query[:, step : step + 1]
            out = ops.dot_product_attention(row, key, value, mask=Mask.causal(align=step))
            rows = rows.write(step, out[:, 0])
        return tf.transpose(rows.stack(), (1, 0, 2, 3))

    assert_same(run(), ops.dot_product_attention(query, key, value, is_causal=True))


SAVED_MODEL_READER = """
import sys
import numpy as np
import tensorflow as tf

model = tf.saved_model.load(sys.argv[1])
data = np.load(sys.argv[2])
out = model(*(tf.constant(data[name]) for name in ("query", "key", "value", "lengths")))
np.testing.assert_allclose(out, data["out"], atol=1e-12)
assert "heed" not in sys.modules
print("equal")
"""


class Attend(tf.Module):
    """A typical saved module: an attention with lengths, and a variable."""

    def __init__(self) -> None:
        self.temperature = tf.Variable(0.7, dtype=tf.float64)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None, 4, 4], tf.float64),
            tf.TensorSpec([None, None, 2, 4], tf.float64),
            tf.TensorSpec([None, None, 2, 3], tf.float64),
            tf.TensorSpec([None], tf.int32),
        ]
    )
    def __call__(
        self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, lengths: tf.Tensor
    ) -> tf.Tensor:
        mask = Mask.causal() & Mask.lengths(lengths)
        return ops.dot_product_attention(query * self.temperature, key, value, mask=mask)


def test_a_saved_portable_form_is_plain_tensorflow(tmp_path: Path) -> None:
    """Loading it does not need heed."""
    with heed.set_implementation("portable"), small_blocks((4, 4)):
        tf.saved_model.save(Attend(), str(tmp_path))
    saved = SavedModel.FromString((tmp_path / "saved_model.pb").read_bytes())
    graph = saved.meta_graphs[0].graph_def
    used = {node.op for f in graph.library.function for node in f.node_def}
    used |= {node.op for node in graph.node}
    assert "While" in used or "StatelessWhile" in used
    assert not [name for name in used if "heed" in name.lower() or "PyFunc" in name]


@pytest.mark.slow
def test_saved_model_in_a_fresh_process(tmp_path: Path) -> None:
    query, key, value = SHAPE.inputs(0)
    lengths = np.array([7, 0], np.int32)
    with heed.set_implementation("portable"), small_blocks((4, 4)):
        module = Attend()
        expected = module(query, key, value, lengths)
        tf.saved_model.save(module, str(tmp_path / "model"))
    visible = np.tril(np.ones((9, 11), bool)) & (np.arange(11) < lengths[:, None, None, None])
    right = reference.dot_product_attention(0.7 * query, key, value, mask=visible)
    tolerances.assert_values(expected, right.out, "float64")
    inputs = {"query": query, "key": key, "value": value, "lengths": lengths}
    np.savez(tmp_path / "data.npz", out=expected, **inputs)
    reader = subprocess.run(
        [sys.executable, "-c", SAVED_MODEL_READER, tmp_path / "model", tmp_path / "data.npz"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert reader.stdout.strip() == "equal", reader.stderr[-2000:]


def test_a_loaded_model_can_be_trained(tmp_path: Path) -> None:
    with small_blocks((4, 4)):
        tf.saved_model.save(Attend(), str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    query, key, value = (tf.constant(x) for x in SHAPE.inputs(0))
    with tf.GradientTape() as tape:
        tape.watch((query, key, value))
        out = loaded(query, key, value, tf.constant([11, 4]))
    actual = tape.gradient(out, (query, key, value))
    visible = np.tril(np.ones((9, 11), bool)) & (
        np.arange(11) < np.array([11, 4])[:, None, None, None]
    )
    expected = reference.dot_product_attention_backward(
        query, key, value, np.ones(out.shape), mask=visible, scale=0.7 / 2.0
    )
    for name, gradient in zip(ARGUMENTS, actual, strict=True):
        tolerances.assert_gradients(gradient, getattr(expected, name), "float64", name)


@pytest.mark.parametrize(
    ("implementation", "mode"),
    [
        ("native", "eager"),
        ("native", "traced"),
        ("portable", "eager"),
        *slow([("portable", "traced")]),
    ],
    indirect=["implementation"],
)
def test_bitwise_the_same_from_run_to_run(implementation: str, mode: str) -> None:
    inputs = Shape(B=2, T=90, S=130, N=4, K=2, H=16, V=16).inputs(0, "float32")

    options = {"is_causal": True, "dropout": 0.1, "seed": 1}

    def run(*inputs: Any) -> Any:
        out, pull = vjp(functools.partial(ops.dot_product_attention, **options), *inputs)
        return out, pull()

    function: Callable[..., Any] = tf.function(run) if mode == "traced" else run
    with small_blocks((64, 64)):
        first = [np.asarray(x) for x in tf.nest.flatten(function(*inputs))]
        for _ in range(5):
            for a, b in zip(tf.nest.flatten(function(*inputs)), first, strict=True):
                np.testing.assert_array_equal(a, b)


def test_several_threads_at_once(implementation: str) -> None:
    """Each with its own input, eagerly and through one traced function."""
    problems = [SHAPE.inputs(seed) for seed in range(4)]
    with small_blocks((8, 8)):
        traced = tf.function(everything)
        expected = [traced(*inputs) for inputs in problems]

    def run(number: int) -> None:
        for function in (everything, traced):
            assert_same(function(*problems[number]), expected[number])

    # `small_blocks` patches the process, so threads must not enter and leave it one by one.
    with small_blocks((8, 8)), ThreadPoolExecutor(4) as pool:
        # Contexts in which the implementation is chosen.
        contexts = [contextvars.copy_context() for _ in problems]
        for future in [pool.submit(x.run, run, number) for number, x in enumerate(contexts)]:
            future.result()


def test_vectorized_map(implementation: str) -> None:
    query, key, value = (x[:, None] for x in SHAPE.inputs(0))

    def one(inputs: tuple[tf.Tensor, ...]) -> tf.Tensor:
        return ops.dot_product_attention(*inputs, is_causal=True)

    mapped = tf.vectorized_map(one, (query, key, value))
    expected = ops.dot_product_attention(*SHAPE.inputs(0), is_causal=True)
    assert_same(mapped[:, 0], expected)


THREAD_COUNTS = """
import hashlib, sys
import numpy as np
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
tf.config.threading.set_inter_op_parallelism_threads(int(sys.argv[1]))
from heed import ops
rng = np.random.default_rng(0)
inputs = [tf.constant(rng.normal(size=(1, 600, 4, 32)).astype("float32")) for _ in range(3)]
with tf.GradientTape() as tape:
    tape.watch(inputs)
    out = ops.dot_product_attention(*inputs, is_causal=True, dropout=0.1, seed=1)
parts = [out, *tape.gradient(out, inputs)]
print(hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in parts)).hexdigest())
"""


@pytest.mark.slow
def test_bitwise_the_same_for_any_number_of_threads() -> None:
    digests = set()
    for threads in ("1", "2", "7"):
        result = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(THREAD_COUNTS), threads],
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(result.stdout.strip())
    assert len(digests) == 1


def test_which_implementation_runs_and_why(implementation: str) -> None:
    inputs = SHAPE.inputs(0)
    told = heed.explain_dispatch(*inputs, is_causal=True)
    assert implementation in str(told)


def test_implementations_are_chosen_for_a_while_and_given_back() -> None:
    query, key, value = SHAPE.inputs(0)
    with heed.set_implementation("portable"):
        inner = str(heed.explain_dispatch(query, key, value))
        with heed.set_implementation("auto"):
            pass
        assert str(heed.explain_dispatch(query, key, value)) == inner
    assert "portable" in inner


def test_a_block_chooses_for_its_own_thread() -> None:
    def in_a_thread(function: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(function).result()

    assert get_implementation() == "auto"
    with heed.set_implementation("portable"):
        assert (get_implementation(), in_a_thread(get_implementation)) == ("portable", "auto")
        assert (
            in_a_thread(functools.partial(contextvars.copy_context().run, get_implementation))
            == "portable"
        )
        heed.set_implementation("auto")  # until the end of the block, here alone
        assert get_implementation() == "auto"
        with heed.set_implementation("portable"):
            assert get_implementation() == "portable"
        assert get_implementation() == "auto"
    assert get_implementation() == "auto"


def test_a_plain_call_chooses_for_all_threads() -> None:
    chosen = []

    def look() -> None:
        chosen.append(get_implementation())

    try:
        heed.set_implementation("portable")
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        with heed.set_implementation("auto"):
            look()
        look()
        thread = threading.Thread(target=heed.set_implementation, args=("auto",))
        thread.start()
        thread.join()
        look()
    finally:
        heed.set_implementation("auto")
    assert chosen == ["portable", "auto", "portable", "auto"]


def test_threads_that_choose_at_once_leave_nothing_chosen() -> None:
    """Each thread sees its own choice inside its blocks, and no choice is left at the end."""
    interval, wrong = sys.getswitchinterval(), []

    def run(name: str) -> None:
        for _ in range(300):
            with heed.set_implementation(name):
                if get_implementation() != name:
                    wrong.append(name)

    threads = [
        threading.Thread(target=run, args=(name,))
        for name in ("auto", "portable")
        for _ in range(3)
    ]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    assert get_implementation() == "auto"
