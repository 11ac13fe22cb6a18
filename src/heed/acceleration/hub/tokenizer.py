"""How a language model of KerasHub reads text, as plain data for other programs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from heed.acceleration.hub.cache_readers import PACKAGE

# The kinds of tokens, with the numbers of SentencePiece, which GGUF has too.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_BPE = 2  # a model type of SentencePiece


@dataclass(frozen=True)
class Tokenizer:
    """The tokens of a model and how text becomes tokens."""

    tokens: tuple[str, ...]  # the texts, in the order of their ids
    kinds: tuple[int, ...]  # of each token, such as `NORMAL`
    # of each token of SentencePiece, whose highest pair is joined first; None for byte pairs
    scores: tuple[float, ...] | None
    # of byte pairs, "left right", first ones first; None for SentencePiece
    merges: tuple[str, ...] | None
    space_first: bool  # whether a space is put before a text
    start: int | None  # the id of the token that begins a text, or None
    adds_start: bool  # whether the model's preprocessor puts it there
    ends: tuple[int, ...]  # the ids of the tokens that end a text
    padding: int | None  # an id


def describe_tokenizer(model: Any) -> Tokenizer | None:
    """Return the tokenizer of a model, None if it has none.

    Raises:
        ValueError: if it splits text in another way than SentencePiece's byte-pair models with bytes for unknown
            letters, or byte pairs behind Llama 3's rule for words.
    """
    preprocessor = model.preprocessor
    tokenizer = None if preprocessor is None else preprocessor.tokenizer
    if tokenizer is None:
        return None
    kind = type(tokenizer)
    if not kind.__module__.startswith(f"{PACKAGE}.src."):
        raise ValueError(f"{kind.__name__}, which is no class of KerasHub itself")
    if getattr(tokenizer, "proto", None) is not None:
        parts = _describe_sentencepiece(tokenizer)
    elif getattr(tokenizer, "merges", None) is not None:
        parts = _describe_byte_pairs(tokenizer)
    else:
        raise ValueError(f"{kind.__name__}, which is neither of SentencePiece nor of byte pairs")
    ends = (getattr(tokenizer, f"{name}_id", None) for name in ("end_token", "end_token2"))
    return Tokenizer(
        **parts,
        start=tokenizer.start_token_id,
        adds_start=bool(preprocessor.add_start_token) and tokenizer.start_token_id is not None,
        ends=tuple(x for x in ends if x is not None),
        padding=tokenizer.pad_token_id,
    )


def _describe_sentencepiece(tokenizer: Any) -> dict[str, Any]:
    # It needs protobuf, which TensorFlow brings, and so KerasHub.
    model = importlib.import_module("sentencepiece.sentencepiece_model_pb2").ModelProto()
    model.ParseFromString(tokenizer.proto)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    reasons = {
        "another model type than byte pairs": trainer.model_type != _BPE,
        "unknown letters that do not become bytes (byte_fallback=False)": not trainer.byte_fallback,
        "a normalisation of characters": bool(normalizer.precompiled_charsmap),
        "remove_extra_whitespaces=True": normalizer.remove_extra_whitespaces,
        "escape_whitespaces=False": not normalizer.escape_whitespaces,
        "treat_whitespace_as_suffix=True": trainer.treat_whitespace_as_suffix,
    }
    if found := [reason for reason, holds in reasons.items() if holds]:
        raise ValueError(f"a SentencePiece model with {', '.join(found)}")
    return {
        "tokens": tuple(piece.piece for piece in model.pieces),
        "kinds": tuple(piece.type for piece in model.pieces),
        "scores": tuple(piece.score for piece in model.pieces),
        "merges": None,
        "space_first": normalizer.add_dummy_prefix,
    }


def _describe_byte_pairs(tokenizer: Any) -> dict[str, Any]:
    if getattr(tokenizer, "split_pattern", None) is not None:
        raise ValueError(f"{type(tokenizer).__name__}, which has its own rule for words")
    if tokenizer.add_prefix_space:
        raise ValueError(f"{type(tokenizer).__name__} with add_prefix_space=True")
    names = {number: token for token, number in tokenizer.vocabulary.items()}
    special = {*tokenizer.special_tokens, *(tokenizer.unsplittable_tokens or ())}
    ids = range(max(names, default=-1) + 1)
    kinds = (UNUSED if i not in names else CONTROL if names[i] in special else NORMAL for i in ids)
    return {
        "tokens": tuple(names.get(i, f"[UNUSED{i}]") for i in ids),
        "kinds": tuple(kinds),
        "scores": None,
        "merges": tuple(x for x in map(str, tokenizer.merges) if "#version:" not in x),
        "space_first": False,
    }
