"""GGUF files give the model's logits, in NumPy and in llama.cpp; what llama.cpp lacks is refused by name."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from heed.export import ExportError
from heed.export import gguf as export
from heed.models import LanguageModel, LanguageModelConfig, Transformer, generate
from tests.acceleration import hub_models
from tests.export.gguf_reference import File
from tests.models.builders import randomise, small_model
from tests.slow import slow

gguf = pytest.importorskip("gguf")
RUNNER = Path(export.__file__).parent / "runners" / "gguf.py"
EPSILON = float(np.finfo("float32").eps)
SIZES: dict[str, Any] = {
    "vocabulary_size": 40,
    "width": 32,
    "num_heads": 4,
    "num_key_value_heads": 2,
    "feed_forward_width": 64,
    "layers": 2,
    "normalization": "rms",
    "activation": "silu",
    "gated": True,
    "use_bias": False,
}
POST = {"use_post_ffw_norm": True, "use_post_attention_norm": True}
GEMMA_3 = {**POST, "use_query_key_norm": True, "attention_logit_soft_cap": None, "num_layers": 7}
LLAMA_3 = {
    "rope_frequency_adjustment_factor": 8.0,
    "rope_low_freq_factor": 1.0,
    "rope_high_freq_factor": 4.0,
    "rope_pretraining_sequence_length": 16,
    "tie_word_embeddings": True,
}
# Families of KerasHub: a small model, changes of it, and the architecture.
HUB: dict[str, tuple[str, dict[str, Any], str]] = {
    "Llama": ("Llama", {"rope_position_scaling_factor": 2.0}, "llama"),
    "Llama 3": ("Llama 3", LLAMA_3, "llama"),
    "Mistral": ("Mistral", {"sliding_window": 64, "head_dim": 8}, "llama"),
    "Qwen": ("Qwen", {"use_sliding_window_attention": False}, "qwen2"),
    "Qwen 3": ("Qwen 3", {"sliding_window_size": 64}, "qwen3"),
    "Gemma": ("Gemma", {}, "gemma"),
    "Gemma 2": (
        "Gemma 2",
        {"final_logit_soft_cap": 5.0, "query_head_dim_normalize": False},
        "gemma2",
    ),
    "Gemma 3": ("Gemma 3", {**GEMMA_3, "global_rope_scaling_factor": 8.0}, "gemma3"),
}
OWN: dict[str, dict[str, Any]] = {
    "plain": {},
    "own logits": {"tie_embeddings": False, "num_key_value_heads": None},
    "biases": {"use_bias": True, "scale_embeddings": False},
    "head norms": {"qk_norm": True, "key_dim": 6},
}
OTHERS = {"own logits": "qwen2", "head norms": "qwen3"}


def own_model(**changes: Any) -> LanguageModel:
    keras.utils.set_random_seed(0)
    return randomise(LanguageModel(LanguageModelConfig(**{**SIZES, **changes})))


def hub_model(name: str) -> Any:
    pytest.importorskip("keras_hub", exc_type=ImportError)
    kind, changes, _ = HUB[name]
    return hub_models.task(kind, hub_models.build(kind, **changes))


def make(name: str) -> Any:
    return own_model(**OWN[name]) if name in OWN else hub_model(name)


def logits_of(model: Any, tokens: np.ndarray) -> np.ndarray:
    """The logits (T, V) of the graph, without a row's axis."""
    given = tokens[None]
    if not isinstance(model, LanguageModel):
        given = {"token_ids": given, "padding_mask": np.ones_like(given)}
        if "images" in (model.input if isinstance(model.input, dict) else {}):
            given["images"] = np.zeros((1, 0, 16, 16, 3), "float32")
    return keras.ops.convert_to_numpy(model(given))[0].astype(np.float64)


def some_tokens(count: int = 12) -> np.ndarray:
    return np.random.default_rng(1).integers(3, SIZES["vocabulary_size"], count).astype("int32")


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    """The RMS of the differences divided by the RMS of the expected numbers."""
    return math.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2))


def products(model: Any) -> int:
    """The products that a number passes on its way to the logits."""
    layers = len(export._read_model(model).stack.layers)
    return 4 * layers + 1


CASES = [*OWN, *HUB]
BY_DEFAULT = ("plain", "own logits", "Gemma 3")


@pytest.mark.parametrize(
    "name", [*BY_DEFAULT, *slow(name for name in CASES if name not in BY_DEFAULT)]
)
def test_a_file_means_the_model(name: str, tmp_path: Path) -> None:
    model, tokens = make(name), some_tokens()
    notes = export.write(model, tmp_path / "model.gguf")
    assert [*tmp_path.iterdir()] == [tmp_path / "model.gguf"]
    file = File.read(tmp_path / "model.gguf")
    assert {*file.types.values()} == {"F32"}
    assert any("no tokenizer" in note for note in notes)
    expected = HUB[name][2] if name in HUB else OTHERS.get(name, "llama")
    assert file.architecture == expected
    # Each product of float32 numbers rounds its sum; weights of order 1 amplify that at most tenfold a layer.
    assert relative(file.logits(tokens), logits_of(model, tokens)) < 100 * products(model) * EPSILON


