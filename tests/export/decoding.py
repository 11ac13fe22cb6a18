"""Decodes with the programs of an exported model, as any runtime does."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heed.export.programs import Program


def score_steps(
    programs: Sequence[Program], runs: Mapping[str, Any], source: np.ndarray, read: np.ndarray
) -> np.ndarray:
    """Return the scores (B, T, V) after each token of `read` (B, T), step by step."""
    step = programs[-1]
    known = runs["encode"](source=source) if "encode" in runs else {}
    for name in step.growing:
        spec = step.inputs[name]
        known[name] = np.zeros([len(source), 0, *spec.shape[2:]], spec.dtype.as_numpy_dtype)
    found = []
    for i in range(read.shape[1]):
        given = {name: known[name] for name in step.inputs if name in known}
        after = runs["decode_step"](tokens=read[:, i : i + 1], index=i, **given)
        found.append(after.pop("logits"))
        assert all(after[name].shape[1] == i + 1 for name in step.growing)
        known |= after
    return np.stack(found, 1)
