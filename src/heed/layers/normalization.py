"""Keras' normalisation of the last axis, by heed's ops: its arguments, variables and files."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from heed.layers.base_layers import KernelLayer
from heed.ops import layer_normalization, rms_normalization


@keras.saving.register_keras_serializable(package="heed")
class LayerNormalization(KernelLayer, keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` of the last axis by `heed.ops.layer_normalization`.

    Example:
        >>> import numpy as np
        >>> layer = LayerNormalization(epsilon=1e-6)
        >>> np.array(layer(np.array([[1.0, 2.0, 3.0]])), "float64").round(4).tolist()
        [[-1.2247, 0.0, 1.2247]]
    """

    def __init__(self, epsilon: float = 1e-3, **kwargs: Any) -> None:
        super().__init__(epsilon=epsilon, **kwargs)
        _check_axis(self)

    def call(self, inputs: Any) -> Any:
        """Normalised (..., D), in the compute dtype."""
        x = layer_normalization(inputs, self.gamma, self.beta, epsilon=self.epsilon)
        return ops.cast(x, self.compute_dtype)


@keras.saving.register_keras_serializable(package="heed")
class RMSNormalization(KernelLayer, keras.layers.RMSNormalization):
    """`keras.layers.RMSNormalization` of the last axis by `heed.ops.rms_normalization`.

    Example:
        >>> import numpy as np
        >>> np.array(RMSNormalization()(np.array([[3.0, 4.0]])), "float64").round(4).tolist()
        [[0.8485, 1.1314]]
    """

    def __init__(self, epsilon: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(epsilon=epsilon, **kwargs)
        self.supports_masking = True  # which Keras' own does not say
        _check_axis(self)

    def call(self, inputs: Any) -> Any:
        """Normalised (..., D)."""
        return rms_normalization(inputs, self.scale, epsilon=self.epsilon)


def _check_axis(layer: Any) -> None:
    """Once built Keras keeps the axis in a list."""
    if layer.axis not in (-1, [-1]):
        raise ValueError(f"`axis` must be -1. Received: axis={layer.axis}")