@pytest.mark.parametrize("precision", ["q8_0", *slow(["bfloat16", "q4_0"])])
def test_tables_are_rounded_and_nothing_else(precision: str, tmp_path: Path) -> None:
    model = own_model(scale_embeddings=False)
    exact, rounded = (tmp_path / name for name in ("exact.gguf", "rounded.gguf"))
    export.write(model, exact)
    export.write(model, rounded, precision=precision)
    first, second = File.read(exact), File.read(rounded)
    assert first.tensors.keys() == second.tensors.keys()
    for name, table in first.tensors.items():
        found = second.tensors[name]
        if table.ndim == 1:
            np.testing.assert_array_equal(found, table)
            continue
        blocks = np.abs(table).reshape(*table.shape[:-1], -1, 32).max(-1, keepdims=True)
        # Half a step of the integers, whose factor is a half-precision number; a whole one at the far end of -8 .. 7;
        # half of bfloat16's last bit.
        steps = {"q8_0": 0.5 / 127 + 2**-11, "q4_0": 1 / 8 + 2**-11, "bfloat16": 2**-8}[precision]
        bound = np.repeat(blocks * steps, 32, axis=-1).reshape(table.shape)
        assert (np.abs(found - table) <= bound).all(), name
        assert second.types[name] == {"bfloat16": "BF16"}.get(precision, precision.upper())
    assert rounded.stat().st_size < 0.8 * exact.stat().st_size


def test_rows_that_are_no_multiple_of_a_block_stay_exact(tmp_path: Path) -> None:
    model = own_model(width=36, num_heads=2)
    notes = export.write(model, tmp_path / "model.gguf", precision="q4_0")
    types = File.read(tmp_path / "model.gguf").types
    assert types["token_embd.weight"] == "F32"
    assert types["blk.0.ffn_down.weight"] == "Q4_0"
    assert any("no multiple of 32 stay in float32: token_embd.weight" in note for note in notes)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"activation": "gelu"}, "activation='gelu'"),
        *slow(
            [
                ({"position": "alibi"}, "position='alibi'"),
                ({"normalization": "layer"}, "normalization='layer'"),
                ({"norm_first": False}, "norm_first=False"),
                ({"gated": False}, "gated=False"),
                ({"sinks": True}, "sinks=True"),
                ({"soft_cap": 5.0}, "soft_cap=5.0"),
                ({"value_dim": 4}, "value_dim=4"),
                ({"normalize_embeddings": True}, "normalize_embeddings=True"),
            ]
        ),
    ],
)
def test_other_options_are_refused_by_name(
    changes: dict[str, Any], name: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match="^llama.cpp has no form of") as raised:
        export.write(own_model(**changes), tmp_path / "model.gguf")
    assert name in str(raised.value)
    assert not [*tmp_path.iterdir()]


def test_a_window_bounds_the_context(tmp_path: Path) -> None:
    model = own_model(sliding_window=20)
    assert any("at most 20 tokens" in note for note in export.write(model, tmp_path / "a.gguf"))
    assert File.read(tmp_path / "a.gguf").of("context_length") == 20
    with pytest.raises(ExportError, match="`context` must be at most 20"):
        export.write(model, tmp_path / "b.gguf", context=21)


@pytest.mark.parametrize("context", [0, -1, 2.5, True])
def test_a_context_is_a_positive_integer(context: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="context"):
        export.write(own_model(), tmp_path / "model.gguf", context=context)


def test_bad_models_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    with pytest.raises(ExportError, match="no other model. Received: Transformer"):
        export.write(small_model(), file)
    with pytest.raises(ExportError, match="`precision` must be one of 'float32'"):
        export.write(own_model(), file, precision="int8")
    model = own_model()
    weight = model.decoder.blocks[1].feed_forward.output_dense.kernel
    weight.assign(np.full(weight.shape, np.nan))
    with pytest.raises(ExportError, match="blk.1.ffn_down.weight .* not finite"):
        export.write(model, file)
    assert not [*tmp_path.iterdir()]


def test_an_interrupted_export_leaves_the_file_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    file = tmp_path / "model.gguf"
    file.write_bytes(b"before")
    monkeypatch.setattr(gguf.quants, "quantize", interrupt)
    with pytest.raises(KeyboardInterrupt):
        export.write(own_model(), file)
    assert [*tmp_path.iterdir()] == [file]
    assert file.read_bytes() == b"before"
