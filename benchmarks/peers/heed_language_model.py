"""`heed.models.generate` with a `heed.models.LanguageModel`."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _generate, _language_model, _tensorflow
from heed import models

_tensorflow.set_threads()


def prepare(case: Case) -> Prepared:
    """Read prompts of S tokens and decode T tokens greedily."""
    model, prompts = _language_model.model(case), _language_model.prompts(case)
    read = prompts.shape[1]
    options: dict[str, Any] = {"max_length": read + case.length, "weights": case.weights}
    return Prepared(
        lambda: models.generate(model, prompt=prompts, **options),
        lambda tokens: [_generate.to_comparable(case, np.asarray(tokens, np.float32)[:, read:])],
    )
