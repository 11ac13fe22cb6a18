"""Token embedding with a tied output layer and a dense gradient."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from heed.layers._base_layers import ConfiguredLayer
from heed.number_checks import check_integer
from heed.ops.checks import check_tokens


def _lookup(table: Any, ids: Any) -> Any:
    """Return rows `ids` of `table`, with a gradient that is one dense tensor.

    TensorFlow's gradient of a gather lists a row for each occurrence of its token. Keras' Adam squares those entries
    one by one, so its second moment would be too small. The gradient of a reshape sums equal rows first.
    """
    return ops.take(ops.reshape(table, table.shape), ids, axis=0)


@keras.saving.register_keras_serializable(package="heed")
class TokenEmbedding(ConfiguredLayer):
    """Turns token ids into vectors, and vectors back into scores for each token.

    `output[b, t] = E[ids[b, t]] * sqrt(D)` and `logits(x) = x @ E.T`, with one table `E`
    (vocabulary_size, D).

    Args:
        vocabulary_size: Number of tokens, a positive integer. Ids are 0 .. vocabulary_size - 1.
        width: Model width D, a positive integer.
        mask_zero: Whether id 0 is padding. If so the output carries the Keras mask `ids != 0`.
        scale: Whether the output is multiplied by sqrt(D). With the default initializer (standard
            deviation 1 / sqrt(D)) vectors start with unit variance, and so do the logits of a
            normalised vector.
        embeddings_initializer: Initializer of the table. Default: normal with standard deviation
            1 / sqrt(D).
        embeddings_regularizer: Regularizer of the table, or None.
        embeddings_constraint: Constraint of the table, or None.
        **kwargs: `name`, `dtype`, `trainable`, as for every Keras layer.

    Call arguments:
        inputs: (B, T) integers (any shape will do) in [0, vocabulary_size).

    Returns:
        `inputs.shape + (D,)` in the layer's compute dtype.

    Raises:
        ValueError: If `vocabulary_size` or `width` is not a positive integer, or an id is out of range; that is
            tf.errors.InvalidArgumentError in a graph, and XLA drops the check.

    Numerics:
        The gradient of the table is dense: an optimizer step is that of the dense formula, even if a token occurs
        several times in a batch. Rows are read in the table's dtype and cast afterwards, so float16 does not round the
        sum over equal tokens.

    Source:
        Vaswani et al. 2017, section 3.4 (sqrt(d_model) = sqrt(D)); Press and Wolf 2017 (tied
        output).

    Example:
        >>> import numpy as np
        >>> embedding = TokenEmbedding(vocabulary_size=10, width=4)
        >>> x = embedding(np.array([[3, 1, 0]]))
        >>> tuple(x.shape), tuple(embedding.logits(x).shape)
        ((1, 3, 4), (1, 3, 10))
    """

    def __init__(
        self,
        vocabulary_size: int,
        width: int,
        mask_zero: bool = True,
        scale: bool = True,
        embeddings_initializer: Any = None,
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.vocabulary_size = check_integer("vocabulary_size", vocabulary_size, least=1)
        self.width = check_integer("width", width, least=1)
        self.mask_zero = bool(mask_zero)
        self.scale = bool(scale)
        if embeddings_initializer is None:
            embeddings_initializer = keras.initializers.RandomNormal(stddev=self.width**-0.5)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = keras.constraints.get(embeddings_constraint)
        self.supports_masking = self.mask_zero

    def build(self, input_shape: Any = None) -> None:
        self.embeddings = self.add_weight(
            shape=(self.vocabulary_size, self.width),
            initializer=self.embeddings_initializer,
            regularizer=self.embeddings_regularizer,
            constraint=self.embeddings_constraint,
            autocast=False,
            name="embeddings",
        )

    def call(self, inputs: Any) -> Any:
        ids = check_tokens("inputs", inputs, self.vocabulary_size)
        if keras.backend.standardize_dtype(ids.dtype) not in ("int32", "int64"):
            ids = ops.cast(ids, "int32")
        x = _lookup(self.embeddings, ids)
        if self.scale:
            x = x * self.width**0.5
        return ops.cast(x, self.compute_dtype)

    def logits(self, x: Any) -> Any:
        """Return scores of every token, `x @ E.T`.

        Args:
            x: (..., D) floats.

        Returns:
            (..., vocabulary_size) in the layer's compute dtype.
        """
        if not self.built:
            self.build()
        x = ops.cast(ops.convert_to_tensor(x), self.compute_dtype)
        table = ops.cast(ops.convert_to_tensor(self.embeddings), self.compute_dtype)
        # One product of two matrices: higher ranks would use a batched one.
        scores = ops.matmul(ops.reshape(x, (-1, self.width)), ops.transpose(table))
        return ops.reshape(scores, (*ops.shape(x)[:-1], self.vocabulary_size))

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        return (*input_shape, self.width)
