"""`heed.models.generate` with a `heed.models.Transformer`."""

from __future__ import annotations

import numpy as np

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _generate, _tensorflow
from heed import models

_tensorflow.set_threads()


def prepare(case: Case) -> Prepared:
    """Greedily, or by a beam search without a penalty: all texts are of one length."""
    model, sources = _generate.model(case), _generate.sources(case)
    options = {"max_length": case.length}
    if case.beams > 1:
        options |= {"method": "beam", "beam_size": case.beams, "length_penalty": 0.0}
    return Prepared(
        lambda: models.generate(model, sources, **options),
        lambda tokens: [_generate.compared(case, np.asarray(tokens, np.float32))],
    )
