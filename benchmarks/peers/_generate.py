"""What the sides that write texts share: the sizes of their models, and the texts that they start from."""

from __future__ import annotations

import numpy as np

from benchmarks.cases import Case

VOCABULARY, LAYERS = 8000, 3
# Below it are padding, start, end and unknown, whatever a side counts them as.
FIRST_WORD = 4


def sources(case: Case) -> np.ndarray:
    """Token ids (B, S), none of them padding."""
    rng = np.random.default_rng(0)
    shape = (case.batch, case.key_length)
    return rng.integers(FIRST_WORD, VOCABULARY, shape).astype("int32")
