"""A Llama of KerasHub with 349M parameters, one text at a time: `python -m benchmarks language_models`.

`heed.accelerate` against stock KerasHub and against llama.cpp, which reads the same weights from a GGUF file.
HEED_BENCHMARK_SMALLER=1 takes a tiny model and leaves out the bars: a trial of the script.
"""

from __future__ import annotations

from benchmarks.backends import describe
from benchmarks.comparison import Comparison, Measurement

_MODULE = "language_model_rows"
SUITE = Comparison(
    "language_models",
    "KerasHub's Llama, accelerated, against stock KerasHub and llama.cpp",
    {
        "float32": Measurement(_MODULE, "measure_float32", "tensorflow"),
        "int8": Measurement(_MODULE, "measure_int8", "tensorflow"),
        "int4": Measurement(_MODULE, "measure_int4", "tensorflow"),
        "outliers": Measurement(_MODULE, "measure_outliers", "tensorflow"),
        "several": Measurement(_MODULE, "measure_several", "tensorflow"),
        "tensorflow": Measurement(_MODULE, "measure_generate", "tensorflow"),
        "jax": Measurement(_MODULE, "measure_generate", "jax"),
        "torch": Measurement(_MODULE, "measure_generate", "torch"),
    },
    rounds=3,
    section=lambda about: f"language_models-{about['instruction_set']}",
    describe=describe,
)
