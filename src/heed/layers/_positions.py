"""Layers that encode the positions of tokens."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from heed.layers._base_layers import ConfiguredLayer, SequenceLayer
from heed.number_checks import check_integer, check_real, integer
from heed.ops import relative_position_bias, sinusoidal_positions
from heed.ops.backends import current


@keras.saving.register_keras_serializable(package="heed")
class SinusoidalPositions(SequenceLayer):
    """Adds sines and cosines of the position to a sequence.

    `output[b, t] = inputs[b, t] + P[start_index + t]` with `P[p, 2c] = sin(p /
    max_wavelength**(2c / D))` and `P[p, 2c + 1] = cos(p / max_wavelength**(2c / D))`.

    Args:
        max_wavelength: Base of the wavelengths, a positive number, in positions per 2 pi.
        **kwargs: `name`, `dtype`, as for every Keras layer.

    Call arguments:
        inputs: (B, T, D) floats.
        start_index: Position of the first token, an int or an integer tensor of shape (). Default
            0; a decoder with a cache passes the number of previous tokens.

    Returns:
        (B, T, D) in the layer's compute dtype.

    Raises:
        ValueError: If `max_wavelength` is not positive.

    Source:
        Vaswani et al. 2017, section 3.5 (pos = p, i = c, d_model = D).

    Example:
        >>> import numpy as np
        >>> layer = SinusoidalPositions()
        >>> np.asarray(layer(np.zeros((1, 2, 4), "float32"))).astype("float16").tolist()
        [[[0.0, 1.0, 0.0, 1.0], [0.84130859375, 0.54052734375, 0.01000213623046875, 1.0]]]
    """

    def __init__(self, max_wavelength: float = 10000.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_wavelength = check_real("max_wavelength", max_wavelength, least=0, exclusive=True)

    def call(self, inputs: Any, start_index: Any = 0) -> Any:
        positions = ops.arange(ops.shape(inputs)[1], dtype="int32") + start_index
        table = sinusoidal_positions(
            positions, inputs.shape[-1], max_wavelength=self.max_wavelength
        )
        return inputs + ops.cast(table, inputs.dtype)


@keras.saving.register_keras_serializable(package="heed")
class LearnedPositions(SequenceLayer):
    """Adds a learned vector for each position to a sequence.

    `output[b, t] = inputs[b, t] + P[start_index + t]` with a table `P` (max_length, D).

    Args:
        max_length: Number of positions, a positive integer.
        embeddings_initializer: Initializer of the table. Default: normal with standard deviation
            0.02.
        **kwargs: `name`, `dtype`, `trainable`, as for every Keras layer.

    Call arguments:
        inputs: (B, T, D) floats, T <= max_length.
        start_index: Position of the first token, an int or an integer tensor of shape (). Default
            0.

    Returns:
        (B, T, D) in the layer's compute dtype.

    Raises:
        ValueError: If `max_length` is not a positive integer, or if a sequence goes past it.

    Source:
        Gehring et al. 2017, section 3.1; Devlin et al. 2019.

    Example:
        >>> import numpy as np
        >>> layer = LearnedPositions(max_length=16)
        >>> tuple(layer(np.zeros((2, 5, 8), "float32"), start_index=3).shape)
        (2, 5, 8)
    """

    def __init__(self, max_length: int, embeddings_initializer: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_length = check_integer("max_length", max_length, least=1)
        if embeddings_initializer is None:
            embeddings_initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, input_shape: Any) -> None:
        self.embeddings = self.add_weight(
            shape=(self.max_length, input_shape[-1]),
            initializer=self.embeddings_initializer,
            name="embeddings",
        )

    def compute_output_spec(self, inputs: Any, start_index: Any = 0) -> Any:
        # Not by tracing `call`: in place of an unknown length Keras gives it a number, which may be too large.
        self._check(inputs, start_index)
        return keras.KerasTensor(inputs.shape, self.compute_dtype)

    def call(self, inputs: Any, start_index: Any = 0) -> Any:
        self._check(inputs, start_index)
        shape = ops.shape(inputs)
        table = ops.convert_to_tensor(self.embeddings)
        first = ops.cast(start_index, "int32")  # JAX takes indices of one dtype only
        if current().is_unknown_size(shape[1]):  # which no slice can have
            return inputs + ops.take(table, first + ops.arange(shape[1], dtype="int32"), axis=0)
        return inputs + ops.slice(table, (first, ops.zeros_like(first)), (shape[1], shape[2]))

    def _check(self, inputs: Any, start_index: Any) -> None:
        first = integer(start_index) or 0
        length = integer(inputs.shape[1]) or 0  # 0 where it is unknown
        if first < 0 or first + length > self.max_length:
            raise ValueError(
                "`inputs` must end within the `max_length` positions of this layer. Received: "
                f"inputs.shape={tuple(inputs.shape)}, start_index={start_index}, "
                f"max_length={self.max_length}"
            )


@keras.saving.register_keras_serializable(package="heed")
class RelativePositionBias(ConfiguredLayer):
    """A learned bias of the attention scores for each distance, in buckets that widen with it.

    `output[0, n, t, s] = table[bucket(s - (start_index + t)), n]`. Give the output to an
    attention layer as `position_bias`; the layers of one stack usually share it.

    Args:
        num_heads: Number of query heads N, a positive integer.
        num_buckets: Number of buckets, a positive integer.
        max_distance: Distance in tokens from which on all share the last bucket, a positive
            integer.
        bidirectional: Whether keys after the query have buckets of their own (an encoder) or not
            (a decoder).
        embeddings_initializer: Initializer of the table (num_buckets, N). Default: normal,
            standard deviation 0.02.
        **kwargs: `name`, `dtype`, `trainable`, as for every Keras layer.

    Call arguments:
        query_length: T, an int (or an integer tensor of shape ()).
        key_length: S, an int (or an integer tensor of shape ()). Default: T.
        start_index: Key position of query 0, an int or an integer tensor of shape
            (). Default 0.

    Returns:
        (1, N, T, S).

    Raises:
        ValueError: If a size is not a positive integer.

    Source:
        Raffel et al. 2020, section 2.1.

    Example:
        >>> layer = RelativePositionBias(num_heads=2)
        >>> tuple(layer(query_length=3, key_length=5).shape)
        (1, 2, 3, 5)
    """

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        embeddings_initializer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = check_integer("num_heads", num_heads, least=1)
        self.num_buckets = check_integer("num_buckets", num_buckets, least=1)
        self.max_distance = check_integer("max_distance", max_distance, least=1)
        self.bidirectional = bool(bidirectional)
        if embeddings_initializer is None:
            embeddings_initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, input_shape: Any = None) -> None:
        # A bias is added to float32 scores: casting it to less would only cost precision.
        self.embeddings = self.add_weight(
            shape=(self.num_buckets, self.num_heads),
            initializer=self.embeddings_initializer,
            autocast=False,
            name="embeddings",
        )

    def call(self, query_length: Any, key_length: Any = None, start_index: Any = 0) -> Any:
        return relative_position_bias(
            ops.convert_to_tensor(self.embeddings),
            query_length,
            query_length if key_length is None else key_length,
            offset=start_index,
            bidirectional=self.bidirectional,
            max_distance=self.max_distance,
        )
