"""`heed.models.generate` with a `heed.models.Transformer`."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _generate, _tensorflow
from heed import models

_tensorflow.set_threads()


def prepare(case: Case) -> Prepared:
    """Decode greedily, or by beam search without a length penalty, as all texts have the same length."""
    model, sources = _generate.model(case), _generate.sources(case)
    options: dict[str, Any] = {"max_length": case.length, "weights": case.weights}
    if case.beams > 1:
        options |= {"method": "beam", "beam_size": case.beams, "length_penalty": 0.0}
    return Prepared(
        lambda: models.generate(model, sources, **options),
        lambda tokens: [_generate.to_comparable(case, np.asarray(tokens, np.float32))],
    )
