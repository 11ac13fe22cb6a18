"""Statistics of attention weights, row by row, in linear memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from heed.ops import arguments
from heed.ops.attention import DEFAULT_OPTIONS, dot_product_attention
from heed.ops.backends import as_written
from heed.ops.dispatch import select_for_weights
from heed.ops.options import StatisticsOptions, takes_options_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AttentionStatistics(NamedTuple):
    """Statistics of each row of weights, all float32 (float64 for float64).

    Attributes:
        entropy: (B, N, T), -sum_j w_ij ln w_ij in nats: 0 for a row on one key, ln(n) for a row spread evenly over n.
        distance: (B, N, T), sum_j w_ij |i + a - j| in positions, with the alignment a of the mask (0 without one).
        mass: (B, N, T, number of chosen keys), w_ij of the chosen keys.

    >>> import numpy as np
    >>> x = np.zeros((1, 2, 1, 8), "float32")
    >>> entropy, distance, mass = attention_statistics(x, x, keys=[0])
    >>> distance.numpy().tolist(), mass.numpy().tolist()
    ([[[0.5, 0.5]]], [[[[0.5], [0.5]]]])
    """

    entropy: Annotated[Any, "B N T"]
    distance: Annotated[Any, "B N T"]
    mass: Annotated[Any, "B N T *"]


@as_written
@takes_options_of(dot_product_attention, StatisticsOptions)
def attention_statistics(
    query: Annotated[Any, "B T N H"],
    key: Annotated[Any, "B S K H"],
    *,
    keys: Sequence[int] = (),
    **options: Unpack[StatisticsOptions],
) -> AttentionStatistics:
    """Compute entropy, mean distance and mass on chosen keys of every row of attention weights, in linear memory.

    With w = softmax_j(cap(scale * q_i . k_j) + bias_ij, over the j that mask allows), see `AttentionStatistics`.
    They describe the weights before dropout. Keys that the mask rules out for a whole block of queries are skipped,
    and memory holds one block of scores at a time.

    Args:
        query, key, {options}: see `dot_product_attention`.
        keys: the keys whose mass to report, integers in [0, S); for example (0,) for an attention sink.

    Returns: an `AttentionStatistics`. A row that may attend to nothing has 0 in all of them, a row that holds or sees
        NaN or Inf has NaN. No gradient flows through them; a loss may use `attention_weights`.

    Raises:
        ValueError, TypeError: as `dot_product_attention`.

    Source: entropy and distance as in Vig and Belinkov, "Analyzing the Structure of Attention in a Transformer
        Language Model", 2019; mass on the first key: Xiao et al., "Efficient Streaming Language Models with
        Attention Sinks", 2024.

    >>> import numpy as np
    >>> x = np.zeros((1, 4, 1, 8), "float32")  # equal scores: each row spreads evenly over the keys it sees
    >>> rows = attention_statistics(x, x, is_causal=True, keys=[0])
    >>> np.exp(rows.entropy[0, 0]).round(3).tolist(), rows.distance[0, 0].numpy().round(3).tolist()
    ([1.0, 2.0, 3.0, 4.0], [0.0, 0.5, 1.0, 1.5])
    >>> rows.mass[0, 0, :, 0].numpy().round(3).tolist()
    [1.0, 0.5, 0.3330000042915344, 0.25]
    """
    call = arguments.dot_product({**DEFAULT_OPTIONS, **options}, query, key)
    return AttentionStatistics(*select_for_weights().statistics(*call, keys=keys))
