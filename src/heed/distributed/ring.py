"""Attention over a sequence split across workers."""

from __future__ import annotations

from typing import Annotated, Any

from heed.ops import arguments, checks
from heed.ops.backends import as_written, current
from heed.ops.dispatch import select_implementation, split_across_workers
from heed.ops.mask import Mask, as_mask


@as_written
def ring_attention(
    query: Annotated[Any, "B t N H"],
    key: Annotated[Any, "B s K H"],
    value: Annotated[Any, "B s K V"],
    *,
    mask: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    soft_cap: float | None = None,
    alibi_slopes: Annotated[Any, "N"] = None,
    dropout: float = 0.0,
    seed: Any = None,
    layout: str = "BTNH",
    return_lse: bool = False,
) -> Annotated[Any, "B t N V"]:
    """`dot_product_attention` over a sequence split across the workers of a `tf.distribute` strategy.

    Call it in the function that `strategy.run` runs, in a `tf.function`. Each of the R workers passes its part of the
    sequence, t = T / R queries and s = S / R keys, as `split_sequence` cuts it: an early stretch and a late one, so
    that all workers compute equally much under a causal mask. Keys and values travel from neighbour to neighbour; those
    that no query of a worker sees do not travel to it, as far as the mask tells while tracing.

    Args:
        query: (B, t, N, H), t even, of the same length on each worker; see `dot_product_attention`.
        key: (B, s, K, H), s even.
        value: (B, s, K, V).
        mask: a `Mask` over the whole sequence, or an array that broadcasts to (B, N, T, S); the same on each worker.
            To split a sequence whose length is not a multiple of 2 R, pad it, and hide the padding with `Mask.lengths`.
        is_causal, scale, soft_cap, alibi_slopes: as of `dot_product_attention`, over the whole sequence.
        dropout, seed: as of `dot_product_attention`, but which weights are dropped depends on the number of workers.
        layout: "BTNH" or "BNTH".
        return_lse: also return the log-sum-exp of each row of scores.

    Returns: (B, t, N, V), the output of this worker's queries; with `return_lse` a pair of that and (B, N, t).

    Raises:
        ValueError, TypeError: as `dot_product_attention`, or for lengths that are odd or not known while tracing.
        RuntimeError: outside of a `tf.function`, with several workers.

    Numerics: as `dot_product_attention`, but the parts of a row are merged by their log-sum-exp, which rounds once more
        for each worker. The order of all sums depends on R alone, so results repeat bit for bit. Differentiable once.

    Source: Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023.

    Outside of a strategy there is one worker:

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(1, 4, 2, 8)).astype("float32")
    >>> ring_attention(x, x, x, is_causal=True).shape
    TensorShape([1, 4, 2, 8])
    """
    spec, tensors = arguments.dot_product(
        query,
        key,
        value,
        mask=None,
        bias=None,
        is_causal=is_causal,
        scale=scale,
        soft_cap=soft_cap,
        alibi_slopes=alibi_slopes,
        dropout=dropout,
        seed=seed,
        layout=layout,
    )
    if mask is not None:
        spec = arguments.with_mask(spec, _check_mask(mask, spec))
    with split_across_workers():
        attend = select_implementation(spec).attend
    output, lse = attend(spec, tensors, return_lse=return_lse)
    return (output, lse) if return_lse else output


def _check_mask(mask: Any, spec: Any) -> Mask:
    """The mask, checked against the whole sequence."""
    _, workers = current().worker()
    mask = as_mask(mask)
    whole = [None if length is None else length * workers for length in spec.lengths]
    checks.check_rules(mask.rules, [spec.batch, spec.heads[0], *whole], "(B, N, T, S)")
    return mask
