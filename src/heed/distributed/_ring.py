"""Attention over a sequence split across workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from heed.ops import arguments, checks
from heed.ops.attention import DEFAULT_OPTIONS, dot_product_attention
from heed.ops.backends import as_written, current
from heed.ops.dispatch import select_implementation, split_across_workers
from heed.ops.mask import Mask, as_mask
from heed.ops.options import AttentionOptions, RingOptions, takes_options_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


@as_written
@takes_options_of(dot_product_attention, RingOptions)
def ring_attention(
    query: Annotated[Any, "B t N H"],
    key: Annotated[Any, "B s K H"],
    value: Annotated[Any, "B s K V"],
    *,
    return_lse: bool = False,
    **options: Unpack[RingOptions],
) -> Annotated[Any, "B t N V"]:
    """Compute `dot_product_attention` over a sequence split across the workers of a `tf.distribute` strategy.

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
        {options}: as of `dot_product_attention`, over the whole sequence. Which weights are dropped depends on the
            number of workers.
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
    local: AttentionOptions = {**DEFAULT_OPTIONS, **options, "mask": None}
    spec, tensors = arguments.dot_product(local, query, key, value)
    mask = options.get("mask")
    if mask is not None:
        spec = arguments.with_mask(spec, _check_mask(mask, spec))
    with split_across_workers():
        attend = select_implementation(spec).attend
    output, lse = attend(spec, tensors, return_lse=return_lse)
    return (output, lse) if return_lse else output


def _check_mask(mask: Any, spec: Any) -> Mask:
    """Return the mask, checked against the whole sequence."""
    _, workers = current().worker()
    mask = as_mask(mask)
    whole = [None if length is None else length * workers for length in spec.lengths]
    checks.check_rules(mask.rules, [spec.batch, spec.heads[0], *whole], "(B, N, T, S)")
    return mask
