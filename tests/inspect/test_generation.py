"""The attention over a text that a model of KerasHub writes, with the names of its tokens."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import heed
from heed.inspect import Lens, capture, capture_generation, circuit_scores, plot_heads
from heed.inspect._generation import label_tokens
from tests.backend import without_64_bits

WORDS = ["<pad>", "<s>", "▁one", "▁two", "▁three", "</s>"]
LENGTH = 7


class Tokenizer:
    """Words, and in the place of KerasHub's class the name that it goes by."""

    def id_to_token(self, i: int) -> str:
        if i >= len(WORDS):
            raise ValueError(f"`id` is out of the vocabulary. Received: {i}")
        return WORDS[i]


class Preprocessor:
    """What `generate` of KerasHub asks of one."""

    tokenizer = Tokenizer()

    def generate_preprocess(self, x: Any, sequence_length: int | None = None) -> dict[str, Any]:
        ids = [[1, *(WORDS.index(f"▁{word}") for word in text.split())] for text in x]
        known = np.arange(sequence_length or LENGTH)[None] < np.array([[len(row)] for row in ids])
        rows = np.zeros(known.shape, "int32")
        rows[known] = np.concatenate(ids)
        return {"token_ids": rows, "padding_mask": known}

    def generate_postprocess(self, x: dict[str, Any]) -> list[str]:
        return [" ".join(WORDS[i] for i in row if i > 1) for row in x["token_ids"]]


class Model(keras.Model):
    """A causal model with KerasHub's `generate`, which writes "three" to the end and leaves one place empty."""

    def __init__(self) -> None:
        super().__init__()
        tokens = keras.Input((None,), dtype="int32", name="token_ids")
        mask = keras.Input((None,), dtype="int32", name="padding_mask")
        x = keras.layers.Embedding(len(WORDS), 8)(tokens)
        attention = keras.layers.MultiHeadAttention(2, 4, name="attention")
        x = attention(x, x, use_causal_mask=True, attention_mask=mask[:, None, :])
        self.backbone = keras.Model({"token_ids": tokens, "padding_mask": mask}, x)
        self.preprocessor: Any = Preprocessor()

    def generate(self, inputs: Any, max_length: Any = None, stop_token_ids: Any = "auto") -> Any:
        given = self.preprocessor.generate_preprocess([inputs], sequence_length=max_length)
        ids = np.where(given["padding_mask"], given["token_ids"], 4)
        mask = np.arange(ids.shape[1])[None] < ids.shape[1] - 1
        return self.preprocessor.generate_postprocess({"token_ids": ids, "padding_mask": mask})[0]


def test_text_tokens_and_weights_of_one_call() -> None:
    model = Model()
    found = capture_generation(model, "one two")
    assert found.text == model.generate("one two") == "▁one ▁two ▁three ▁three ▁three ▁three"
    assert found.tokens == ("<s>", "▁one", "▁two", "▁three", "▁three", "▁three")
    assert found.source_tokens is None
    ids = np.array([[1, 2, 3, 4, 4, 4]])
    wanted = capture(model.backbone, {"token_ids": ids, "padding_mask": np.ones_like(ids)})
    np.testing.assert_array_equal(found.capture.weights["attention"], wanted.weights["attention"])
    assert found.layer_tokens == {"attention": (found.tokens, found.tokens)}
    assert "▁three" in found.page().html
    assert "6 tokens" in repr(found)
    assert len(capture_generation(model, "one", max_length=4).tokens) == 3
    assert capture_generation(model, "one", heads=[1]).capture.heads["attention"] == (1,)


def test_each_step_is_a_capture_of_its_row() -> None:
    model = Model()
    found = capture_generation(model, "one two", residual=True)
    assert [found.tokens[row + 1] for row in found.steps] == ["▁three"] * 3
    whole, step = found.capture, found.step(1)
    assert list(found.steps) == [2, 3, 4]
    assert step.rows == {"attention": (3,)}
    np.testing.assert_array_equal(step.weights["attention"], whole.weights["attention"][:, :, 3:4])
    np.testing.assert_array_equal(step.entropy["attention"], whole.entropy["attention"])
    assert len(plot_heads(step, "attention", tokens=found.tokens).axes) == 3
    text = found.page(step=1).html
    assert '"rowPositions":[3]' in text
    assert '"sequences":[["▁three"],[' in text
    np.testing.assert_array_equal(found.inputs["token_ids"], [[1, 2, 3, 4, 4, 4]])
    scores = circuit_scores(whole, found.inputs["token_ids"])
    assert "Circuit scores" in found.page(scores=scores).html
    lens = Lens({"layer/output": np.eye(6)[None]}, tuple(range(6)))
    assert ">▁two</b> " in found.page(lens=lens).html
    assert ">3!</b> " in found.page(lens=lens, token_name="{}!".format).html
    assert whole.residual["heads"].shape == (1, 6, 2, 4)
    with pytest.raises(ValueError, match=r"`number` must be in \[0, 3\).*Received: number=3"):
        found.step(3)
    some = capture_generation(model, "one two", rows=[2])
    assert some.step(0).rows == {"attention": (2,)}
    with pytest.raises(ValueError, match=r"`row` must .*row=3 for 'attention'"):
        some.step(1)
    with pytest.raises(ValueError, match="which holds a pooled picture"):
        capture_generation(model, "one two", size=3).step(0)


