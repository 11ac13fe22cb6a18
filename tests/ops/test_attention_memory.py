"""Memory grows with T + S, not T x S; blocks that a mask rules out are not computed."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.about_tensorflow import tf

# isort: split
import heed
from heed import ops
from heed.ops import Mask
from heed.ops.backends.shared.block import BlockAttention
from heed.ops.backends.shared.operands import Block
from tests.backend import vjp
from tests.ops.harness import small_blocks
from tests.slow import slow
from tests.strategies import Shape

LENGTH = 4096
HEADS = 4
WIDTH = 16


def masks() -> dict[str, Mask | None]:
    packed = (np.arange(LENGTH)[None] // 100).astype(np.int32)
    return {
        "none": None,
        "causal": Mask.causal(),
        "window": Mask.window(64, 64),
        "lengths": Mask.lengths([LENGTH - 3]),
        "segments": Mask.segments(packed),
        "prefix": Mask.prefix(7),
        "padding": Mask.dense((np.arange(LENGTH) < 4000)[None, None, None]),
    }


def backward(
    function: Callable[..., tf.Tensor], inputs: list[tf.Tensor]
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    out, pull = vjp(function, *inputs)
    return out, pull()


def graphs(graph: Any) -> Iterator[Any]:
    """Yield the graph of a traced function, and those of all functions (loop bodies) it calls."""
    definition = graph.as_graph_def(add_shapes=True)
    yield definition.node
    for function in definition.library.function:
        yield function.node_def


def largest_tensor(graph: Any) -> tuple[int, str]:
    """Return the number of elements of the largest tensor of known shape, and its op."""
    largest, where = 0, ""
    for nodes in graphs(graph):
        for node in nodes:
            for shape in node.attr["_output_shapes"].list.shape:
                sizes = [d.size for d in shape.dim]
                if shape.unknown_rank or any(s < 0 for s in sizes):
                    continue
                if math.prod(sizes) > largest:
                    largest, where = math.prod(sizes), f"{node.op} {node.name} {sizes}"
    return largest, where


def linear_bound(batch: int = 1) -> int:
    """Return many blocks of scores per head, or a few times the inputs; far below T x S."""
    bound = batch * HEADS * max(8 * LENGTH * WIDTH, 512 * LENGTH)
    assert bound < batch * HEADS * LENGTH * LENGTH / 4
    return bound


# A static range of keys, and one from tensors: only this changes the loops. Causal loops: see additive attention.
@pytest.mark.parametrize(
    "kind",
    [
        *("window", "segments"),
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in ("none", "causal", "lengths", "prefix", "padding")
        ),
    ],
)
def test_no_tensor_of_all_scores_in_the_graph(implementation: str, kind: str) -> None:
    shape = Shape(B=1, T=LENGTH, S=LENGTH, N=HEADS, K=HEADS, H=WIDTH, V=WIDTH)
    inputs = [tf.TensorSpec(x.shape, tf.float32) for x in shape.inputs(0, "float32")]
    mask = masks()[kind]

    def attend(*tensors: tf.Tensor) -> tf.Tensor:
        return ops.dot_product_attention(*tensors, mask=mask, dropout=0.1, seed=1)

    traced = tf.function(lambda *x: backward(attend, list(x))).get_concrete_function(*inputs)
    elements, where = largest_tensor(traced.graph)
    assert elements <= linear_bound(), where


def test_the_check_above_sees_a_dense_implementation() -> None:
    def attend(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        scores = tf.einsum("btnh,bsnh->bnts", query, key)
        return tf.einsum("bnts,bsnh->btnh", tf.nn.softmax(scores), value)

    spec = tf.TensorSpec((1, LENGTH, HEADS, WIDTH), tf.float32)
    traced = tf.function(lambda *x: backward(attend, list(x))).get_concrete_function(*[spec] * 3)
    assert largest_tensor(traced.graph)[0] >= HEADS * LENGTH * LENGTH


def test_no_tensor_of_all_scores_with_additive_attention(implementation: str) -> None:
    """Neither (T, S) nor (T, S, U), as others build."""
    query, key = (tf.TensorSpec((1, LENGTH, WIDTH), tf.float32) for _ in range(2))
    value = tf.TensorSpec((1, LENGTH, WIDTH), tf.float32)
    vector = tf.TensorSpec((WIDTH,), tf.float32)

    def attend(*tensors: tf.Tensor) -> tf.Tensor:
        return ops.additive_attention(*tensors, mask=Mask.causal())

    traced = tf.function(lambda *x: backward(attend, list(x))).get_concrete_function(
        query, key, value, vector
    )
    elements, where = largest_tensor(traced.graph)
    assert elements <= LENGTH * LENGTH / 2, where


@pytest.mark.slow
def test_compiled_memory_has_no_tensor_of_all_scores(implementation: str) -> None:
    """In the program compiled by XLA, forward and backward."""
    shape = Shape(B=1, T=LENGTH, S=LENGTH, N=HEADS, K=HEADS, H=WIDTH, V=WIDTH)
    inputs = [tf.constant(x) for x in shape.inputs(0, "float32")]

    @tf.function(jit_compile=True)
    def run(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> Any:
        return backward(
            lambda *x: ops.dot_product_attention(*x, is_causal=True), [query, key, value]
        )

    program = run.experimental_get_compiler_ir(*inputs)(stage="optimized_hlo")
    found = re.findall(r"\b(?:f32|f64|f16|bf16|pred|s32|u32|u64|s64)\[([\d,]+)\]", program)
    largest = max(math.prod(int(n) for n in text.split(",")) for text in found)
    assert largest <= linear_bound()


PEAK = """
import sys
import numpy as np
import tensorflow as tf
from benchmarks.worker import peak_memory  # not that of the process which started this one
from heed import ops

