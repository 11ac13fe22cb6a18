"""Each operation with an ONNX form gives the same in onnxruntime as in TensorFlow."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from heed.export.onnx import _converter, registry  # noqa: E402

RNG = np.random.default_rng(0)
raw = tf.raw_ops
xla = pytest.importorskip("tensorflow.compiler.tf2xla.python.xla")


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype("float32")


def positive(*shape: int) -> np.ndarray:
    return RNG.uniform(0.2, 0.9, shape).astype("float32")


def ints(*shape: int, low: int = -5, high: int = 6) -> np.ndarray:
    return RNG.integers(low, high, shape).astype("int32")


def bools(*shape: int) -> np.ndarray:
    return RNG.random(shape) < 0.5


def operation(kind: str) -> Callable[..., Any]:
    """Return the raw operation, as a function of its tensors in their order."""
    function = getattr(raw, kind)
    names = list(inspect.signature(function).parameters)
    return lambda *tensors: function(**dict(zip(names, tensors, strict=False)))


def update(x: tf.Tensor, part: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
    return xla.dynamic_update_slice(x, part, start)


X = floats(2, 3, 4)
IMAGES = floats(2, 7, 6, 4)
SPECIAL = np.array([1.0, np.nan, np.inf, -np.inf, 0.0], "float32")
A, B = ints(3, 4), ints(3, 4)
NONZERO = np.where(B == 0, 3, B).astype("int32")

# A name, a function of tensors, and arrays of it; axes given to `varying` are unknown to the graph.
CASES: list[tuple[str, Callable[..., Any], list[np.ndarray]]] = [
    *(
        (kind, operation(kind), [X])
        for kind in (
            *("Abs", "Atan", "Ceil", "Cos", "Cosh", "Elu", "Erf", "Erfc", "Exp", "Expm1"),
            *("Floor", "LeakyRelu", "LogSoftmax", "Neg", "OnesLike", "Reciprocal", "Relu", "Relu6"),
            *("Rint", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softmax", "Softplus"),
            *("Softsign", "Square", "Tan", "Tanh", "ZerosLike", "StopGradient", "Snapshot"),
        )
    ),
    *(
        (kind, operation(kind), [positive(3, 4)])
        for kind in ("Acos", "Asin", "Log", "Log1p", "Rsqrt", "Sqrt")
    ),
    *(
        (kind, operation(kind), [X, floats(3, 1)])
        for kind in (
            *("Add", "AddV2", "Mul", "Sub", "Maximum", "Minimum", "SquaredDifference", "RealDiv"),
        )
    ),
    *(
        (f"{kind} of integers", operation(kind), [A, NONZERO])
        for kind in (
            *("AddV2", "Mul", "Sub", "Maximum", "Minimum", "FloorDiv", "FloorMod", "TruncateDiv"),
            *("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"),
        )
    ),
    *(
        (f"{kind} of floats", operation(kind), [X, floats(4)])
        for kind in ("FloorDiv", "FloorMod", "Equal", "Less", "GreaterEqual", "DivNoNan")
    ),
    ("DivNoNan by zero", lambda x: raw.DivNoNan(x=x, y=tf.zeros_like(x)), [X]),
    ("Pow", lambda x: raw.Pow(x=x, y=tf.constant(2.5)), [positive(3)]),
    ("AddN", lambda x, y: raw.AddN(inputs=[x, y, x]), [X, X]),
    ("BiasAdd", lambda x, y: raw.BiasAdd(value=x, bias=y), [X, floats(4)]),
    ("ClipByValue", lambda x: raw.ClipByValue(t=x, clip_value_min=-0.5, clip_value_max=0.5), [X]),
    (
        "logic",
        lambda a, b: [a & b, a | b, ~a, raw.Equal(x=a, y=b), tf.math.logical_xor(a, b)],
        [bools(9), bools(9)],
    ),
    ("IsNan", lambda x: [tf.math.is_nan(x), tf.math.is_inf(x), tf.math.is_finite(x)], [SPECIAL]),
    ("CheckNumerics", lambda x: tf.debugging.check_numerics(x, "no"), [X]),
    ("EnsureShape", lambda x: tf.ensure_shape(x, (2, None, 4)), [X]),
    ("PreventGradient", lambda x: raw.PreventGradient(input=x), [X]),
    ("PlaceholderWithDefault", lambda x: raw.PlaceholderWithDefault(input=x, shape=x.shape), [X]),
    ("IdentityN", lambda x, y: tf.identity_n([x, y]), [X, A]),
    (
        "Cast",
        lambda x: [tf.cast(x, dtype) for dtype in ("int32", "int64", "bool", "float16")],
        [X * 3],
    ),
    ("Cast of booleans", lambda x: [tf.cast(x, "float32"), tf.cast(x, "int32")], [bools(5)]),
    ("Cast there and back", lambda x: tf.cast(tf.cast(x, "float16"), "float32"), [X]),
    ("SelectV2", lambda c, x: tf.where(c, x, tf.constant(-1.0)), [bools(3, 1), X]),
    ("SelectV2 of booleans", tf.where, [bools(9), bools(9), bools(9)]),
    ("Select", lambda c, x, y: raw.Select(condition=c, x=x, y=y), [bools(3), floats(3), floats(3)]),
    # Products.
    (
        "MatMul",
        lambda a, b: tf.matmul(a, b, transpose_a=True, transpose_b=True),
        [floats(4, 3), floats(5, 4)],
    ),
    (
        "BatchMatMulV2",
        lambda a, b: tf.matmul(a, b, transpose_b=True),
        [floats(2, 1, 3, 4), floats(5, 6, 4)],
    ),
    (
        "BatchMatMulV2, first",
        lambda a, b: tf.matmul(a, b, transpose_a=True),
        [floats(2, 4, 3), floats(2, 4, 6)],
    ),
    (
        "BatchMatMul",
        lambda a, b: raw.BatchMatMul(x=a, y=b, adj_y=True),
        [floats(2, 3, 4), floats(2, 6, 4)],
    ),
    (
        "BatchMatMulV3",
        lambda a, b: raw.BatchMatMulV3(x=a, y=b, Tout=tf.float32),
        [X, floats(2, 4, 5)],
    ),
    ("Einsum", lambda a, b: tf.einsum("abc,cde->abde", a, b), [X, floats(4, 2, 3)]),
    ("Einsum, ellipsis", lambda a, b: tf.einsum("...ij,...jk->...ik", a, b), [X, floats(2, 4, 5)]),
    # Reductions.
    *(
        (
            kind,
            lambda x, kind=kind: [
                getattr(tf, kind)(x, 1),
                getattr(tf, kind)(x, (0, -1), keepdims=True),
                getattr(tf, kind)(x),
            ],
            [X],
        )
        for kind in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod")
    ),
    ("EuclideanNorm", lambda x: raw.EuclideanNorm(input=x, axis=[1]), [X]),
    (
        "reduce nothing",
        lambda x: (
            raw.Sum(input=x, axis=tf.constant([], tf.int32))
            + raw.Max(input=x, axis=tf.constant([], tf.int32))
        ),
        [X],
    ),
    (
        "reduce integers",
        lambda x: [
            tf.reduce_sum(x, 0),
            tf.reduce_prod(x, 1),
            tf.reduce_max(x),
            tf.reduce_min(x, 1),
        ],
        [A],
    ),
    (
        "All, Any",
        lambda x: [tf.reduce_all(x, 1), tf.reduce_any(x, 0, keepdims=True), tf.reduce_any(x)],
        [bools(4, 3)],
    ),
    ("reduce_logsumexp", lambda x: tf.reduce_logsumexp(x, -1), [X]),
    (
        "ArgMax",
        lambda x: [tf.argmax(x, -1), tf.argmax(x, 0, output_type=tf.int32), tf.argmin(x, 1)],
        [X],
    ),
    ("Cumsum", lambda x: [tf.cumsum(x, 1), tf.cumsum(x, -1, exclusive=True, reverse=True)], [X]),
    ("Cumsum of integers", lambda x: tf.cumsum(x, 1), [A]),
    ("TopKV2", lambda x: list(tf.math.top_k(x, 2)), [X]),
    (
        "MatrixBandPart",
        lambda x: [tf.linalg.band_part(x, -1, 0), tf.linalg.band_part(x, 1, 2)],
        [floats(2, 5, 4)],
    ),
    # Shapes.
    ("Shape", lambda x: [tf.shape(x), tf.shape(x, tf.int64), tf.size(x), tf.rank(x)], [X]),
    ("Size, Rank", lambda x: [raw.Size(input=x), raw.Rank(input=x)], [X]),
    ("ShapeN", lambda x, y: raw.ShapeN(input=[x, y]), [X, floats(3)]),
    (
        "Reshape",
        lambda x: [
            tf.reshape(x, (-1, 4)),
            tf.reshape(x, tf.reverse(tf.shape(x), [0])),
            tf.reshape(x, [-1]),
        ],
        [X],
    ),
    (
        "Reshape of nothing",
        lambda x: tf.reshape(x, tf.stack([tf.shape(x)[1], tf.shape(x)[0] * 2, 2])),
        [floats(3, 0, 4)],
    ),
    (
        "BroadcastTo",
        lambda x: tf.broadcast_to(x, tf.stack([tf.shape(x)[0], 2, 3, 4])),
        [floats(2, 1, 3, 1)],
    ),
    (
        "BroadcastArgs",
        lambda x, y: tf.broadcast_dynamic_shape(tf.shape(x), tf.shape(y)),
        [X, floats(3, 1)],
    ),
    ("Fill", lambda x: [tf.fill(tf.shape(x), 3.0), tf.zeros(tf.shape(x)[:2], tf.int32)], [X]),
    ("Tile", lambda x: [tf.tile(x, (1, 2, 3)), tf.tile(x, tf.stack([tf.shape(x)[0], 1, 1]))], [X]),
    ("Tile of booleans", lambda x: tf.tile(x, (2, 1)), [bools(2, 3)]),
    ("ExpandDims", lambda x: [tf.expand_dims(x, 1), tf.expand_dims(x, -1)], [X]),
    ("Squeeze", lambda x: [tf.squeeze(x, (1, -1))], [floats(2, 1, 3, 1)]),
    ("Transpose", lambda x: [tf.transpose(x, (2, 0, 1)), tf.transpose(x, (0, 1, 2))], [X]),
    ("InvertPermutation", lambda x: tf.transpose(x, tf.math.invert_permutation([2, 0, 1])), [X]),
    (
        "ConcatV2",
        lambda x, y: [tf.concat([x, y], -1), tf.concat([x, x[:, :0]], 1)],
        [X, floats(2, 3, 2)],
    ),
    ("Pack", lambda x, y: [tf.stack([x, y], 1), tf.stack([x, y], -1)], [X, X]),
    ("Pack of sizes", lambda x: tf.stack([tf.shape(x)[1], 7, tf.size(x)]), [X]),
    ("Unpack", lambda x: tf.unstack(x, axis=1), [X]),
    ("Unpack one", lambda x: tf.unstack(x, axis=0), [X[:1]]),
    ("Split", lambda x: [*tf.split(x, 3, 1), *tf.split(x, [1, -1], 2), *tf.split(x, 1, 0)], [X]),
    ("Range", lambda x: [tf.range(tf.shape(x)[1]), tf.range(5, 0, -tf.shape(x)[0])], [X]),
    ("Range of floats", lambda x: tf.range(tf.cast(tf.shape(x)[1], tf.float32)), [X]),
    (
        "Pad",
        lambda x: [
            tf.pad(x, [[0, 0], [1, 2], [0, 3]]),
            tf.pad(x, [[1, 0], [0, 0], [0, 0]], constant_values=2.0),
        ],
        [X],
    ),
    ("Pad by sizes", lambda x: tf.pad(x, [[0, 0], [0, tf.shape(x)[0]], [1, 0]]), [X]),
    ("MirrorPad", lambda x: tf.pad(x, [[0, 0], [1, 2], [0, 3]], mode="REFLECT"), [X]),
    # Indexing.
    (
        "GatherV2",
        lambda x, i: [tf.gather(x, i), tf.gather(x, i, axis=1)],
        [X, ints(2, 5, low=0, high=2)],
    ),
    (
        "GatherV2, batches",
        lambda x, i: [tf.gather(x, i, batch_dims=1), tf.gather(x, i, axis=1, batch_dims=-1 + 1)],
        [X, ints(2, 5, low=0, high=3)],
    ),
    ("Gather", lambda x, i: raw.Gather(params=x, indices=i), [X, ints(3, low=0, high=2)]),
    ("GatherNd", lambda x, i: tf.gather_nd(x, i), [X, ints(5, 2, low=0, high=2)]),
    ("Where", lambda x: tf.where(x), [bools(3, 4)]),
    (
        "OneHot",
        lambda i: [tf.one_hot(i, 4), tf.one_hot(i, 4, 2, 7, axis=1, dtype=tf.int32)],
        [ints(3, 5, low=-1, high=5)],
    ),
    ("OneHot, booleans", lambda i: tf.one_hot(i, 4, True, False, axis=0), [ints(5, low=0, high=4)]),
    (
        "Slice",
        lambda x: [
            tf.slice(x, [0, 1, 0], [-1, 2, 3]),
            tf.slice(x, [0, tf.shape(x)[0] - 1, 0], [-1, -1, 2]),
            tf.slice(x, [0, 1, 0], [2, tf.shape(x)[0], -1]),
        ],
        [X],
    ),
    (
        "StridedSlice",
        lambda x: [
            x[:, 1:],
            x[..., 1:3],
            x[:, None, 1],
            x[1, ..., None, -1],
            x[:, ::-1],
            x[:, ::2, 3:0:-2],
            x[..., -1:],
            x[:, -1],
        ],
        [X],
    ),
    (
        "StridedSlice by sizes",
        lambda x, i: [x[:, : tf.shape(x)[0]], x[:, i], x[i:, tf.newaxis], x[:, i : i + 1, i:]],
        [X, np.array(1, "int32")],
    ),
    ("StridedSlice, last by size", lambda x, i: x[:, i], [X, np.array(-1, "int32")]),
    ("StridedSlice of booleans", lambda x: x[:, None, None, :], [bools(2, 3)]),
    ("ReverseV2", lambda x: [tf.reverse(x, [1]), tf.reverse(x, [0, -1]), tf.reverse(x, [])], [X]),
    (
        "ReverseSequence",
        lambda x, n: tf.reverse_sequence(x, n, seq_axis=1, batch_axis=0),
        [X, np.array([2, 3], "int32")],
    ),
    (
        "TensorScatterUpdate",
        lambda x, y: tf.tensor_scatter_nd_update(x, [[1], [0]], y[:2]),
        [X, X + 1],
    ),
    ("TensorScatterAdd", lambda x, y: tf.tensor_scatter_nd_add(x, [[1], [1]], y[:2]), [X, X + 1]),
    (
        "TensorScatterMax",
        lambda x, y: [
            tf.tensor_scatter_nd_max(x, [[1]], y[:1]),
            tf.tensor_scatter_nd_min(x, [[0]], y[:1]),
        ],
        [X, X[::-1]],
    ),
    ("ScatterNd", lambda y: tf.scatter_nd([[1], [3], [1]], y, (5, 4)), [floats(3, 4)]),
    (
        "XlaDynamicUpdateSlice",
        update,
        [floats(2, 5, 3), floats(2, 2, 3), np.array([0, 1, 0], "int32")],
    ),
    (
        "XlaDynamicUpdateSlice, last",
        update,
        [floats(2, 5, 3), floats(2, 2, 1), np.array([0, 9, 2], "int32")],
    ),
    (
        "LowerBound",
        lambda x, y: [tf.searchsorted(x, y), tf.searchsorted(x, y, side="right")],
        [np.array([1, 3, 5], "int32"), np.array([0, 1, 2, 5, 9], "int32")],
    ),
    # Convolutions.
    (
        "Conv2D",
        lambda x, k: [
            tf.nn.conv2d(x, k, (1, 1), "SAME"),
            tf.nn.conv2d(x, k, (2, 1), "VALID"),
            tf.nn.conv2d(x, k, (2, 2), "SAME"),
        ],
        [IMAGES, floats(3, 2, 4, 5)],
    ),
    (
        "Conv2D, dilated",
        lambda x, k: tf.nn.conv2d(x, k, (1, 1), "SAME", dilations=(2, 1)),
        [IMAGES, floats(3, 2, 4, 5)],
    ),
    (
        "Conv2D, groups",
        lambda x, k: tf.nn.conv2d(x, k, (1, 1), "VALID"),
        [IMAGES, floats(3, 2, 2, 6)],
    ),
    (
        "Conv2D, padded",
        lambda x, k: raw.Conv2D(
            input=x,
            filter=k,
            strides=[1, 1, 1, 1],
            padding="EXPLICIT",
            explicit_paddings=[0, 0, 1, 2, 0, 1, 0, 0],
        ),
        [IMAGES, floats(3, 2, 4, 5)],
    ),
    ("Conv1D", lambda x, k: tf.nn.conv1d(x, k, 1, "SAME"), [X, floats(3, 4, 5)]),
    (
        "DepthwiseConv2dNative",
        lambda x, k: tf.nn.depthwise_conv2d(x, k, (1, 1, 1, 1), "SAME"),
        [IMAGES, floats(3, 3, 4, 2)],
    ),
    (
        "MaxPool",
        lambda x: [tf.nn.max_pool2d(x, 2, 2, "VALID"), tf.nn.max_pool2d(x, 3, 2, "SAME")],
        [IMAGES],
    ),
    (
        "AvgPool",
        lambda x: [tf.nn.avg_pool2d(x, 2, 2, "VALID"), tf.nn.avg_pool2d(x, 3, 2, "SAME")],
        [IMAGES],
    ),
    (
        "FusedBatchNormV3",
        lambda x, s: tf.compat.v1.nn.fused_batch_norm(x, s, s, s, s, is_training=False)[0],
        [IMAGES, positive(4)],
    ),
    # Calls, conditions, loops.
    (
        "If",
        lambda x: [
            tf.cond(tf.shape(x)[0] > n, lambda: x * 2.0, lambda: tf.zeros_like(x)) for n in (1, 5)
        ],
        [X],
    ),
    (
        "If of two",
        lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: (x, x + 1.0), lambda: (x - 1.0, x)),
        [X],
    ),
    (
        "While",
        lambda x: tf.while_loop(
            lambda i, _: i < tf.shape(x)[1],
            lambda i, y: (i + 1, y * 2.0 + x[:, i]),
            (tf.constant(0), x[:, 0]),
        ),
        [X],
    ),
    (
        "While that does nothing",
        lambda x: tf.while_loop(
            lambda i, _: i < 0, lambda i, y: (i + 1, y * 2.0), (tf.constant(0), x)
        ),
        [X],
    ),
    (
        "While that grows",
        lambda x: tf.while_loop(
            lambda i, _: i < 3,
            lambda i, y: (i + 1, tf.concat([y, x], 1)),
            (tf.constant(0), x),
            shape_invariants=(tf.TensorShape(()), tf.TensorShape((None, None, None))),
        )[1],
        [X],
    ),
    (
        "While in While",
        lambda x: tf.while_loop(
            lambda i, _: i < 2,
            lambda i, y: (
                i + 1,
                tf.while_loop(
                    lambda j, _: j < i + 2,
                    lambda j, z: (j + 1, z + tf.cast(i, tf.float32) * x),
                    (tf.constant(0), y),
                )[1],
            ),
            (tf.constant(0), x),
        ),
        [X],
    ),
    ("call", lambda x: tf.function(lambda y: (y + 1.0, y * 2.0))(x), [X]),
]


@functools.cache
def trace(name: str, varying: bool) -> Any:
    """Trace the function of a case with arguments x0, x1 ... and results y0, y1 ..."""
    ((function, arrays),) = [case[1:] for case in CASES if case[0] == name]

    def name_outputs(**tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        results = function(*(tensors[f"x{i}"] for i in range(len(arrays))))
        return {f"y{i:02}": tf.identity(y) for i, y in enumerate(tf.nest.flatten(results))}

    specs = {
        f"x{i}": tf.TensorSpec([None] * x.ndim if varying else x.shape, x.dtype, f"x{i}")
        for i, x in enumerate(arrays)
    }
    return tf.function(name_outputs, autograph=False).get_concrete_function(**specs)


def kinds_of(graph: Any) -> set[str]:
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    return {node.op for node in nodes}


def run_model(model: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    import onnxruntime

    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)


# These must know some sizes.
STATIC = ("Conv", "MaxPool", "AvgPool", "FusedBatch", "Depthwise", "Unpack", "Split", "GatherNd")


@pytest.mark.parametrize(("varying", "opset"), [(False, 23), (True, 17)], ids=["known", "varying"])
@pytest.mark.parametrize("name", [case[0] for case in CASES])
def test_operation(name: str, varying: bool, opset: int) -> None:
    if varying and name.startswith(STATIC):
        pytest.skip("its sizes must be known")
    graph = trace(name, varying)
    (arrays,) = [case[2] for case in CASES if case[0] == name]
    feeds = {f"x{i}": x for i, x in enumerate(arrays)}
    model = _converter.convert(graph, opset=opset)
    expected = graph(**{key: tf.constant(x) for key, x in feeds.items()})
    for found, key in zip(run_model(model, feeds), sorted(expected), strict=True):
        wanted = expected[key].numpy()
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def test_every_converter_is_tested() -> None:
    tested = set().union(*(kinds_of(trace(case[0], False).graph) for case in CASES))
    # The models of test_onnx.py have those of variables; others have side effects.
    others = {"If", "ReadVariableOp", "ResourceGather", "StatefulPartitionedCall", "While"}
    assert set(registry.CONVERTERS) - tested - others == set()
