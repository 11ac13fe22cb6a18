"""CTranslate2 with the weights of heed's model, exported by `heed.export`."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import ctranslate2
import numpy as np

from benchmarks.cases import Case
from benchmarks.peers import TOGETHER, Prepared, _generate, _tensorflow, threads
from heed.export.ctranslate2 import write

_tensorflow.set_threads()


def prepare(case: Case) -> Prepared:
    """Each thread decodes a part of the texts, or all threads work together on all texts.

    CTranslate2 takes tokens as texts, which are made before the clock starts.
    """
    count = threads() or os.cpu_count() or 1
    together = os.environ.get(TOGETHER) == "1" or case.batch == 1
    with tempfile.TemporaryDirectory(prefix="heed-benchmark-") as folder:
        longest = max(case.length, case.key_length)
        write(_generate.model(case), folder, quantization=case.weights, longest=longest)
        translator = ctranslate2.Translator(
            folder,
            inter_threads=1 if together else count,
            intra_threads=count if together else 1,
            compute_type=case.weights,
        )
    texts = [list(map(str, text)) for text in _generate.sources(case).tolist()]
    options: dict[str, Any] = {
        "beam_size": case.beams,
        "length_penalty": 0,
        "max_decoding_length": case.length,
        "max_batch_size": case.batch if together else -(-case.batch // count),
    }

    def arrays(results: Any) -> list[np.ndarray]:
        tokens = [result.hypotheses[0] for result in results]
        return [_generate.to_comparable(case, np.array(tokens, np.float32))]

    return Prepared(lambda: translator.translate_batch(texts, **options), arrays)
