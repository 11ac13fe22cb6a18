"""Masks and head reshaping around the attention op.

heed's own layers and accelerated Keras layers share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from keras import ops

from heed.layers import masks
from heed.layers.axes import AttentionAxes
from heed.layers.shapes import Shape
from heed.number_checks import integer
from heed.ops import (
    Mask,
    additive_attention,
    additive_attention_weights,
    attention_weights,
    dot_product_attention,
)
from heed.ops.arguments import with_heads
from heed.ops.recomputation import next_seed

_SCORES = "return_attention_scores"


def dropout_options(rate: float, training: bool | None, owner: Any) -> dict[str, Any]:
    """Return the ops' options for dropout; empty if nothing is dropped. `owner` has the `seed_generator`."""
    # The rate first: JAX traces `training` in a function that it computes again.
    if rate <= 0 or not training:
        return {}
    return {"dropout": rate, "seed": next_seed(owner.seed_generator)}


def pack_outputs(output: Any, *others: Any) -> Any:
    """Return the output alone, or a tuple of it and the others that are not None."""
    others = tuple(x for x in others if x is not None)
    return (output, *others) if others else output


@dataclass(frozen=True)
class ScoresRequest:
    """The scores that a caller asks for: heads and rows by their numbers (None: all), with dropout or without."""

    heads: tuple[int, ...] | None = None
    rows: tuple[int, ...] | None = None
    dropped: bool = True

    @classmethod
    def parse(cls, value: Any) -> ScoresRequest | None:
        """Return the request in `return_attention_scores`; None if no scores are asked for.

        It is a boolean, a sequence of heads, a dictionary with sequences of `heads` or `rows` or both, or a
        `ScoresRequest`.
        """
        if value is None or isinstance(value, bool):
            return cls() if value else None
        if isinstance(value, cls):
            return value
        parts = value if isinstance(value, Mapping) else {"heads": value}
        chosen = {name: _numbers(part) for name, part in parts.items()}
        if not chosen or set(chosen) - {"heads", "rows"} or None in chosen.values():
            raise ValueError(
                f"`{_SCORES}` must be a boolean, a sequence of heads, or a dictionary with the numbers of `heads`, "
                f"`rows` or both. Received: {_SCORES}={value!r}"
            )
        return cls(chosen.get("heads"), chosen.get("rows"))

    def shape(self, whole: Shape, axes: AttentionAxes) -> Shape:
        """Return the shape of the requested scores, of scores of shape `whole`; each head and row must be there."""
        shape = list(whole)
        heads_axis = len(whole) - 2 * len(axes.axes) - 1
        for what, chosen, axis in (("heads", self.heads, heads_axis), ("rows", self.rows, -2)):
            if chosen is None:
                continue
            size = whole[axis]
            if size is not None and not all(0 <= number < size for number in chosen):
                raise ValueError(
                    f"`{_SCORES}` must name {what} from 0 to {size - 1}. Received: {what}={list(chosen)}"
                )
            shape[axis] = len(chosen)
        if self.rows is not None and not axes.trivial:
            raise ValueError(
                f"`{_SCORES}` can choose rows for inputs of the shape (B, T, D) only. "
                f"Received: rows={list(self.rows)}, for inputs of rank {axes.rank}"
            )
        return tuple(shape)