def test_what_is_no_model_or_prompt_is_refused() -> None:
    model = Model()
    with pytest.raises(TypeError, match=r"`prompt` must be one.*\['one'\]"):
        capture_generation(model, ["one"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"`prompt` must be one text"):
        capture_generation(model, {})
    with pytest.raises(TypeError, match=r"`model` must be a CausalLM.*Received: Dense"):
        capture_generation(keras.layers.Dense(3), "one")
    model.preprocessor = None
    with pytest.raises(ValueError, match=r"`model` must have a preprocessor"):
        capture_generation(model, "one")


def test_names_of_tokens() -> None:
    assert label_tokens(Tokenizer(), [2, 99]) == ("▁one", "99")
    pairs = type("BytePairTokenizer", (), {"id_to_token": lambda _, i: ["ĠcafÃ©", "Ã", "<s>"][i]})
    assert label_tokens(pairs(), range(3)) == ("▁café", "Ã", "<s>")


@pytest.mark.slow
@pytest.mark.parametrize("accelerated", [False, True])
@pytest.mark.parametrize("name", ["GPT2", "Llama", "Bart"])
def test_models_of_keras_hub(name: str, accelerated: bool) -> None:
    hub = pytest.importorskip("keras_hub", exc_type=ImportError)
    pieces = ["<s>", "<pad>", "</s>", "<|endoftext|>", *map(chr, range(33, 127)), "Ġ", "Ã", "©"]
    merges = ["h e", "t he", "Ġ the"]
    tokens = [*pieces, "he", "the", "Ġthe"]
    options = {"vocabulary": {token: i for i, token in enumerate(tokens)}, "merges": merges}
    sizes = {"num_layers": 2, "hidden_dim": 16, "intermediate_dim": 24}
    keras.utils.set_random_seed(0)
    models = hub.models
    if name == "Llama":
        # Its own tokenizer is a SentencePiece model; any other serves.
        heads = {"num_query_heads": 2, "num_key_value_heads": 1}
        backbone = models.LlamaBackbone(len(tokens), **sizes, **heads)
        preprocessor = models.GPT2CausalLMPreprocessor(models.GPT2Tokenizer(**options), 12)
        model = models.LlamaCausalLM(backbone, preprocessor)
    else:
        heads = {"num_heads": 2, "max_sequence_length": 12}
        backbone = getattr(models, f"{name}Backbone")(len(tokens), **sizes, **heads)
        kind = "Seq2SeqLM" if name == "Bart" else "CausalLM"
        tokenizer = getattr(models, f"{name}Tokenizer")(**options)
        lengths = (12, 12) if name == "Bart" else (12,)
        preprocessor = getattr(models, f"{name}{kind}Preprocessor")(tokenizer, *lengths)
        model = getattr(models, f"{name}{kind}")(backbone, preprocessor)
    model.compile(sampler="greedy", jit_compile=False)
    text = "the café"
    try:
        if accelerated:
            heed.accelerate(model)
        with without_64_bits():
            found = capture_generation(model, text)
            assert found.text == model.generate(text)
    finally:
        heed.decelerate()
    read = ("the", "▁", "c", "a", "f", "Ã", "©")
    if name == "Bart":
        assert found.source_tokens == ("<s>", *read, "</s>")
        assert found.tokens[:2] == ("</s>", "<s>")
        assert list(found.capture.kinds.values()) == ["self"] * 2 + ["causal", "cross"] * 2
    else:
        assert found.source_tokens is None
        assert found.tokens[1 : 1 + len(read)] == read
        assert set(found.capture.kinds.values()) == {"causal"}
    for layer, weights in found.capture.weights.items():
        rows, columns = found.layer_tokens[layer]
        assert weights.shape == (1, 2, len(rows), len(columns))
    # What a step attends to is what it wrote with: the first token after the prompt, and all later ones.
    prompt = 2 if name == "Bart" else 1 + len(read)
    assert found.steps == range(prompt - 1, len(found.tokens) - 1)
    kinds = {"causal", "cross"} if name == "Bart" else {"causal"}
    assert set(found.step(0).kinds.values()) == kinds
    assert "caf" not in found.tokens
    assert "<html" in found.page().html
