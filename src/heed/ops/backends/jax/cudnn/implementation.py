"""Attention by cuDNN, on NVIDIA GPUs."""

from __future__ import annotations

import functools

import jax

from heed.ops.backends.jax.cudnn import _attention
from heed.ops.backends.jax.portable.implementation import Portable
from heed.ops.backends.protocol import OutputAndLse
from heed.ops.spec import AttentionSpec, Tensors

# The first GPUs that cuDNN's attention runs on, and those on which it takes wider heads.
_OLDEST, _HOPPER = (8, 0), (9, 0)


@functools.cache
def compute_capability() -> tuple[int, ...] | None:
    """Return that of the GPU on which JAX computes; None if it computes elsewhere."""
    try:
        device = jax.local_devices(backend="cuda")[0]
    except RuntimeError:
        return None
    if jax.default_backend() != "gpu":
        return None
    return tuple(int(x) for x in device.compute_capability.split("."))


def widest_heads() -> int:
    """Return the widest heads that cuDNN's attention takes here; 0 where it does not run."""
    capability = compute_capability() or (0, 0)
    return 0 if capability < _OLDEST else 256 if capability >= _HOPPER else 128


class Cudnn(Portable):
    """Attention by cuDNN; weights, statistics and calls for the log-sum-exp are those of the portable form."""

    def unsupported_reasons(self, spec: AttentionSpec | None) -> list[str]:
        if compute_capability() is None:
            return ["JAX computes on no NVIDIA GPU, for which cuDNN is"]
        if not widest_heads():
            return ["cuDNN's attention needs an Ampere GPU or a later one"]
        return [] if spec is None else _reasons_against(spec, widest_heads())

    def attend_numbers(
        self, spec: AttentionSpec, tensors: Tensors, return_lse: bool
    ) -> OutputAndLse:
        # JAX rounds the log-sum-exp to half precision.
        if return_lse:
            return super().attend_numbers(spec, tensors, return_lse)
        return _attention.run(spec, tensors), None


def _reasons_against(spec: AttentionSpec, widest: int) -> list[str]:
    """Return why cuDNN does not give heed's result, as sentences."""
    product = spec.score.product
    if product is None:
        return ["cuDNN's attention has dot products only, without functions"]
    width, value_width = spec.widths
    found = {
        "computes in float16 and bfloat16": spec.operand_dtype not in ("float16", "bfloat16"),
        f"takes widths that are multiples of 8 up to {widest}": width % 8 > 0 or width > widest,
        "needs values as wide as keys": width != value_width,
        "needs a scale above 0": product.scale <= 0,
        "has no scores but scaled products through JAX": not product.is_plain,
        "drops other weights than heed": bool(spec.dropout),
        "hides no keys by a bias of -1e30": spec.has_bias,
        "has no ALiBi": spec.has_slopes,
        "needs at least one query and key": 0 in (spec.batch, *spec.lengths, *spec.widths),
        "has no masks but lengths, causal ones from the first key on, and windows before each query": not (
            _is_taken(spec)
        ),
    }
    return [f"cuDNN's attention {reason}" for reason, holds in found.items() if holds]


def _is_taken(spec: AttentionSpec) -> bool:
    if spec.mask is None:
        return True
    length, keys = spec.lengths
    band = spec.mask.as_band(length, keys)
    if band is None:
        return False
    if not band.has_window:
        return True
    has_lengths = band.key_lengths is not None or band.query_lengths is not None
    # A row far behind the end of the keys would see none of them.
    windowed = band.left is None or (length == keys and not has_lengths)
    return band.right == 0 and band.align == 0 and windowed
