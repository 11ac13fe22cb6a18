"""Chorowski's location-aware attention as a Keras layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from heed.layers import masks
from heed.layers._additive_attention import AdditiveAttention
from heed.layers.attend import pack_outputs
from heed.layers.flat_dense import clone_initializer
from heed.layers.shapes import Shape, agree
from heed.number_checks import check_integer


@keras.saving.register_keras_serializable(package="heed")
class LocationAwareAttention(AdditiveAttention):
    r"""Additive attention that reads its previous weights, for a decoder whose source is read in order.

        f = F * w                                          the previous weights, convolved
        score_j  = v . tanh(W_q q + W_k k_j + W_f f_j + b)
        weights  = softmax(score, masked)
        context  = sum_j weights_j value_j

    Args:
        units: U, number of tanh units, an int above 0.
        filters: number of features of F * w, an int above 0. Default 10.
        kernel_size: number of positions that a feature sees, an int above 0. Default 31.
        **kwargs: the options of `AdditiveAttention`, `name`, `dtype` and the like. Those of a kernel hold for
            F (kernel_size, 1, filters) and W_f (filters, U), too.

    Call arguments:
        query: (B, Dq), the state of a decoder.
        value: (B, S, V).
        key: (B, S, Dk). Default: `value`.
        previous_weights: (B, S), the weights of the call for the previous state, or their sum over all previous states.
            Masked positions count as 0. Default: zeros, for the first state.
        query_mask: (B,) boolean, True = a real state.
        value_mask, key_mask: (B, S) boolean, True = a real position.
        attention_mask: a `heed.Mask`, or booleans (B, S), True = attend.
        training: whether dropout is on.
        cache: from `project_cache`; then `value` and `key` are not read and may be None.

    Returns:
        The pair (context, weights), (B, V) and (B, S); with `cache` (context, weights, cache).

    Raises:
        ValueError: if arguments or shapes are inconsistent.

    Numerics:
        A query that may attend to nothing gives 0 and weights 0. Scores and softmax in float32 (float64 for float64).
        Weights are returned in the compute dtype, in training after dropout; gradients flow through them.

    Source:
        Chorowski et al. 2015, "Attention-Based Models for Speech Recognition", section 2.1 (their W, V, U are W_q, W_k,
        W_f, w is v, alpha_{i-1} the previous weights, s_{i-1} the query, h_j key and value). The sum of all previous
        weights: Shen et al. 2018 (Tacotron 2).

    Example:
        >>> import numpy as np
        >>> from heed.layers import LocationAwareAttention
        >>> layer = LocationAwareAttention(8, filters=4, kernel_size=3)
        >>> state, encoded = np.ones((2, 4), "float32"), np.ones((2, 5, 6), "float32")
        >>> context, weights = layer(state, encoded)
        >>> context, weights = layer(state, encoded, previous_weights=weights)
        >>> tuple(context.shape), tuple(weights.shape)
        ((2, 6), (2, 5))
    """

    def __init__(self, units: int, filters: int = 10, kernel_size: int = 31, **kwargs: Any) -> None:
        super().__init__(units, **kwargs)
        self.filters = check_integer("filters", filters, least=1)
        self.kernel_size = check_integer("kernel_size", kernel_size, least=1)

    def build(
        self,
        query_shape: Sequence[Any],
        value_shape: Sequence[Any] | None = None,
        key_shape: Sequence[Any] | None = None,
        previous_weights_shape: Sequence[Any] | None = None,
    ) -> None:
        super().build(query_shape, value_shape, key_shape)

    def _build_scores(self, query_width: int, key_width: int) -> None:
        super()._build_scores(query_width, key_width)
        self._convolution = keras.layers.Conv1D(
            self.filters,
            self.kernel_size,
            padding="same",
            use_bias=False,
            kernel_initializer=clone_initializer(self.kernel_initializer),
            kernel_regularizer=self.kernel_regularizer,
            kernel_constraint=self.kernel_constraint,
            dtype=self.dtype_policy,
            name="convolution",
        )
        self._convolution.build((None, None, 1))
        self._location_dense = self._make_projection("location", self.filters, self.units)

    def call(  # type: ignore[override]  # always a single state, and always with its weights
        self,
        query: Any,
        value: Any,
        key: Any = None,
        previous_weights: Any = None,
        query_mask: Any = None,
        value_mask: Any = None,
        key_mask: Any = None,
        attention_mask: Any = None,
        training: bool | None = None,
        cache: Any = None,
    ) -> Any:
        self._check_location(query, value, cache, previous_weights)

        context, weights = self._attend(
            query,
            value,
            key,
            cache,
            given_masks=(query_mask, value_mask, key_mask),
            attention_mask=attention_mask,
            use_causal_mask=False,
            with_scores=True,
            training=training,
            previous_weights=previous_weights,
        )
        return pack_outputs(context, weights, cache)

    def _location_keys(self, previous_weights: Any, columns: Any) -> Any:
        """Return W_f (F * w), (B, S, U)."""
        seen = masks.hide(ops.expand_dims(previous_weights, -1), columns)
        return self._location_dense(self._convolution(seen))

    def compute_output_shape(  # type: ignore[override]
        self,
        query_shape: Sequence[Any],
        value_shape: Sequence[Any],
        key_shape: Sequence[Any] | None = None,
        previous_weights_shape: Sequence[Any] | None = None,
    ) -> tuple[Shape, Shape]:
        return super().compute_output_shape(
            query_shape, value_shape, key_shape, return_attention_scores=True
        )

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Trace a call for its symbolic outputs: its arguments are not those of the base class."""
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def _check_location(self, query: Any, value: Any, cache: Any, previous_weights: Any) -> None:
        if len(query.shape) != 2:
            raise ValueError(
                "`query` must have the shape (B, Dq): each state needs the weights of the one before. "
                f"Received: query.shape={tuple(query.shape)}"
            )
        source = value if cache is None else cache["value"]
        if previous_weights is not None and source is not None:
            expected, shape = tuple(source.shape)[:2], tuple(previous_weights.shape)
            if not agree(shape, expected):
                raise ValueError(
                    f"`previous_weights` must have the shape (B, S), {expected}. "
                    f"Received: previous_weights.shape={shape}"
                )
