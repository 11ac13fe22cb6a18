"""Deleted functions and models leave no graph and no memory behind."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from heed import ops
from heed.ops import Mask
from tests.conftest import IMPLEMENTATIONS
from tests.strategies import Shape

ROOT = Path(__file__).resolve().parents[1]
SHAPE = Shape(B=2, T=9, S=9, N=4, K=2, H=4, V=4)
Graphs = list["weakref.ref[Any]"]


def note(graphs: Graphs) -> None:
    """Remember the graph that is being traced, and do not keep it alive."""
    graphs.append(weakref.ref(tf.compat.v1.get_default_graph()))


def alive(graphs: Graphs) -> int:
    gc.collect()
    assert graphs
    return sum(graph() is not None for graph in graphs)


def dot_product(*inputs: tf.Tensor) -> tf.Tensor:
    bias = tf.ones((1, 4, 9, 9), inputs[0].dtype)
    return ops.dot_product_attention(*inputs, mask=Mask.lengths([9, 3]), bias=bias, is_causal=True)


def heads_first(*inputs: tf.Tensor) -> tf.Tensor:
    heads = [tf.transpose(x, (0, 2, 1, 3)) for x in inputs]
    return ops.dot_product_attention(*heads, layout="BNTH")


def additive(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    vector = tf.ones(4, query.dtype)
    return ops.additive_attention(query[:, :, 0], key[:, :, 0], value[:, :, 0], vector, bias=vector)


def embedding(query: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
    from heed.layers._embedding import _lookup

    return _lookup(query[0, :, 0], tf.constant([[1, 1, 3]]))


def leaking(query: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
    """Return an earlier fault of heed."""
    return tf.custom_gradient(lambda x: (tf.identity(x), lambda dy: dy))(query)


def gradients(attend: Callable[..., tf.Tensor], inputs: list[tf.Tensor]) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        out = attend(*inputs)
    return [out, *tape.gradient(out, inputs, unconnected_gradients="zero")]


def traced(attend: Callable[..., tf.Tensor], how: str, graphs: Graphs) -> None:
    """Run a function of each kind, differentiated inside or outside, and lets go of it."""

    def inside(*inputs: tf.Tensor) -> list[tf.Tensor]:
        note(graphs)
        return gradients(attend, list(inputs))

    def forward(*inputs: tf.Tensor) -> tf.Tensor:
        note(graphs)
        return attend(*inputs)

    def loop(*inputs: tf.Tensor) -> tf.Tensor:
        def body(step: tf.Tensor, _: tf.Tensor) -> Any:
            note(graphs)
            return step + 1, attend(*inputs)

        return tf.while_loop(lambda step, _: step < 2, body, (0, attend(*inputs)))[1]

    def twice(*inputs: tf.Tensor) -> list[tf.Tensor]:
        return gradients(lambda *x: sum(map(tf.reduce_sum, inside(*x))), list(inputs))

    inputs = [tf.constant(x) for x in SHAPE.inputs(0)]
    if how == "outside":
        gradients(tf.function(forward), inputs)
    elif how == "loop":
        gradients(tf.function(loop), inputs)
    else:
        function = {"inside": inside, "twice": twice, "compiled": inside}[how]
        tf.function(function, jit_compile=how == "compiled")(*inputs)


_ATTEND = (dot_product, heads_first, additive, embedding)
_HOW = ("inside", "outside", "loop", "twice", "compiled")
# Each function in one way and each of these ways (others trace or compile for seconds) in one function.
_BY_DEFAULT = {
    ("native", dot_product, "loop"),
    ("portable", dot_product, "inside"),
    ("portable", additive, "outside"),
    ("native", heads_first, "inside"),
}


@pytest.mark.parametrize(
    ("implementation", "attend", "how"),
    [
        pytest.param(
            implementation,
            attend,
            how,
            marks=[] if (implementation, attend, how) in _BY_DEFAULT else pytest.mark.slow,
            id=f"{implementation}-{attend.__name__}-{how}",
        )
        for implementation in IMPLEMENTATIONS
        for attend in _ATTEND
        for how in _HOW
    ],
    indirect=["implementation"],
)
def test_no_graph_of_a_traced_function_stays_alive(
    implementation: str, attend: Callable[..., tf.Tensor], how: str
) -> None:
    graphs: Graphs = []
    traced(attend, how, graphs)
    assert alive(graphs) == 0


def test_the_check_above_sees_a_graph_that_stays() -> None:
    graphs: Graphs = []
    traced(leaking, "inside", graphs)
    assert alive(graphs) == len(graphs)


def test_no_name_stays_in_the_gradient_registry() -> None:
    from tensorflow.python.framework.ops import gradient_registry

    def names() -> set[str]:
        gc.collect()
        return set(gradient_registry.list())

    import heed

    before = names()
    with heed.set_implementation("portable"):
        for _ in range(2):
            traced(additive, "inside", [])
    assert names() == before


RESIDENT = """
    import gc, re, sys

    def resident():
        gc.collect()
        text = open("/proc/self/status").read()
        return int(re.search(r"VmRSS:\\s+(\\d+)", text).group(1)) / 1024
