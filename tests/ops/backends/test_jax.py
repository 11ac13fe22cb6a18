"""Attention on JAX: meaning, derivatives, and the transformations of JAX.

These tests run where Keras' backend is JAX: `KERAS_BACKEND=jax python -m pytest -n 0 tests/ops/backends/test_jax.py`.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest

if keras.config.backend() != "jax":
    pytest.skip("Keras' backend is not JAX", allow_module_level=True)

import jax
import jax.numpy as jnp

import heed
from heed import Mask
from heed.ops import (
    additive_attention,
    arguments,
    attention_statistics,
    attention_weights,
    dot_product_attention,
)
from heed.ops.backends.jax.native import library
from heed.ops.backends.shared import plan
from heed.ops.backends.shared._dropout import keep_mask
from heed.ops.sizes import Span
from tests import reference, tolerances
from tests.native.test_adapters_xla import Frame
from tests.slow import slow

B, T, S, N, K, H, V = 2, 13, 11, 4, 2, 8, 5
TRAINED = ("query", "key", "value", "bias")


def random(*shape, seed=0, dtype="float32"):
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape), dtype)


def operands(dtype="float32"):
    shapes = (B, T, N, H), (B, S, K, H), (B, S, K, V)
    return [random(*shape, seed=i, dtype=dtype) for i, shape in enumerate(shapes)]


CASES = {
    "none": {},
    "causal": {"mask": Mask.causal("bottom_right")},
    "window": {"mask": Mask.window(3, 1)},
    "lengths": {"mask": Mask.lengths([0, 7], [13, 9])},
    "segments": {
        "mask": Mask.segments(
            np.arange(T) // 5 * np.ones((B, 1), int), np.arange(S) // 4 * np.ones((B, 1), int)
        )
    },
    "prefix": {"mask": Mask.prefix(np.array([2, 5]), np.array([0, -2]))},
    "dilated": {"mask": Mask.dilated(3) & Mask.causal()},
    "dense": {"mask": np.random.default_rng(1).random((B, 1, T, S)) < 0.5},
    "bias": {"bias": random(1, N, T, S, seed=9), "soft_cap": 2.0, "scale": 0.7},
    "alibi": {
        "alibi_slopes": np.array([0.5, 0.25, 0.1, 0.0], "float32"),
        "mask": Mask.causal(np.array([1, 3])),
    },
}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(plan, "MOST_QUERIES", 5)
    monkeypatch.setattr(plan, "GROUPS", 1)  # a program of two blocks, and one of the rest


def as_reference(options):
    """Return the options of the reference."""
    options = dict(options)
    mask = options.get("mask")
    if isinstance(mask, Mask):
        options["mask"] = np.asarray(mask.to_dense(T, S))
        if "alibi_slopes" in options:
            options["align"] = np.asarray(mask.alignment)
    return options


# The portable form computes each kind of mask in tests/ops, too.
@pytest.mark.parametrize(
    ("name", "implementation"),
    [
        *((name, "native") for name in CASES),
        *((name, "portable") for name in ("causal", "lengths", "bias", "alibi")),
        *slow(
            [(x, "portable") for x in ("none", "window", "segments", "prefix", "dilated", "dense")]
        ),
    ],
    indirect=["implementation"],
)
def test_results_and_gradients_are_those_of_the_reference(name, implementation):
    options = CASES[name]
    arrays = operands()
    names = TRAINED[: 3 + ("bias" in options)]
    arrays += [options[name] for name in names[3:]]
    others = {key: x for key, x in options.items() if key not in names}

    @jax.jit
    def attend(*arrays):
        return dot_product_attention(
            **dict(zip(names, arrays, strict=True)), **others, return_lse=True
        )

    (output, lse), pull = jax.vjp(attend, *arrays)
    expected = reference.dot_product_attention(*operands(), **as_reference(options))
    tolerances.assert_values(output, expected.out, "float32")
    tolerances.assert_statistics(lse, expected.lse, "float32")
    d_out, d_lse = random(B, T, N, V, seed=5), random(B, N, T, seed=6)
    wanted = reference.dot_product_attention_backward(
        *operands(), np.asarray(d_out), np.asarray(d_lse), **as_reference(options)
    )
    for one, gradient in zip(names, pull((d_out, d_lse)), strict=True):
        tolerances.assert_gradients(gradient, getattr(wanted, one), "float32", one)


def test_additive_attention(implementation):
    query, key, value = random(B, T, H), random(B, S, H, seed=1), random(B, S, V, seed=2)
    vector, bias = random(H, seed=3), random(H, seed=4)
    mask = np.random.default_rng(1).random((B, T, S)) < 0.5
    attend = functools.partial(additive_attention, mask=mask, return_lse=True)

    def run(query, key, value, vector, bias):
        return attend(query, key, value, score_vector=vector, bias=bias)

    arrays = query, key, value, vector, bias
    (output, lse), pull = jax.vjp(run, *arrays)
    expected = reference.additive_attention(query, key, value, vector, bias=bias, mask=mask)
    tolerances.assert_values(output, expected.out, "float32")
    tolerances.assert_statistics(lse, expected.lse, "float32")
    d_out, d_lse = random(B, T, V, seed=5), random(B, T, seed=6)
    wanted = reference.additive_attention_backward(
        query, key, value, vector, d_out, d_lse, bias=bias, mask=mask
    )
    names = "query", "key", "value", "score_vector", "bias"
    for name, gradient in zip(names, pull((d_out, d_lse)), strict=True):
        tolerances.assert_gradients(gradient, getattr(wanted, name), "float32", name)


def test_the_same_weights_drop_for_one_seed(implementation):
    seed = jnp.array([5, 7], "uint32")
    keep = np.asarray(keep_mask(0.4, seed, B, N, Span(0, T), Span(0, S)))
    # The same bits as on the other backends.
    assert keep[1, 3, 12].astype(int).tolist() == [1, 0, 1, 1, 0, 0, 0, 1, 1, 1, 0]
    output = dot_product_attention(*operands(), dropout=0.4, seed=seed)
    expected = reference.dot_product_attention(*operands(), keep=keep, dropout=0.4)
    tolerances.assert_values(output, expected.out, "float32")


def test_forward_mode_of_the_portable_form():
    query, key, value = (x[:1, :3, :1, :2] for x in operands())
    with heed.set_implementation("portable"):
        found = jax.hessian(lambda q: (dot_product_attention(q, key, value) ** 2).sum())(query)
    assert np.isfinite(found).all()


def test_forward_mode_as_in_the_docs(implementation):
    docs = (Path(__file__).parents[3] / "docs" / "backends.md").read_text(encoding="utf-8")
    names = {"jax": jax}
    exec(docs[docs.index("def jvp(") :].partition("```")[0], names)
    query, key, value = (x[:1, :3, :1, :2] for x in operands())

    def call(query):
        return dot_product_attention(query, key, value, is_causal=True)

    def plain(query):
        scores = jnp.einsum("btnh,bsnh->bnts", query, key) / 2**0.5
        scores = jnp.where(jnp.tri(*scores.shape[2:], dtype=bool), scores, -jnp.inf)
        return jnp.einsum("bnts,bsnv->btnv", jax.nn.softmax(scores), value)

    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(call, (query,), (query,))
    found = names["jvp"](call, query, jnp.cos(query))
    expected = jax.jvp(plain, (query,), (jnp.cos(query),))
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    hessian = jax.jacrev(jax.grad(lambda query: (call(query) ** 2).sum()))(query)
    expected = jax.hessian(lambda query: (plain(query) ** 2).sum())(query)
    np.testing.assert_allclose(hessian, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "implementation"),
    [
        *((name, "native") for name in ("causal", "lengths", "dense", "bias", "alibi")),
        *((name, "portable") for name in ("lengths", "bias")),
        *slow([(name, "portable") for name in ("causal", "dense", "alibi")]),
    ],
    indirect=["implementation"],
)
def test_vmap_gives_each_entry_its_own(name, implementation):
    count = 3
    query, key, value = (random(count, *x.shape, seed=i) for i, x in enumerate(operands()))
    value = value[0]  # shared by all entries

    def loss(query, key, value, bias):
        options = dict(CASES[name], **({} if bias is None else {"bias": bias}))
        return (dot_product_attention(query, key, value, **options) ** 2).sum()

    bias = CASES[name].get("bias")
    places = (0, 1, 2, 3) if bias is not None else (0, 1, 2)
    differentiate = jax.value_and_grad(loss, places)
    mapped = jax.jit(jax.vmap(differentiate, (0, 0, None, None)))(query, key, value, bias)
    each = [differentiate(query[i], key[i], value, bias) for i in range(count)]
    expected = jax.tree.map(lambda *x: jnp.stack(x), *each)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5, rtol=2e-5), mapped, expected
    )
    # A gradient of a mapped function.
    total = jax.grad(lambda q: jax.vmap(loss, (0, 0, None, None))(q, key, value, bias).sum())(query)
    np.testing.assert_allclose(total, expected[1][0], atol=2e-5, rtol=2e-5)


def test_vmap_of_masks_and_of_dropout(implementation):
    query, key, value = operands()
    lengths = jnp.array([[3, 4], [11, 0]])

    def attend(lengths, seed):
        mask = Mask.lengths(lengths)
        return dot_product_attention(query, key, value, mask=mask, dropout=0.3, seed=seed)

    seeds = jnp.array([[1, 2], [3, 4]])
    mapped = jax.vmap(attend)(lengths, seeds)
    without = jax.vmap(lambda x: dot_product_attention(query, key, value, mask=Mask.lengths(x)))
    for i in range(2):
        np.testing.assert_allclose(mapped[i], attend(lengths[i], seeds[i]), atol=2e-6)
        mask = Mask.lengths(lengths[i])
        expected = dot_product_attention(query, key, value, mask=mask)
        np.testing.assert_allclose(without(lengths)[i], expected, atol=2e-6)


def test_checkpoint_scan_and_shard_map(implementation):
    query, _, _ = operands()
    attend = functools.partial(dot_product_attention, is_causal=True)

    def layers(x):
        block = jax.checkpoint(lambda x: x + attend(x, x, x))
        return jax.lax.scan(lambda x, _: (block(x), None), x, None, length=3)[0]

    expected = query
    for _ in range(3):
        expected = expected + attend(expected, expected, expected)
    np.testing.assert_allclose(jax.jit(layers)(query), expected, atol=1e-5)
    gradient = jax.jit(jax.grad(lambda x: layers(x).sum()))(query)
    plain = jax.grad(
        lambda x: functools.reduce(lambda x, _: x + attend(x, x, x), range(3), x).sum()
    )(query)
    np.testing.assert_allclose(gradient, plain, atol=1e-4)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("batch",))
    spec = jax.sharding.PartitionSpec("batch")
    # JAX's check of replication knows no custom calls.
    if hasattr(jax, "shard_map"):
        shard_map = functools.partial(jax.shard_map, check_vma=False)
    else:  # older versions
        from jax.experimental.shard_map import shard_map as experimental

        shard_map = functools.partial(experimental, check_rep=False)
    sharded = shard_map(lambda x: attend(x, x, x), mesh=mesh, in_specs=spec, out_specs=spec)
    np.testing.assert_allclose(jax.jit(sharded)(query), attend(query, query, query), atol=1e-6)
    gradient = jax.grad(lambda x: sharded(x).sum())(query)
    expected = jax.grad(lambda x: attend(x, x, x).sum())(query)
    np.testing.assert_allclose(gradient, expected, atol=1e-5)


def test_weights_and_statistics():
    query, key, value = operands()
    weights = attention_weights(query, key, mask=Mask.window(2, 0))
    mask = np.asarray(Mask.window(2, 0).to_dense(T, S))
    expected = reference.dot_product_attention(query, key, value, mask=mask).weights
    tolerances.assert_statistics(weights, expected, "float32")
    found = jax.jit(lambda q, k: attention_statistics(q, k, mask=Mask.window(2, 0)).entropy)
    with np.errstate(all="ignore"):
        entropy = -np.nansum(expected * np.log(expected), -1)
    np.testing.assert_allclose(found(query, key), entropy, atol=1e-5)


def test_a_derivative_needs_linear_memory(implementation):
    """No result of a program, nor what it keeps between forward and backward pass, has T S numbers."""
    x = jax.ShapeDtypeStruct((1, 4096, 1, 8), "float32")
    attend = functools.partial(dot_product_attention, is_causal=True)
    gradient = jax.jit(jax.grad(lambda x: attend(x, x, x).sum()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "SCORES", 2**17)
        patch.setattr(plan, "MOST_QUERIES", 256)
        memory = gradient.lower(x).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 4096 * 4096  # a quarter of the scores


def test_keras_infers_shapes_with_unknown_sizes():
    """With symbols in place of sizes, which no kernel takes."""
    from heed.layers import AdditiveAttention, MultiHeadAttention

    x = keras.Input((None, 8))
    y = MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
    model = keras.Model(x, AdditiveAttention(5)(y, y))
    assert model.output_shape == (None, None, 8)
    assert model(np.ones((2, 5, 8), "float32")).shape == (2, 5, 8)


def test_keras_compiles_models_with_every_implementation(implementation):
    """Without compilation, a step of training runs operation by operation."""
    from heed.layers import MultiHeadAttention

    x = keras.Input((5, 8))
    model = keras.Model(x, MultiHeadAttention(2, 4)(x, x))
    model.compile("sgd", "mse")
    assert model.jit_compile
    data = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    loss = float(np.mean(np.square(model(data))))
    np.testing.assert_allclose(model.train_on_batch(data, 0 * data), loss, rtol=1e-5)
    assert model.train_on_batch(data, 0 * data) < loss


def test_a_mask_is_an_argument_of_a_compiled_function(implementation):
    query, key, value = operands()
    attend = jax.jit(lambda mask: dot_product_attention(query, key, value, mask=mask))
    for mask in (Mask.causal(), Mask.causal() & Mask.lengths(jnp.array([3, 7]))):
        expected = dot_product_attention(query, key, value, mask=mask)
        np.testing.assert_allclose(attend(mask), expected, atol=1e-6)


def test_an_xla_that_refuses_the_library_leaves_the_portable_form(monkeypatch):
    """As one would that no longer serves the library's version; here the library names one that is too new."""
    if library.load()[0] is None:
        pytest.skip("no native kernels")

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Frame))
    def answer(frame):
        metadata = frame.contents.extension_start.contents.metadata.contents
        metadata.version.major, metadata.version.minor, metadata.traits = 0, 99, 0

    monkeypatch.setattr(library, "TARGETS", ("heed_xla_of_a_test",))
    monkeypatch.setattr(
        library.ctypes, "CDLL", lambda _: SimpleNamespace(heed_xla_of_a_test=answer)
    )
    refused = library.load.__wrapped__()
    assert refused[0] is None
    monkeypatch.setattr(library, "load", lambda: refused)
    (reason,) = library.machine_reasons.__wrapped__()
    assert reason.startswith("this JAX does not take the native library: ")
    assert "0.99" in reason


def test_a_call_of_a_known_kind_is_not_checked_again(monkeypatch):
    query, key, value = operands()
    expected = dot_product_attention(query, key, value, scale=0.123)

    def fail(*_):
        raise AssertionError("checked again")

    monkeypatch.setattr(arguments, "_check_operands", fail)
    np.testing.assert_array_equal(dot_product_attention(query, key, value, scale=0.123), expected)
    others = [(query[:1], key[:1], value[:1]), [x.astype("bfloat16") for x in (query, key, value)]]
    for other in others:
        with pytest.raises(AssertionError, match="again"):
            dot_product_attention(*other, scale=0.123)
    with pytest.raises(AssertionError, match="again"):  # traced sizes may be symbols
        jax.jit(lambda x: dot_product_attention(x, key, value, scale=0.123))(query)
