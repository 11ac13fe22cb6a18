"""Shared by the sides that train a Transformer: sizes and a batch of texts."""

from __future__ import annotations

import numpy as np

from benchmarks.cases import Case

VOCABULARY, LAYERS, DROPOUT, CLIP_NORM = 8000, 3, 0.1, 1.0
START = 1
FIRST_WORD = 4  # lower ids are padding, start, end and unknown, in each side's own order


def batch(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return source and target token ids, (B, S) and (B, T), none of them padding."""
    rng = np.random.default_rng(0)
    shapes = ((case.batch, case.key_length), (case.batch, case.length))
    source, target = (rng.integers(FIRST_WORD, VOCABULARY, shape) for shape in shapes)
    return source.astype("int32"), target.astype("int32")
