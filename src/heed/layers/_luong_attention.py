"""Luong's attention as a Keras layer."""

from __future__ import annotations

from typing import Any

import keras

from heed.layers._single_head import SingleHeadAttention
from heed.layers.shapes import same_width

_SCORES = ("dot", "general", "scaled")


@keras.saving.register_keras_serializable(package="heed")
class LuongAttention(SingleHeadAttention):
    r"""Luong's multiplicative attention of a decoder to the states of an encoder.

        output = softmax(score(Q, K), masked) V
        score "dot":     q . k
        score "general": q W k
        score "scaled":  q . k / sqrt(D)

    Args:
        score: "dot", "general" or "scaled", see above. Default "dot".
        dropout: rate in [0, 1) of dropped attention weights in training. Default 0.
        kernel_initializer: of W, (Dq, Dk), for "general". Default "glorot_uniform".
        kernel_regularizer, kernel_constraint: of W.
        seed: int, seed of the dropout. Default: drawn.
        **kwargs: `name`, `dtype` and the like, as for every Keras layer.

    Call arguments:
        query: (B, T, Dq), or (B, Dq): a single state, which gives (B, V) and scores (B, S).
        value: (B, S, V).
        key: (B, S, Dk). Default: `value`. Only "general" takes Dq and Dk that differ.
        query_mask, value_mask, key_mask, attention_mask, return_attention_scores, training,
            use_causal_mask: as in `DotProductAttention`.
        cache: from `project_cache`, which a recurrent decoder calls once; as in `DotProductAttention`.

    Returns:
        As `DotProductAttention`.

    Raises:
        ValueError: if arguments or shapes are inconsistent.

    Numerics:
        A query that may attend to nothing gives 0 and weights 0. Softmax in float32 (float64 for
        float64). Scores are returned in the compute dtype.

    Source:
        Luong et al. 2015, "Effective Approaches to Attention-based Neural Machine Translation",
        section 3.1 (their h_t is the query, h_s are key and value, W_a is W, a_t the scores).

    Example:
        >>> import numpy as np
        >>> from heed.layers import LuongAttention
        >>> state, encoded = np.ones((2, 4), "float32"), np.ones((2, 5, 6), "float32")
        >>> context, scores = LuongAttention("general")(state, encoded, return_attention_scores=True)
        >>> tuple(context.shape), tuple(scores.shape)
        ((2, 6), (2, 5))
    """

    def __init__(
        self,
        score: str = "dot",
        dropout: float = 0.0,
        kernel_initializer: Any = "glorot_uniform",
        kernel_regularizer: Any = None,
        kernel_constraint: Any = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dropout=dropout, seed=seed, **kwargs)
        if score not in _SCORES:
            raise ValueError(f"`score` must be one of {_SCORES}. Received: score={score!r}")
        self.score = score
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)

    def _build_scores(self, query_width: int, key_width: int) -> None:
        if self.score != "general":
            same_width(query_width, key_width)
            return
        self._query_dense = self._make_projection("query", query_width, key_width)

    def _project_query(self, query: Any) -> Any:
        return self._query_dense(query) if self.score == "general" else query

    def _score(self) -> dict[str, Any]:
        return {"scale": None if self.score == "scaled" else 1.0}
