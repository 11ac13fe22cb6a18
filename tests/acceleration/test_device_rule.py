"""On a GPU, `accelerate` leaves to Keras what Keras runs as well or better, and says why. The GPU is a stand-in."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest

import heed
from heed.ops import device_rule
from heed.ops.backends import current
from tests.backend import BACKEND
from tests.tolerances import to_numpy

B, T, N, H = 2, 6, 4, 8
FEW = "its scores are few enough to build"
SAME = "Keras runs the same kernel"
FUSED = {"torch": "PyTorch's fused attention", "jax": "cuDNN's attention"}
on_torch = pytest.mark.skipif(BACKEND != "torch", reason="is about PyTorch")


@pytest.fixture
def gpu() -> Iterator[None]:
    """Act as on a machine with a GPU; what then runs are the kernels for CPUs, or the portable form."""
    backend = current()
    native = type(backend.IMPLEMENTATIONS["native"])
    answers: list[tuple[Any, str, Any]] = [
        (backend, "device_of", "GPU"),
        (native, "unsupported_reasons", ["the native kernels are for CPUs"]),
    ]
    if BACKEND == "torch":
        from heed.ops.backends.torch.fused import _compiling, implementation

        answers += [(implementation, "machine_reasons", ()), (_compiling, "has_triton", True)]
    with ExitStack() as stack:
        if BACKEND == "jax":
            from heed.ops.backends.jax.cudnn import _attention, implementation
            from heed.ops.backends.jax.portable.implementation import Portable

            def run(spec: Any, tensors: Any) -> Any:
                return Portable().attend(spec, tensors, return_lse=False)[0]

            stack.enter_context(mock.patch.object(_attention, "run", run))
            answers.append((implementation, "compute_capability", (9, 0)))
        for owner, name, answer in answers:
            stack.enter_context(mock.patch.object(owner, name, return_value=answer))
        yield


def draw(*shape: int, dtype: str = "bfloat16") -> Any:
    x = np.random.default_rng(len(shape)).normal(size=shape).astype("float32")
    return keras.ops.convert_to_tensor(x, dtype=dtype)


def run(function: Any) -> tuple[dict[str, int], dict[str, int]]:
    """Return what ran on heed and what was left; what was left gives what stock Keras gives."""
    stock = function()
    with heed.accelerate() as acceleration:
        fast = function()
        report = acceleration.report()
    if report.left_to_keras:
        for one, other in zip(keras.tree.flatten(fast), keras.tree.flatten(stock), strict=True):
            np.testing.assert_array_equal(to_numpy(one), to_numpy(other))
    return report.calls, report.left_to_keras


def the_reason(found: tuple[dict[str, int], dict[str, int]], target: str) -> str:
    """Return the reason of a call that was left as a whole: nothing in it ran on heed."""
    calls, left = found
    assert calls == {}
    ((text, number),) = left.items()
    assert number == 1
    assert text.startswith(f"{target}: on a GPU ")
    return text


OP, LAYER = "keras.ops.dot_product_attention", "keras.layers.MultiHeadAttention"
CAUSAL, PADDING = np.tri(T, dtype=bool), np.arange(T) < 3
IN_OP, IN_LAYER = (B, T, N, H), (B, T, 12)


def attend(*inputs: Any, **options: Any) -> Any:
    return keras.ops.dot_product_attention(*inputs, **options)  # as it is now


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("shape", "dtype", "options", "reason"),
    [
        (IN_OP, "bfloat16", {"is_causal": True}, SAME if BACKEND in FUSED else FEW),
        (IN_OP, "bfloat16", {"mask": CAUSAL[None, None]}, FUSED.get(BACKEND, FEW)),
        # Of one row, which cuDNN does not take.
        (
            IN_OP,
            "bfloat16",
            {"mask": PADDING[None, None, None]},
            FUSED["torch"] if BACKEND == "torch" else FEW,
        ),
        (IN_LAYER, "bfloat16", {"attention_mask": CAUSAL[None]}, FUSED.get(BACKEND, FEW)),
        (IN_LAYER, "float32", {"return_attention_scores": True}, "output and scores at once"),
    ],
)
def test_a_call_is_left_as_a_whole(
    shape: tuple[int, ...], dtype: str, options: dict[str, Any], reason: str
) -> None:
    x, is_op = draw(*shape, dtype=dtype), shape == IN_OP
    inputs = [x] * (3 if is_op else 2)
    call = attend if is_op else keras.layers.MultiHeadAttention(N, H, dtype=dtype)
    found = run(lambda: call(*inputs, **options))
    assert reason in the_reason(found, OP if is_op else LAYER)


@pytest.mark.usefixtures("gpu")
def test_attention_along_one_of_several_axes() -> None:
    layer = keras.layers.MultiHeadAttention(N, H, attention_axes=(1,))
    x, mask = draw(B, T, 3, 12, dtype="float32"), np.ones((B, T, 3), bool)
    found = run(lambda: layer(x, x, attention_mask=CAUSAL[None, None]))
    assert FEW in the_reason(found, LAYER)
    with heed.accelerate() as acceleration:  # Keras refuses this mask
        layer(x, x, key_mask=mask)
        assert acceleration.report().calls == {LAYER: 1}


@pytest.mark.usefixtures("gpu")
def test_scores_that_keras_would_build_run_on_heed_if_they_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer, x = keras.layers.MultiHeadAttention(N, H, dropout=0.5), draw(B, T, 12, dtype="float32")

    def train() -> Any:
        return layer(x, x, training=True)

    train()
    with heed.accelerate() as acceleration:
        train()
        report = acceleration.report()
        assert FEW in the_reason((report.calls, report.left_to_keras), LAYER)
        monkeypatch.setattr(device_rule, "_MANY", B * N * T * T)
        train()
        assert acceleration.report().calls == {LAYER: 1}


@pytest.mark.usefixtures("gpu")
@on_torch
def test_grouped_heads_that_keras_would_repeat_run_on_heed() -> None:
    layer = keras.layers.GroupQueryAttention(H, N, 2, dtype="bfloat16")
    x = draw(B, T, 12)
    calls, left = run(lambda: layer(x, x, use_causal_mask=True))
    assert (calls, left) == ({"keras.layers.GroupQueryAttention": 1}, {})


@pytest.mark.usefixtures("gpu")
@on_torch
def test_an_array_with_one_head_of_keys_is_left() -> None:
    """As in KerasHub's Gemma."""
    length = 128  # from which on flex_attention is used
    query, key = draw(1, length, N, 16), draw(1, length, 1, 16)
    mask = np.tri(length, dtype=bool)[None, None]
    found = run(lambda: keras.ops.dot_product_attention(query, key, key, mask=mask))
    assert FEW in the_reason(found, OP)
    assert "with grouped heads" in str(heed.explain_dispatch(query, key, key, mask=mask))