length, causal, train = int(sys.argv[1]), sys.argv[2] == "causal", sys.argv[3] == "train"

def run(length):
    inputs = [tf.zeros((1, length, 4, 64)) for _ in range(3)]
    with tf.GradientTape() as tape:
        if train:
            tape.watch(inputs)
        out = ops.dot_product_attention(*inputs, is_causal=causal)
    if train:
        out = tape.gradient(out, inputs)
    return [np.asarray(x) for x in tf.nest.flatten(out)]

run(64)
before = peak_memory()
run(length)
print(int(peak_memory() - before))
"""


@pytest.mark.slow
@pytest.mark.parametrize("causal", ["causal", "full"])
@pytest.mark.parametrize("train", ["forward", "train"])
def test_measured_peak_memory_is_far_below_the_scores(causal: str, train: str) -> None:
    """At (1,4,8192,64) all scores take 1024 MiB, and a dense step holds several copies."""
    result = subprocess.run(
        [sys.executable, "-c", PEAK, "8192", causal, train],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(result.stdout.split()[-1]) < 512


@pytest.mark.parametrize(
    "kind", ["causal", "segments", "both", *slow(["window", "lengths", "prefix"])]
)
def test_blocks_that_a_mask_rules_out_are_skipped(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The portable form only computes blocks with a visible pair, once forward and once backward."""
    mask = {
        "causal": Mask.causal(),
        "window": Mask.window(16, 15),
        "segments": Mask.segments((np.arange(128)[None] // 32).astype(np.int32)),
        "lengths": Mask.lengths([31]),
        "prefix": Mask.prefix(48),
        "both": Mask.causal() & Mask.window(16, 15),
    }[kind]
    pairs: list[int] = []
    addend = BlockAttention.addend

    def counted(self: BlockAttention, block: Block, visible: Any) -> Any:
        pairs.append(int(block.queries.length) * int(block.keys.length))
        return addend(self, block, visible)

    monkeypatch.setattr(BlockAttention, "addend", counted)
    inputs = [tf.constant(x) for x in Shape(B=1, T=128, S=128).inputs(0, "float32")]
    with heed.set_implementation("portable"), small_blocks((16, 16)):
        backward(lambda *x: ops.dot_product_attention(*x, mask=mask), inputs)
    allowed = np.broadcast_to(mask.to_dense(128, 128), (1, 1, 128, 128))
    blocks = allowed.reshape(8, 16, 8, 16).any((1, 3)).sum()
    assert sum(pairs) == 2 * blocks * 16**2
