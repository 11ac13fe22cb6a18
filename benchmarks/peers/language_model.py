"""A language model of Llama's form with random weights: heed, and llama.cpp with the same weights in a GGUF file.

The same computations: "int8" is Q8_0 there, with a factor for each 32 weights of an output on both sides. One thing
differs: llama.cpp uses the instruction set that it was built for. To hold it to AVX2, build it so:

    CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON" \
        pip install --no-binary llama-cpp-python llama-cpp-python
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _tensorflow, texts, threads
from heed import models

VOCABULARY, LAYERS, FEED_FORWARD = 32000, 24, 2816  # 349M parameters at a width of 1,024
START = 1
# Lower ids are padding, start and end.
FIRST_WORD = 3
_PRECISIONS = {"float32": "float32", "int8": "q8_0"}

_tensorflow.set_threads()


def prompts(case: Case) -> np.ndarray:
    """Token ids (B, S - 1): after the start token, a prompt has S tokens."""
    shape = (case.batch, case.key_length - 1)
    return np.random.default_rng(0).integers(FIRST_WORD, VOCABULARY, shape).astype("int32")


def make_model(case: Case) -> models.LanguageModel:
    """Return a heed model of Llama's form with fixed random weights."""
    keras.utils.set_random_seed(0)
    config = models.LanguageModelConfig(
        VOCABULARY,
        width=case.heads * case.head_dim,
        num_heads=case.heads,
        num_key_value_heads=case.key_head_count,
        layers=LAYERS,
        feed_forward_width=FEED_FORWARD,
        activation="silu",
        gated=True,
        normalization="rms",
        use_bias=False,
        tie_embeddings=False,
    )
    made = models.LanguageModel(config)
    made.build()
    # No text may end early. llama.cpp has no bias here, so the logits of special tokens are made 0.
    output = made.decoder.output_layer.kernel
    output.assign(np.array(output) * (np.arange(VOCABULARY) >= FIRST_WORD))
    return made


def heed(case: Case) -> Prepared:
    """Read prompts of S tokens and decode T tokens greedily."""
    model, given = make_model(case), prompts(case)
    read = given.shape[1]
    options: dict[str, Any] = {"max_length": read + case.length, "weights": case.weights}
    return Prepared(
        lambda: models.generate(model, prompt=given, **options),
        lambda tokens: [texts.to_comparable(case, np.asarray(tokens)[:, read:])],
    )


def llama_cpp(case: Case) -> Prepared:
    """Read a prompt of S tokens and decode T tokens greedily, of a batch of one."""
    from heed.export import gguf
    from heed.export.runners._gguf import Context

    if case.batch != 1:
        raise ValueError(f"`batch` must be 1. Received: {case.batch}")
    length = case.key_length + case.length
    with tempfile.TemporaryDirectory(prefix="heed-benchmark-") as folder:
        file = Path(folder) / "model.gguf"
        gguf.write(make_model(case), file, precision=_PRECISIONS[case.weights], context=length)
        context = Context(file, length, threads() or os.cpu_count())
    prompt = [START, *prompts(case)[0].tolist()]

    def run() -> list[int]:
        context.restart()
        tokens: list[int] = []
        step = prompt
        for _ in range(case.length):
            step = [int(context.read(step).argmax())]
            tokens += step
        return tokens

    return Prepared(run, lambda tokens: [texts.to_comparable(case, [tokens])])
