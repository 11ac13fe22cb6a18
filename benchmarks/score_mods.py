"""Functions of the score: `heed` against FlexAttention, dense attention and itself: `python -m benchmarks score_mods`.

HEED_BENCHMARK_SMALLER=64 divides the lengths, and leaves out the bars: a trial of the script.
"""

from __future__ import annotations

from benchmarks.backends import describe
from benchmarks.comparison import Comparison, Measurement

SUITE = Comparison(
    "score_mods",
    "functions of the score against FlexAttention, dense attention and heed without them",
    {
        "torch": Measurement("score_mod_calls", "measure_torch", "torch"),
        "jax": Measurement("score_mod_calls", "measure_dense", "jax"),
        "jax-memory": Measurement("score_mod_calls", "measure_memory", "jax"),
        "tensorflow": Measurement("score_mod_calls", "measure_dense", "tensorflow"),
        "window": Measurement("score_mod_calls", "measure_window", "torch"),
    },
    rounds=9,
    section=lambda _: "score_mods",
    describe=describe,
)
