"""`heed.ops.dot_product_attention` with one more option, which an environment variable names.

The time is divided by the share of visible pairs: with a mask that hides half of the pairs, the same figure means half
the time.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.cases import Case
from benchmarks.peers import OPTION, Prepared, _tensorflow
from heed import Mask, ops

WINDOW = 128


def options(case: Case, name: str) -> dict[str, Any]:
    """Return the arguments of the op for an option of `cases.OPTIONS`."""
    T, S, N = case.length, case.key_length, case.heads
    rng = np.random.default_rng(0)
    given: dict[str, Any] = {
        "causal": {"is_causal": True},
        "window": {"mask": Mask.window(WINDOW - 1, 0)},
        "padding": {"mask": Mask.lengths([S // 2] * case.batch)},
        "segments": {"mask": Mask.segments([np.arange(S) // (S // 4)] * case.batch)},
        "dense": {"mask": tf.constant(rng.random((1, 1, T, S)) < 0.9)},
        "bias": {"bias": tf.constant(rng.normal(size=(1, N, T, S)).astype("float32"))},
        "alibi": {"alibi_slopes": ops.alibi_slopes(N)},
        "soft-cap": {"soft_cap": 30.0},
        "dropout": {"dropout": 0.1, "seed": 1},
    }
    return given[name]


def visible(case: Case, name: str) -> float:
    """Return the share of pairs that a rule leaves; 1 if each pair must be computed."""
    T = case.length
    shares = {
        "causal": (T + 1) / (2 * T),
        "window": (WINDOW * T - WINDOW * (WINDOW - 1) / 2) / T**2,
        "padding": 0.5,
        "segments": 0.25,
    }
    return shares.get(name, 1.0)


def prepare(case: Case) -> Prepared:
    """As `heed_op`, with the option of the environment."""
    name = os.environ[OPTION]
    given = options(case, name)

    def attention(query, key, value):  # type: ignore[no-untyped-def]
        return ops.dot_product_attention(query, key, value, layout="BNTH", **given)

    prepared = _tensorflow.make_graph(attention, case, "BNTH")
    return dataclasses.replace(prepared, portion=prepared.portion / visible(case, name))