@pytest.mark.usefixtures("gpu")
@on_torch
def test_a_kernel_that_cannot_be_compiled_is_no_reason_to_run_on_heed() -> None:
    layer, x = keras.layers.GroupQueryAttention(H, N, 2, dtype="bfloat16"), draw(B, T, 12)

    def kinds() -> tuple[list[str], list[str]]:
        with heed.accelerate() as acceleration:
            layer(x, x, use_causal_mask=True)
            report = acceleration.report()
        return list(report.calls), list(report.left_to_keras)

    assert kinds()[1] == []
    with mock.patch.object(device_rule, "explain") as explain:
        explain.return_value.implementation = "portable"
        assert kinds()[0] == []


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("kind", [keras.layers.Attention, keras.layers.AdditiveAttention])
def test_layers_of_one_head(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = kind(), draw(B, T, 12, dtype="float32")
    mask = [None, keras.ops.convert_to_tensor(np.arange(T) < np.array([[3], [5]]))]
    name = f"keras.layers.{kind.__name__}"
    assert FEW in the_reason(run(lambda: layer([x, x], mask=mask)), name)
    monkeypatch.setattr(device_rule, "_MANY", B * T * T)
    assert run(lambda: layer([x, x], mask=mask)) == ({name: 1}, {})


@pytest.mark.usefixtures("gpu")
def test_who_chooses_an_implementation_gets_it_and_flash_attention_is_never_refused() -> None:
    x, mask = draw(B, T, N, H), CAUSAL[None, None]
    with heed.accelerate() as acceleration:
        with heed.set_implementation("portable"):
            keras.ops.dot_product_attention(x, x, x, mask=mask)
        assert acceleration.report().calls == {OP: 1}
        keras.ops.dot_product_attention(x, x, x, mask=mask, flash_attention=True)
        assert acceleration.report().calls == {OP: 2}


@pytest.mark.usefixtures("gpu")
def test_explain_dispatch_says_so() -> None:
    x, mask = draw(B, T, N, H), CAUSAL[None, None]
    told = heed.explain_dispatch(x, x, x, mask=mask)
    assert told.implementation == "portable"
    assert "heed.accelerate leaves such a call to Keras: on a GPU" in told.reasons[-1]
    assert FUSED.get(BACKEND, FEW) in told.reasons[-1]
    assert "leaves" not in str(heed.explain_dispatch(x, x, x, mask=mask, soft_cap=2.0))


@pytest.mark.usefixtures("gpu")
def test_heeds_own_ops_and_layers_run() -> None:
    x = draw(B, T, N, H, dtype="float32")
    mask = heed.Mask.window(2, 0) & heed.Mask.lengths([T, 0])
    output = heed.ops.dot_product_attention(x, x, x, mask=mask)
    assert bool(keras.ops.any(output[1] != 0)) is False
    layer = heed.layers.MultiHeadAttention(2, 4)
    assert layer(x[:, :, 0], x[:, :, 0]).shape == (B, T, H)


def count_calls(function: Any) -> int:
    """Return how many functions of heed run in Python, without the doors of what it replaced.

    Where KerasHub is imported, heed replaces operations of its loop: each that Keras calls elsewhere passes one door.
    """
    folder, found = os.path.dirname(heed.__file__), 0

    def note(frame: Any, event: str, _: Any) -> None:
        nonlocal found
        code = frame.f_code
        if event == "call" and code.co_name != "entry":
            found += code.co_filename.startswith(folder)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.usefixtures("gpu")
def test_a_call_that_was_left_before_is_left_at_once() -> None:
    """Where a GPU is fast, Python is what takes time."""
    layers = [keras.layers.MultiHeadAttention(N, H, dtype="bfloat16") for _ in range(2)]
    x, mask = draw(B, T, 12), CAUSAL[None]
    with heed.accelerate() as acceleration:
        for layer in layers:
            layer(x, x, attention_mask=mask)
        with mock.patch.object(device_rule, "reason_to_leave", return_value=None) as asked:
            assert count_calls(lambda: layers[0](x, x, attention_mask=mask)) <= 28
            layers[1](x, x, attention_mask=mask)
            assert acceleration.report().calls == {}
            asked.assert_not_called()
            layers[0](x, x)  # another call
            asked.assert_called()
        before = acceleration.report().calls[LAYER]
        with heed.set_implementation("portable"):
            layers[0](x, x, attention_mask=mask)
        assert acceleration.report().calls[LAYER] > before


def test_a_reason_is_that_of_one_layer_and_kind_of_call() -> None:
    first, second = (keras.layers.MultiHeadAttention(N, H) for _ in range(2))
    x = draw(B, T, 12)
    reasons, kind = device_rule.Reasons(), device_rule.kind_of(first, (x, None, True))
    others = [
        (second, (x, None, True)),
        (first, (draw(B, T + 1, 12), None, True)),
        (first, (draw(B, T, 12, dtype="float32"), None, True)),
        (first, (x, x, True)),
        (first, (x, None, False)),
        (first, (x, [None], True)),
    ]
    assert kind not in [device_rule.kind_of(*other) for other in others]
    assert device_rule.kind_of(first, (x, object())) is None
    reasons.keep(kind, first, "why")
    assert reasons.find(kind, first) == "why"
    assert reasons.find(kind, second) is None
    del first, others  # another layer may get its `id`
    gc.collect()
    assert reasons.find(kind, second) is None


def test_on_a_cpu_nothing_is_left() -> None:
    x, mask = draw(B, T, N, H), CAUSAL[None, None]
    with mock.patch.object(device_rule, "reason_to_leave") as asked:
        calls, left = run(lambda: keras.ops.dot_product_attention(x, x, x, mask=mask))
    assert (calls, left) == ({OP: 1}, {})
    asked.assert_not_called()


@pytest.mark.slow
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("Bert", LAYER),
        ("GPT2", LAYER),
        ("Llama", "keras_hub.LlamaAttention"),
        ("Gemma", "keras_hub.CachedGemmaAttention"),
        ("T5", "keras_hub.T5MultiHeadAttention"),
    ],
)
def test_models_of_keras_hub(kind: str, target: str) -> None:
    keras_hub = pytest.importorskip("keras_hub")
    options: dict[str, Any] = {"vocabulary_size": 20, "num_layers": 1, "num_heads": 2}
    options |= {"hidden_dim": 16, "intermediate_dim": 16, "dtype": "bfloat16"}
    if kind in ("Llama", "Gemma"):
        options["num_query_heads"] = options.pop("num_heads")
        options["num_key_value_heads"] = 2
    if kind == "Gemma":
        options["head_dim"] = 8
    model = getattr(keras_hub.models, f"{kind}Backbone")(**options)
    known = {"padding_mask": np.arange(6) < np.array([[6], [4]]), "segment_ids": np.zeros((2, 6))}
    inputs = {
        name: known[name.removeprefix("encoder_").removeprefix("decoder_")].astype("int32")
        if "token" not in name
        else np.ones((2, 6), "int32")
        for name in model.input
    }
    calls, left = run(lambda: model(inputs))
    assert calls == {}
    assert {text.partition(":")[0] for text in left} == {target}
    assert all("on a GPU" in text for text in left)
