"""The position-wise feed-forward part of a Transformer layer."""

from __future__ import annotations

from typing import Any

import keras

from heed.layers._base_layers import SequenceLayer
from heed.layers.dropout import Dropout
from heed.layers.flat_dense import FlatDense, clone_initializer
from heed.number_checks import check_integer, check_real


@keras.saving.register_keras_serializable(package="heed")
class FeedForward(SequenceLayer):
    """Two dense layers with an activation between them, applied to each position.

    `output = activation(x @ W1 + b1) @ W2 + b2`, back to the width of the input; or gated,
    `output = (activation(x @ W1 + b1) * (x @ W3 + b3)) @ W2 + b2`: with `activation="silu"` that is SwiGLU, with
    "gelu" GEGLU.

    Args:
        hidden_width: Width between the two dense layers, a positive integer.
        activation: Activation between them. Default "relu".
        dropout: Rate in [0, 1) of dropped activations in training. Default 0.
        use_bias: Whether the dense layers have biases. Default True.
        kernel_initializer: Initializer of W1, W2 and W3. Default "glorot_uniform".
        bias_initializer: Initializer of b1, b2 and b3. Default "zeros".
        seed: Integer seed of the dropout, or None.
        gated: Whether a third dense layer multiplies the activations (a gated linear unit). Default False.
        **kwargs: `name`, `dtype`, `trainable`, as for every Keras layer.

    Call arguments:
        inputs: (..., D) floats.
        training: Whether to drop activations.

    Returns:
        (..., D) in the layer's compute dtype.

    Raises:
        ValueError: If `hidden_width` is not a positive integer or `dropout` not in [0, 1).

    Source:
        Vaswani et al. 2017, section 3.3 (d_ff = hidden_width); Shazeer 2020, "GLU Variants Improve Transformer" (W =
        W1, V = W3).

    Example:
        >>> import numpy as np
        >>> layer = FeedForward(32, dropout=0.1)
        >>> tuple(layer(np.zeros((2, 5, 8), "float32")).shape)
        (2, 5, 8)
    """

    def __init__(
        self,
        hidden_width: int,
        activation: Any = "relu",
        dropout: float = 0.0,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        seed: int | None = None,
        gated: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.hidden_width = check_integer("hidden_width", hidden_width, least=1)
        self.activation = keras.activations.get(activation)
        self.dropout = check_real("dropout", dropout, least=0, most=1)
        self.use_bias = bool(use_bias)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.seed = check_integer("seed", seed, least=None, optional=True)
        self.gated = bool(gated)

    def _dense(self, units: int, activation: Any, name: str) -> FlatDense:
        return FlatDense(
            units,
            activation=activation,
            use_bias=self.use_bias,
            # Each layer gets its own initializer: a shared one with a seed would give them the same values.
            kernel_initializer=clone_initializer(self.kernel_initializer),
            bias_initializer=clone_initializer(self.bias_initializer),
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, input_shape: Any) -> None:
        width = input_shape[-1]
        self.hidden_dense = self._dense(self.hidden_width, self.activation, "hidden")
        self.up_dense = self._dense(self.hidden_width, None, "up") if self.gated else None
        self.output_dense = self._dense(width, None, "output")
        self.dropout_layer = Dropout(self.dropout, seed=self.seed, dtype=self.dtype_policy)
        self.hidden_dense.build((None, width))
        if self.up_dense is not None:
            self.up_dense.build((None, width))
        self.output_dense.build((None, self.hidden_width))

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> Any:
        # Not by tracing `call`, where Keras on PyTorch forgets that mixed precision narrows the variables.
        return keras.KerasTensor(inputs.shape, self.compute_dtype)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        hidden = self.hidden_dense(inputs)
        if self.up_dense is not None:
            hidden = hidden * self.up_dense(inputs)
        if self.dropout:
            hidden = self.dropout_layer(hidden, training=training)
        return self.output_dense(hidden)
