"""Runs a CTranslate2 model folder that heed wrote, on token ids. It needs NumPy and ctranslate2, not heed.

`load(folder)["translate"](source=ids, max_length=50)["tokens"]` decodes greedily, as does
`load(folder)["generate"](prompt=ids, max_length=50)["tokens"]` for a language model.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np


def load(
    folder: str | Path, threads: int | None = None
) -> dict[str, Callable[..., dict[str, Any]]]:
    """Load the model's programs: "translate" and "probabilities", or "generate" for a language model.

    "translate" and "generate" take `source` (B, S) or `prompt` (B, P), int32 with padding at the end of each row, and
    `max_length`, the most tokens of a result including the end and the prompt. They return {"tokens": (B, max_length)
    int32}, padded after the end. `threads` is the number of threads; None lets CTranslate2 choose.
    """
    folder = Path(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    names = {"device": "auto", "intra_threads": threads or 0}
    start, end, pad = config["bos_token"], config["eos_token"], config["pad_token"]
    # Padding and the start are never decoded.
    options = {
        "beam_size": 1,
        "sampling_topk": 1,
        "suppress_sequences": [[pad], [start]],
        "return_end_token": True,
    }

    def to_tokens(ids: Any, tokens: list[str]) -> list[list[str]]:
        """Return the tokens of each row of ids."""
        ids = np.asarray(ids)
        lengths = (ids != config["pad_id"]).sum(axis=1)
        if (
            ids.ndim != 2
            or (ids[np.arange(ids.shape[1]) < lengths[:, None]] == config["pad_id"]).any()
        ):
            raise ValueError("ids must be (B, S), with padding behind each row and not within it")
        return [[tokens[i] for i in row[:length]] for row, length in zip(ids, lengths, strict=True)]

    def to_ids(rows: list[list[str]], length: int) -> dict[str, Any]:
        """Return the ids of rows of tokens, padded to a length."""
        found = np.full((len(rows), length), config["pad_id"], np.int32)
        for place, row in zip(found, rows, strict=True):
            ids = [ids_by_token[token] for token in row[:length]]
            place[: len(ids)] = ids
        return {"tokens": found}

    def read_vocabulary(side: str) -> list[str]:
        path = folder / f"{side}vocabulary.json"
        path = path if path.exists() else folder / "shared_vocabulary.json"
        return list(json.loads(path.read_text(encoding="utf-8")))

    if (folder / "vocabulary.json").exists():
        target = read_vocabulary("")
        generator = ctranslate2.Generator(str(folder), **names)

        def generate(prompt: Any, max_length: int) -> dict[str, Any]:
            rows = [[start, *row] for row in to_tokens(prompt, target)]
            results = generator.generate_batch(
                rows, max_length=max_length + 1, min_length=0, **options
            )
            return to_ids([one.sequences[0] for one in results], max_length)

        programs: dict[str, Callable[..., dict[str, Any]]] = {"generate": generate}
    else:
        source_tokens, target_tokens = read_vocabulary("source_"), read_vocabulary("target_")
        target = target_tokens
        translator = ctranslate2.Translator(str(folder), **names)

        def translate(source: Any, max_length: int) -> dict[str, Any]:
            rows, longest = to_tokens(source, source_tokens), config["longest_source"]
            if not all(rows) or (longest and max(map(len, rows), default=0) > longest):
                most = f"at most {longest} tokens" if longest else "tokens"
                raise ValueError(f"a source must not be empty, and have {most}")
            results = translator.translate_batch(
                rows,
                max_input_length=0,
                max_decoding_length=max_length,
                min_decoding_length=0,
                **options,
            )
            return to_ids([one.hypotheses[0] for one in results], max_length)

        def probabilities(source: Any, target: Any) -> dict[str, Any]:
            """Return the probability of each token of `target` (B, T) up to the end, given those before; 0 after it."""
            target = np.asarray(target)
            rows = [[x for x in row if x != end] for row in to_tokens(target, target_tokens)]
            # CTranslate2 adds an end and scores it; a target that was cut has none.
            scored = translator.score_batch(
                to_tokens(source, source_tokens), rows, max_input_length=0
            )
            found = np.zeros(target.shape, np.float32)
            for place, one, ids in zip(found, scored, target, strict=True):
                count = int((ids != config["pad_id"]).sum())
                place[:count] = np.exp(one.log_probs[:count])
            return {"probabilities": found}

        programs = {"translate": translate, "probabilities": probabilities}
    ids_by_token = {token: i for i, token in enumerate(target)}
    return programs
