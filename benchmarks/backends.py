"""PyTorch and JAX: `heed` against what these frameworks ship: `python -m benchmarks backends`."""

from __future__ import annotations

from typing import Any

from benchmarks.comparison import Comparison, Measurement, name_versions


def describe(about: dict[str, Any]) -> str:
    """Return the machine, the versions and the command as a sentence."""
    return (
        f"{about['day']}, {about['processor']}, {about['instruction_set']}, {about['threads']} threads; "
        f"{name_versions(about)}. Ratios are the peer's time / heed's. `{about['command']}`"
    )


SUITE = Comparison(
    "backends",
    "heed on PyTorch and JAX against their own attention",
    {
        "torch": Measurement("backend_torch", "measure", "torch"),
        "torch-call": Measurement("backend_torch", "measure_call", "torch"),
        "jax": Measurement("backend_jax", "measure", "jax"),
        "jax-memory": Measurement("backend_jax", "measure_memory", "jax"),
        "torch-gpt2": Measurement("backend_gpt2", "measure", "torch"),
        "jax-gpt2": Measurement("backend_gpt2", "measure", "jax"),
        "jax-generate": Measurement("backend_gpt2", "measure_generate", "jax"),
    },
    rounds=15,
    section=lambda about: f"backends-{about['instruction_set']}",
    describe=describe,
)