"""
MODELS = """
    import keras
    import numpy as np
    import tensorflow as tf
    import heed

    which, count = sys.argv[1], int(sys.argv[2])
    heed.set_implementation("portable" if which == "portable" else "auto")
    MultiHeadAttention = (keras if which == "stock" else heed).layers.MultiHeadAttention
    x = np.random.default_rng(0).normal(size=(2, 16, 512)).astype("float32")

    def live():
        return sum(type(thing).__name__ == "FuncGraph" for thing in gc.get_objects())

    def one():
        inputs = keras.Input((16, 512))
        y = MultiHeadAttention(8, 64)(inputs, inputs, use_causal_mask=True)  # 4 MiB, and 8 of Adam
        model = keras.Model(inputs, MultiHeadAttention(8, 64)(y, y))
        model.compile("adam", "mse", jit_compile=False)
        model.fit(x, x, verbose=0)
        model.predict(x, verbose=0)

    one()
    one()
    graphs = live()
    for _ in range(count):
        one()
    print(resident(), (live() - graphs) / count)
"""


def numbers_of(script: str, *arguments: object) -> list[float]:
    """Return what a script prints last, which may ask for the MiB of its process."""
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(RESIDENT + script), *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [float(word) for word in child.stdout.splitlines()[-1].split()]


@pytest.mark.slow
@pytest.mark.parametrize("which", ["auto", "portable"])
def test_fifty_models_take_the_memory_of_fifty_stock_models(which: str) -> None:
    """Built, traced, trained, run and deleted. Leaks of stock Keras are not counted."""
    stock, heed = numbers_of(MODELS, "stock", 50), numbers_of(MODELS, which, 50)
    assert heed[1] <= stock[1]
    assert heed[0] <= 1.1 * stock[0]


CALLS = """
    import tensorflow as tf
    import heed
    from heed import Mask, ops

    heed.set_implementation(sys.argv[1])
    count = int(sys.argv[2])
    x = tf.random.normal((1, 8, 2, 8))

    def calls(count):
        for i in range(count):
            with tf.GradientTape() as tape:
                tape.watch(x)
                scale = 0.5 + i / count
                options = {"scale": scale, "soft_cap": 2 + scale}
                y = ops.dot_product_attention(x, x, x, mask=Mask.lengths([i % 9]), **options)
                z = ops.additive_attention(x[:, 0], x[:, 0], y[:, 0], tf.ones(8))
            if i % 10 == 0:
                tape.gradient(z, x)

    calls(500)
    before = resident()
    calls(count)
    print(resident() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("implementation_name", "count"), [("auto", 1000), ("auto", 20_000), ("portable", 20_000)]
)
def test_eager_calls_leave_nothing(implementation_name: str, count: int) -> None:
    """Each with another scale, soft cap and lengths: 1 KiB kept by a call would be 20 MiB after 20,000."""
    (grown,) = numbers_of(CALLS, implementation_name, count)
    assert grown < 8
