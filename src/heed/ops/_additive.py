"""Additive (Bahdanau) attention and its weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from heed.ops import arguments
from heed.ops.backends import as_written
from heed.ops.dispatch import select_for_weights, select_implementation
from heed.ops.observe import show


@as_written
def additive_attention(
    query: Annotated[Any, "B T U"],
    key: Annotated[Any, "B S U"],
    value: Annotated[Any, "B S V"],
    score_vector: Annotated[Any, "U"],
    *,
    bias: Annotated[Any, "U"] = None,
    mask: Any = None,
    score_mod: Any = None,
    dropout: float = 0.0,
    seed: Any = None,
    return_lse: bool = False,
) -> Annotated[Any, "B T V"]:
    """Compute additive attention that never builds the (B, T, S, U) tensor.

    output_i = sum_j dropout(softmax_j(sum_u score_vector_u * tanh(query_iu + key_ju + bias_u))) value_j

    Args:
        query: (B, T, U), already projected; floating-point.
        key: (B, S, U), already projected.
        value: (B, S, V).
        score_vector: (U,).
        bias: (U,), added inside the tanh. Default: none.
        mask: a `Mask`, or booleans or integers that broadcast to (B, T, S); True means "attend". Default: all.
        score_mod, dropout, seed: see `dot_product_attention`; `head` is 0.
        return_lse: also return the log-sum-exp of each row of scores.

    Returns: (B, T, V) in Keras' common dtype of query, key and value; with `return_lse` a pair of that and (B, T)
        in float32 (float64 for float64).

    Raises:
        ValueError, TypeError: for shapes, dtypes or ranges that do not fit.

    Numerics: as `dot_product_attention`. Differentiable twice in query, key, value, score_vector and bias. The native
        kernels keep the scores (B, T, S) for the gradient if they take 64 MiB or less.

    Source: Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and Translate", 2015, section
        A.1.2 (v_a is score_vector, W_a s and U_a h are query and key).

    >>> import numpy as np
    >>> from heed import Mask
    >>> q, k, v = (np.ones(shape, "float32") for shape in ((2, 3, 4), (2, 5, 4), (2, 5, 6)))
    >>> additive_attention(q, k, v, np.ones(4, "float32"), mask=Mask.lengths([5, 2])).shape
    TensorShape([2, 3, 6])
    """
    call = arguments.additive(
        query,
        key,
        value,
        score_vector=score_vector,
        bias=bias,
        mask=mask,
        score_mod=score_mod,
        dropout=dropout,
        seed=seed,
    )
    output, lse = select_implementation(call[0]).attend(*call, return_lse=return_lse)
    output = show(output, *call)
    return (output, lse) if return_lse else output


@as_written
def additive_attention_weights(
    query: Annotated[Any, "B T U"],
    key: Annotated[Any, "B S U"],
    score_vector: Annotated[Any, "U"],
    *,
    bias: Annotated[Any, "U"] = None,
    mask: Any = None,
    score_mod: Any = None,
    dropout: float = 0.0,
    seed: Any = None,
    rows: Sequence[int] | None = None,
) -> Annotated[Any, "B T S"]:
    """Return the weights of the values in `additive_attention`.

    Args:
        query, key, score_vector, bias, mask, score_mod, dropout, seed: see `additive_attention`.
        rows: the queries to return, integers in [0, T). Default: all. Memory holds the (B, rows, S, U) tensor of them.

    Returns: (B, T or len(rows), S), float32 (float64 for float64).

    Raises:
        ValueError, TypeError: as `additive_attention`.

    >>> import numpy as np
    >>> q, k = np.ones((1, 1, 4), "float32"), np.ones((1, 2, 4), "float32")
    >>> additive_attention_weights(q, k, np.ones(4, "float32")).numpy().tolist()
    [[[0.5, 0.5]]]
    """
    call = arguments.additive(
        query,
        key,
        score_vector=score_vector,
        bias=bias,
        mask=mask,
        score_mod=score_mod,
        dropout=dropout,
        seed=seed,
    )
    return select_for_weights().weights(*call, heads=None, rows=rows, keys=None, lse=None)[:, 0]
