"""Patching every head of a GPT-2 form: heed on KerasHub's model, TransformerLens on the same weights.

It needs keras-hub and transformer-lens 4.3. No weights are loaded: they are random.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.results import Row
from benchmarks.turns import SMALLER, attempt, bar, ratio

_LAYERS, _HEADS, _WIDTH, _WORDS, _LENGTH = (
    (2, 2, 16, 50, 8) if SMALLER else (12, 12, 768, 50257, 64)
)


def measure(rounds: int) -> Iterator[Row | str]:
    """Yield the row."""
    yield from attempt("patching", _measure(rounds))


def _measure(rounds: int) -> Iterator[Row]:
    import torch
    from transformer_lens import patching
    from transformer_lens.model_bridge import TransformerBridge

    from heed import inspect

    stock, ours = _make_models()
    theirs = TransformerBridge.boot_transformers(
        "gpt2", hf_model=stock, tokenizer=_make_tokenizer(), device="cpu"
    ).eval()
    clean, corrupted = np.random.default_rng(0).integers(0, _WORDS, (2, 1, _LENGTH))
    metric = inspect.contrast(1, against=2)

    def name(ids: Any) -> dict[str, Any]:
        return {"token_ids": ids.astype("int32"), "padding_mask": np.ones(ids.shape, "int32")}

    def run_heed() -> Any:
        effects = inspect.patching_effects(ours, name(clean), name(corrupted), metric)
        return np.stack(list(effects.effects.values()))

    def run_peer() -> Any:
        with torch.no_grad():
            _, cache = theirs.run_with_cache(
                torch.as_tensor(clean), names_filter=lambda hook: hook.endswith("hook_z")
            )
            tokens = torch.as_tensor(corrupted)
            found = patching.get_act_patch_attn_head_out_all_pos(theirs, tokens, cache, metric)
            return (found - metric(theirs(tokens))).numpy()

    apart = np.abs(run_heed() - run_peer()).max()
    note = f"effects differ by at most {apart:.1g}"
    title = f"{_LAYERS} x {_HEADS} heads, T={_LENGTH}"
    yield ratio(title, run_heed, run_peer, bar(1.0), rounds, quartile=2, note=note)


def _make_tokenizer() -> Any:
    """Return a tokenizer, which TransformerLens wants to have and nothing here reads."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="a", unk_token="a")


def _make_models() -> tuple[Any, Any]:
    """Return a model of Hugging Face and one of KerasHub with the same random weights."""
    import keras_hub
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": _LAYERS, "n_head": _HEADS, "n_embd": _WIDTH, "vocab_size": _WORDS}
    stock = GPT2LMHeadModel(GPT2Config(attn_implementation="eager", **sizes)).eval()
    with torch.no_grad():
        for weight in stock.parameters():  # biases too
            weight.add_(0.02 * torch.randn_like(weight))
    weights = {name: x.detach().numpy() for name, x in stock.transformer.named_parameters()}
    backbone = keras_hub.models.GPT2Backbone(
        _WORDS, _LAYERS, _HEADS, _WIDTH, 4 * _WIDTH, dropout=0.0, max_sequence_length=1024
    )
    backbone.token_embedding.embeddings.assign(weights["wte.weight"])
    backbone.position_embedding.position_embeddings.assign(weights["wpe.weight"])
    places = {"ln_f": backbone.layer_norm}
    for number, layer in enumerate(backbone.transformer_layers):
        attention, block = layer._self_attention_layer, f"h.{number}"
        for dense, *found in zip(
            (attention._query_dense, attention._key_dense, attention._value_dense),
            *(
                np.split(weights[f"{block}.attn.c_attn.{x}"], 3, axis=-1)
                for x in ("weight", "bias")
            ),
            strict=True,
        ):
            _assign(dense, *found)
        places |= {
            f"{block}.attn.c_proj": attention._output_dense,
            f"{block}.ln_1": layer._self_attention_layer_norm,
            f"{block}.ln_2": layer._feedforward_layer_norm,
            f"{block}.mlp.c_fc": layer._feedforward_intermediate_dense,
            f"{block}.mlp.c_proj": layer._feedforward_output_dense,
        }
    for name, layer in places.items():
        _assign(layer, weights[f"{name}.weight"], weights[f"{name}.bias"])
    return stock, keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)


def _assign(layer: Any, *weights: Any) -> None:
    layer.set_weights(
        [new.reshape(old.shape) for old, new in zip(layer.get_weights(), weights, strict=True)]
    )
