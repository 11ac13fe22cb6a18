"""Scales rotary positions for texts longer than those of the training.

Letters: H features, c = 0..H/2-1 a pair of them, w_c = max_wavelength^(-2c / H) its frequency (radians per position),
s the factor, L the length in training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from heed.number_checks import check_real, integer

# The options of each kind with their defaults; ... means required.
_KINDS: dict[str, dict[str, Any]] = {
    "linear": {"factor": ...},
    "ntk": {"factor": ...},
    "dynamic": {"original_length": ..., "factor": 1.0},
    "llama3": {
        "factor": 8.0,
        "original_length": 8192,
        "low_frequency_factor": 1.0,
        "high_frequency_factor": 4.0,
    },
    "yarn": {
        "factor": ...,
        "original_length": ...,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "attention_factor": None,
    },
}


def check_scaling(scaling: Any) -> dict[str, Any] | None:
    """Return all options of a scaling, with its `kind`, or None.

    Args:
        scaling: None, or a dictionary with `kind` and options, see `rotary_embedding`.

    Raises:
        ValueError: for an unknown kind, an option that is unknown or missing, or a number out of range.
    """
    if scaling is None:
        return None
    kind = scaling.get("kind") if isinstance(scaling, Mapping) else None
    if kind not in _KINDS:
        raise ValueError(
            f"`scaling` must be a dictionary whose `kind` is one of {', '.join(_KINDS)}, with its options. "
            f"Received: scaling={scaling!r}"
        )
    options = {"kind": kind, **_KINDS[kind], **scaling}
    missing = [name for name, value in options.items() if value is ...]
    if missing or set(options) != {"kind", *_KINDS[kind]}:
        raise ValueError(
            f"`scaling` of kind {kind!r} takes the options {sorted(_KINDS[kind])}"
            f"{' and needs ' + ' and '.join(missing) if missing else ''}. Received: scaling={scaling!r}"
        )
    for name, value in options.items():
        if name != "kind" and not (name == "attention_factor" and value is None):
            number, whole = check_real(name, value, least=0, exclusive=True), integer(value)
            options[name] = number if whole is None else whole
    for low, high in (
        ("low_frequency_factor", "high_frequency_factor"),
        ("beta_slow", "beta_fast"),
    ):
        if high in options and not options[low] < options[high]:
            raise ValueError(
                f"`{low}` must be less than `{high}`. Received: {low}={options[low]!r}, {high}={options[high]!r}"
            )
    if options.get("factor", 1.0) < 1:
        raise ValueError(f"`factor` must be at least 1. Received: factor={options['factor']!r}")
    return options


def depends_on_length(scaling: Mapping[str, Any] | None) -> bool:
    """Return whether the frequencies depend on the length of the text."""
    return scaling is not None and scaling["kind"] == "dynamic"


def compute_frequencies(
    features: int,
    max_wavelength: float,
    scaling: Mapping[str, Any] | None,
    length: Any,
    dtype: str,
) -> tuple[Any, float]:
    """Compute the frequency of each pair of features, (H/2,), and the factor of the rotated features.

    Args:
        features: H.
        max_wavelength: as in training.
        scaling: checked.
        length: of the text, an int tensor (), for the kind "dynamic".
        dtype: of the frequencies.
    """
    if scaling is None:
        return ops.convert_to_tensor(_plain(features, max_wavelength), dtype), 1.0
    if scaling["kind"] == "dynamic":
        excess = ops.cast(length, "float64") / scaling["original_length"]
        # At least 1. Not `maximum`, which computes float64 in float32 on PyTorch.
        stretch = 1.0 + ops.relu(scaling["factor"] * (excess - 1.0))
        exponents = ops.arange(features // 2, dtype="float64") * (-2.0 / features)
        base = math.log(max_wavelength) + _ntk_exponent(features) * ops.log(stretch)
        return ops.cast(ops.exp(exponents * base), dtype), 1.0
    scaled = _SCALED[scaling["kind"]](features, max_wavelength, scaling)
    multiplier = 1.0
    if scaling["kind"] == "yarn":
        multiplier = scaling["attention_factor"] or 0.1 * math.log(scaling["factor"]) + 1.0
    return ops.convert_to_tensor(scaled, dtype), multiplier


def _plain(features: int, max_wavelength: float) -> np.ndarray:
    return max_wavelength ** (-2.0 / features * np.arange(features // 2))


def _ntk_exponent(features: int) -> float:
    """Return the exponent that slows the slowest pair s times, not the fastest; a single pair is both."""
    return features / (features - 2) if features > 2 else 1.0


def _linear(features: int, max_wavelength: float, scaling: Mapping[str, Any]) -> np.ndarray:
    return _plain(features, max_wavelength) / scaling["factor"]


def _ntk(features: int, max_wavelength: float, scaling: Mapping[str, Any]) -> np.ndarray:
    return _plain(features, max_wavelength * scaling["factor"] ** _ntk_exponent(features))


def _llama3(features: int, max_wavelength: float, scaling: Mapping[str, Any]) -> np.ndarray:
    plain = _plain(features, max_wavelength)
    low, high = scaling["low_frequency_factor"], scaling["high_frequency_factor"]
    rounds = scaling["original_length"] * plain / (2 * np.pi)  # within the length in training
    kept = np.clip((rounds - low) / (high - low), 0.0, 1.0)
    return plain * (kept + (1 - kept) / scaling["factor"])


def _yarn(features: int, max_wavelength: float, scaling: Mapping[str, Any]) -> np.ndarray:
    plain = _plain(features, max_wavelength)
    if max_wavelength <= 1:
        raise ValueError(
            f"`max_wavelength` must be more than 1 for yarn. Received: max_wavelength={max_wavelength}"
        )

    def find_pair(rounds: float) -> float:
        ratio = scaling["original_length"] / (rounds * 2 * math.pi)
        return features * math.log(ratio) / (2 * math.log(max_wavelength))

    first = max(math.floor(find_pair(scaling["beta_fast"])), 0)
    last = min(math.ceil(find_pair(scaling["beta_slow"])), features - 1)
    stretched = np.clip((np.arange(features // 2) - first) / max(last - first, 1e-3), 0.0, 1.0)
    return plain * ((1 - stretched) + stretched / scaling["factor"])


_SCALED = {"linear": _linear, "ntk": _ntk, "llama3": _llama3, "yarn": _yarn}
