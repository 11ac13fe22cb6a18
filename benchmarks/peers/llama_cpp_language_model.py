"""llama.cpp with the weights of heed's language model, in a GGUF file.

The same computations: "int8" is Q8_0 there, with a factor for each 32 weights of an output on both sides. One thing
differs: llama.cpp uses the instruction set that it was built for. To hold it to AVX2, build it so:

    CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON" \
        pip install --no-binary llama-cpp-python llama-cpp-python
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _generate, _language_model, _tensorflow, threads
from heed.export import gguf
from heed.export.runners._gguf import Context

_tensorflow.set_threads()
_PRECISIONS = {"float32": "float32", "int8": "q8_0"}


def prepare(case: Case) -> Prepared:
    """Read a prompt of S tokens and decode T tokens greedily, of a batch of one."""
    if case.batch != 1:
        raise ValueError(f"`batch` must be 1. Received: {case.batch}")
    length = case.key_length + case.length
    with tempfile.TemporaryDirectory(prefix="heed-benchmark-") as folder:
        file = Path(folder) / "model.gguf"
        precision = _PRECISIONS[case.weights]
        gguf.write(_language_model.model(case), file, precision=precision, context=length)
        context = Context(file, length, threads() or os.cpu_count())
    prompt = [_language_model.START, *_language_model.prompts(case)[0].tolist()]

    def run() -> list[int]:
        context.restart()
        tokens: list[int] = []
        step = prompt
        for _ in range(case.length):
            step = [int(context.read(step).argmax())]
            tokens += step
        return tokens

    return Prepared(
        run, lambda tokens: [_generate.to_comparable(case, np.array([tokens], np.float32))]
    )
