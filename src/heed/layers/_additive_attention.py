"""Bahdanau's additive attention as a Keras layer."""

from __future__ import annotations

from typing import Any

import keras

from heed.layers import _score_functions
from heed.layers._single_head import SingleHeadAttention
from heed.layers.layer_config import LayerConfig
from heed.number_checks import check_integer


@keras.saving.register_keras_serializable(package="heed")
class AdditiveAttention(SingleHeadAttention):
    r"""Bahdanau's attention: a layer of U tanh units scores each pair of query and key.

        score_ij = v . tanh(W_q q_i + W_k k_j + b)
        output_i = sum_j softmax_j(score_ij, masked) value_j

    Unlike `keras.layers.AdditiveAttention` it has the weights of the paper, so query, key and value may differ in
    width, and it never builds the tensor (B, T, S, U).

    Args:
        units: U, number of tanh units, an int above 0.
        use_bias: whether there is the bias b. Default True.
        dropout: rate in [0, 1) of dropped attention weights in training. Default 0.
        kernel_initializer: of W_q (Dq, U) and W_k (Dk, U). Default "glorot_uniform".
        bias_initializer: of b (U,). Default "zeros".
        score_initializer: of v (U,). Default "glorot_uniform".
        kernel_regularizer, bias_regularizer: of W_q, W_k and v, and of b.
        kernel_constraint, bias_constraint: of W_q and W_k, and of b.
        seed: int, seed of the dropout. Default: drawn.
        score_mod: changes each score: a function (score, batch, head, query, key), a layer, the registered name of
            one, or None. `head` is 0, and so is `query` for a single state. Such scores are computed by the portable
            form. Default None.
        **kwargs: `name`, `dtype` and the like, as for every Keras layer.

    Call arguments:
        query: (B, T, Dq), or (B, Dq): a single state, which gives (B, V) and scores (B, S).
        value: (B, S, V).
        key: (B, S, Dk). Default: `value`.
        query_mask, value_mask, key_mask, attention_mask, return_attention_scores, training,
            use_causal_mask: as in `DotProductAttention`.
        cache: from `project_cache`, which a recurrent decoder calls once; as in `DotProductAttention`.

    Returns:
        As `DotProductAttention`.

    Raises:
        ValueError: if arguments or shapes are inconsistent.

    Numerics:
        A query that may attend to nothing gives 0 and weights 0. Scores and softmax in float32 (float64 for float64).
        Weights are in the compute dtype.

    Source:
        Bahdanau et al. 2015, "Neural Machine Translation by Jointly Learning to Align and
        Translate" (their W_a is W_q, U_a is W_k, v_a is v, s_{i-1} the query, h_j key and value).

    Example:
        >>> import numpy as np
        >>> from heed.layers import AdditiveAttention
        >>> state, encoded = np.ones((2, 4), "float32"), np.ones((2, 5, 6), "float32")
        >>> context, scores = AdditiveAttention(8)(state, encoded, return_attention_scores=True)
        >>> tuple(context.shape), tuple(scores.shape)
        ((2, 6), (2, 5))
    """

    def __init__(
        self,
        units: int,
        use_bias: bool = True,
        dropout: float = 0.0,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        score_initializer: Any = "glorot_uniform",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        seed: int | None = None,
        score_mod: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dropout=dropout, seed=seed, **kwargs)
        self.score_mod = LayerConfig(score_mod=score_mod).score_mod
        self._score_function = _score_functions.resolve(self.score_mod)
        self.units = check_integer("units", units, least=1)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.score_initializer = keras.initializers.get(score_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)

    def _build_scores(self, query_width: int, key_width: int) -> None:
        self._query_dense = self._make_projection("query", query_width, self.units)
        self._key_dense = self._make_projection("key", key_width, self.units)
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.units,),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )
        self.score_vector = self.add_weight(
            name="score_vector",
            shape=(self.units,),
            initializer=self.score_initializer,
            regularizer=self.kernel_regularizer,
        )

    def _project_query(self, query: Any) -> Any:
        return self._query_dense(query)

    def _project_key(self, key: Any) -> Any:
        return self._key_dense(key)

    def _scored_width(self) -> int:
        return self.units

    def _score(self) -> dict[str, Any]:
        bias = None if self.bias is None else keras.ops.convert_to_tensor(self.bias)
        vector = keras.ops.convert_to_tensor(self.score_vector)
        return {"score_vector": vector, "bias": bias, "score_mod": self._score_function}
