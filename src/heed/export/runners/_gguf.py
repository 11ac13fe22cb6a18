"""Runs a GGUF file that heed wrote, on token ids. It needs NumPy and llama-cpp-python, not heed.

`load(folder)["serve"](token_ids=ids)["logits"]` are the scores of the token after each; for a model of heed's,
`load(folder)["generate"](prompt=ids, max_length=50)["tokens"]` decodes greedily.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

_silent = llama_cpp.llama_log_callback(lambda *_: None)  # kept, as llama.cpp calls it
llama_cpp.llama_log_set(_silent, ctypes.c_void_p())


class Context:
    """A model that reads texts of at most `length` tokens; keys and values are kept in float32."""

    def __init__(self, file: str | Path, length: int, threads: int | None = None) -> None:
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(os.fsencode(file), options)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot read {file}")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self.model)
        )
        self._length, self._read, self._context = 0, 0, None
        self._threads = threads or os.cpu_count() or 1
        self.reserve(length)

    def reserve(self, length: int) -> None:
        """Make room for texts of this length."""
        if length <= self._length:
            return
        self.close(keep_model=True)
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = length
        options.n_threads = options.n_threads_batch = self._threads
        options.type_k = options.type_v = llama_cpp.GGML_TYPE_F32
        options.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context = llama_cpp.llama_init_from_model(self.model, options)
        if not self._context:
            raise RuntimeError("llama.cpp cannot run the model")
        self._length, self._read = length, 0

    def restart(self) -> None:
        """Forget the tokens that it has read."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        self._read = 0

    def read(self, tokens: Sequence[int], all_scores: bool = False) -> np.ndarray:
        """Read tokens after those before; return the scores after the last (V,), or after each (T, V)."""
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        try:
            batch.n_tokens = len(tokens)
            for i, token in enumerate(tokens):
                batch.token[i], batch.pos[i] = int(token), self._read + i
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
                batch.logits[i] = all_scores or i == len(tokens) - 1
            if llama_cpp.llama_decode(self._context, batch):
                raise RuntimeError("llama.cpp could not read the tokens")
        finally:
            llama_cpp.llama_batch_free(batch)
        self._read += len(tokens)
        places = range(len(tokens)) if all_scores else [len(tokens) - 1]
        found = [self._scores(i) for i in places]
        return np.stack(found) if all_scores else found[0]

    def _scores(self, place: int) -> np.ndarray:
        pointer = llama_cpp.llama_get_logits_ith(self._context, place)
        return np.array(np.ctypeslib.as_array(pointer, (self.vocabulary,)))

    def close(self, keep_model: bool = False) -> None:
        """Give the memory back."""
        if self._context is not None:
            llama_cpp.llama_free(self._context)
            self._context = None
        if not keep_model and self.model is not None:
            llama_cpp.llama_model_free(self.model)
            self.model = None


def load(
    folder: str | Path, threads: int | None = None
) -> dict[str, Callable[..., dict[str, Any]]]:
    """Load the model's programs: "serve"; and "generate" and "probabilities" for a model of heed's.

    "serve" takes `token_ids` (B, T) and returns {"logits": (B, T, V) float32}. "generate" takes `prompt` (B, P), int32
    with padding at the end of each row, and `max_length`, the most tokens of a result including the end and the prompt.
    It returns {"tokens": (B, max_length) int32}, padded after the end. `threads` are one a processor by default.
    """
    folder = Path(folder)
    special = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["decoding"]
    context = Context(folder / "model.gguf", 64, threads)

    def scores(tokens: Any) -> np.ndarray:
        context.reserve(len(tokens))
        context.restart()
        return context.read(tokens, all_scores=True)

    def serve(token_ids: Any) -> dict[str, Any]:
        return {"logits": np.stack([scores(row) for row in np.asarray(token_ids).tolist()])}

    def generate(prompt: Any, max_length: int) -> dict[str, Any]:
        context.reserve(max_length + 1)
        rows = np.asarray(prompt)
        found = np.full((len(rows), max_length), special["pad"], np.int32)
        for place, row in zip(found, rows.tolist(), strict=True):
            known = [i for i in row if i != special["pad"]][:max_length]
            place[: len(known)] = known
            context.restart()
            step = [special["start"], *known]
            for i in range(len(known), max_length):
                logits = context.read(step)
                logits[[special["pad"], special["start"]]] = -np.inf
                place[i] = logits.argmax()
                if place[i] == special["end"]:
                    break
                step = [int(place[i])]
        return {"tokens": found}

    def probabilities(source: Any, target: Any) -> dict[str, Any]:
        """Return the probability of each token of `target` (B, T) up to the end, given those before; 0 after it."""
        target = np.asarray(target)
        found = np.zeros(target.shape, np.float32)
        for place, row in zip(found, target, strict=True):
            count = int((row != special["pad"]).sum())
            logits = scores([special["start"], *row[: count - 1].tolist()]).astype(np.float64)
            logits -= logits.max(axis=-1, keepdims=True)
            all_ones = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
            place[:count] = all_ones[np.arange(count), row[:count]]
        return {"probabilities": found}

    if special is None:
        return {"serve": serve}
    return {"serve": serve, "generate": generate, "probabilities": probabilities}