def _numbers(value: Any) -> tuple[int, ...] | None:
    """Return the value as a tuple of ints, or None if it is no sequence of one or more."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return None
    numbers = [number for x in value if (number := integer(x)) is not None]
    return tuple(numbers) if len(numbers) == len(value) else None


def share_batch(*tensors: Any) -> tuple[Any, ...]:
    """Repeat the tensors that have a batch of 1 for the batch of the others, as broadcasting does."""
    others = [x for x in tensors if x.shape[0] != 1]
    if len(others) in (0, len(tensors)):
        return tensors
    size = ops.shape(others[0])[0]
    return tuple(
        ops.broadcast_to(x, (size, *ops.shape(x)[1:])) if x.shape[0] == 1 else x for x in tensors
    )


class MaskedInputs(NamedTuple):
    """The inputs of a multi-head layer with 0 in masked positions, and the masks of queries and keys (or None)."""

    query: Any
    value: Any
    key: Any
    query_mask: Any
    key_mask: Any


def masked_inputs(
    axes: AttentionAxes, inputs: Sequence[Any], given_masks: Sequence[Any]
) -> MaskedInputs:
    """Join the masks of query, value and key, given and carried, and hide the features of masked positions."""
    query, value, key = inputs
    query_mask, value_mask, key_mask = given_masks
    query_mask = masks.position_mask(query_mask, query, "query_mask")
    rows = axes.align_positions(query_mask, query, "query_mask")
    columns = masks.key_positions(axes, value, (value_mask, value), (key_mask, key))
    masked = masks.hide(query, rows)
    source = masked if value is query and columns is rows else masks.hide(value, columns)
    hidden_key = source if key is None else masks.hide(key, columns)
    return MaskedInputs(masked, source, hidden_key, query_mask, columns)


def scores_mask(
    axes: AttentionAxes,
    query: Any,
    key: Any,
    query_mask: Any,
    key_mask: Any,
    attention_mask: Any,
    structure: Mask | None,
) -> Mask | None:
    """Return everything that hides scores, as one mask over (B', N, T, S).

    Query and key are projected to heads; the masks of their positions may be None, as may the causal mask and the
    window of `masks.structure`.
    """
    rows = axes.align_positions(query_mask, query, "query_mask")
    return masks.join(
        structure,
        masks.padding(axes.flatten_positions(rows, query), axes.flatten_positions(key_mask, key)),
        masks.over_scores(attention_mask, axes, query, key, query.shape[-2]),
    )


def many_heads(
    axes: AttentionAxes,
    query: Any,
    key: Any,
    value: Any,
    request: ScoresRequest | None,
    *,
    dropout: dict[str, Any],
    scores_drop: bool = True,
    sinks: Any = None,
    **options: Any,
) -> tuple[Any, Any]:
    """Return attention of projected tensors (B, d1, ..., dk, N, H) over the axes, and the requested scores or None.

    The heads are (B, d1, ..., dk, N, V), the scores (B, N, T, S), in the op's dtype.

    Args:
        axes, query, key, value, request: the axes attended over, the heads, and the requested scores or None.
        dropout: from `dropout_options`; `scores_drop` says whether it is in the scores.
        sinks: (N,), a score for each head that takes part in its softmax and has no value; or None.
        **options: of the op, over the flattened axes.
    """
    flat_query, flat_key, flat_value = (axes.flatten(x) for x in (query, key, value))
    share = None
    if sinks is None:
        output = dot_product_attention(flat_query, flat_key, flat_value, **dropout, **options)
    else:
        output, lse = dot_product_attention(
            flat_query, flat_key, flat_value, return_lse=True, **dropout, **options
        )
        # A row with the sum e^lse keeps the share e^lse / (e^lse + e^s) when the score s joins it.
        sinks = ops.cast(sinks, lse.dtype)
        share = ops.sigmoid(lse - ops.reshape(sinks, (1, -1, 1)))
        factor = ops.expand_dims(ops.transpose(share, (0, 2, 1)), -1)
        output = ops.cast(ops.cast(output, lse.dtype) * factor, output.dtype)
    output = axes.unflatten(output, query)
    if request is None:
        return output, None
    chosen: dict[str, Any] = {"heads": request.heads, "rows": request.rows}
    dropped = dropout if scores_drop and request.dropped else {}
    scores = attention_weights(flat_query, flat_key, **chosen, **dropped, **options)
    if share is not None:
        for axis, numbers in enumerate(chosen.values(), 1):
            share = share if numbers is None else ops.take(share, numbers, axis=axis)
        scores = scores * ops.expand_dims(share, -1)
    return output, axes.unflatten_scores(scores, query, key)


def one_head(
    query: Any,
    key: Any,
    value: Any,
    with_scores: bool,
    *,
    mask: Mask | None,
    scores_mask: Mask | None,
    score_vector: Any = None,
    **options: Any,
) -> tuple[Any, Any]:
    """Return attention with one head, (B, T, V), and its weights (B, T, S), in the op's dtype, or None.

    It is additive if there is a score vector (D,), else by dot products.

    Args:
        query, key, value: (B, T, D), (B, S, D), (B, S, V).
        mask, scores_mask: over (B, T, S), for the output and for the weights.
        score_vector, **options: of the op.
    """
    scores = None
    if score_vector is not None:
        output = additive_attention(query, key, value, score_vector, mask=mask, **options)
        if with_scores:
            scores = additive_attention_weights(
                query, key, score_vector, mask=scores_mask, **options
            )
        return output, scores
    over = [query.shape[0], query.shape[1], key.shape[1]]
    mask, scores_mask = (
        None if mask is None else with_heads(mask, over) for mask in (mask, scores_mask)
    )
    query, key, value = (ops.expand_dims(x, 2) for x in (query, key, value))
    output = ops.squeeze(dot_product_attention(query, key, value, mask=mask, **options), 2)
    if with_scores:
        scores = ops.squeeze(attention_weights(query, key, mask=scores_mask, **options), 1)
    return output, scores
