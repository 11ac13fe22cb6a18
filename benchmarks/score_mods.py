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
        "tensorflow": Measurement("score_mod_calls", "measure_dense", "tensorflow"),
        "jax": Measurement("score_mod_calls", "measure_dense", "jax"),
        "torch": Measurement("score_mod_calls", "measure_torch", "torch"),
        "window": Measurement("score_mod_calls", "measure_window", "torch"),
        "jax-memory": Measurement("score_mod_calls", "measure_memory", "jax"),
        "profile": Measurement("score_mod_calls", "measure_profile", "torch"),
    },
    rounds=9,
    section=lambda about: "score_mods-avx2" if about["instruction_set"] == "avx2" else "score_mods",
    describe=describe,
)
