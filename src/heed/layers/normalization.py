"""Keras' normalisation of the last axis, by heed's ops: its arguments, variables and files."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from heed.layers._base_layers import KernelLayer
from heed.ops import layer_normalization, rms_normalization


class _LastAxis(KernelLayer):
    """Refuses another axis than the last."""

    axis: Any

    def build(self, input_shape: Any) -> None:
        """Make the variables, of the last axis of `input_shape`."""
        # By the shape: a built layer of Keras 3.16 has the positive axis in its config.
        axes = self.axis if isinstance(self.axis, (list, tuple)) else [self.axis]
        if list(axes) not in ([-1], [len(input_shape) - 1]):
            raise ValueError(
                f"`axis` must be the last. Received: axis={self.axis}, input_shape={tuple(input_shape)}"
            )
        super().build(input_shape)


@keras.saving.register_keras_serializable(package="heed")
class LayerNormalization(_LastAxis, keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` of the last axis by `heed.ops.layer_normalization`.

    Example:
        >>> import numpy as np
        >>> layer = LayerNormalization(epsilon=1e-6)
        >>> np.array(layer(np.array([[1.0, 2.0, 3.0]])), "float64").round(4).tolist()
        [[-1.2247, 0.0, 1.2247]]
    """

    def __init__(self, epsilon: float = 1e-3, **kwargs: Any) -> None:
        super().__init__(epsilon=epsilon, **kwargs)

    def call(self, inputs: Any) -> Any:
        """Return normalised (..., D), in the compute dtype."""
        x = layer_normalization(inputs, self.gamma, self.beta, epsilon=self.epsilon)
        return ops.cast(x, self.compute_dtype)


@keras.saving.register_keras_serializable(package="heed")
class RMSNormalization(_LastAxis, keras.layers.RMSNormalization):
    """`keras.layers.RMSNormalization` of the last axis by `heed.ops.rms_normalization`.

    Example:
        >>> import numpy as np
        >>> np.array(RMSNormalization()(np.array([[3.0, 4.0]])), "float64").round(4).tolist()
        [[0.8485, 1.1314]]
    """

    def __init__(self, epsilon: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(epsilon=epsilon, **kwargs)
        self.supports_masking = True  # which Keras' own does not say

    def call(self, inputs: Any) -> Any:
        """Return normalised (..., D)."""
        return rms_normalization(inputs, self.scale, epsilon=self.epsilon)


# By the name that `LayerConfig.normalization` has for them.
NORMALIZATIONS = {"layer": LayerNormalization, "rms": RMSNormalization}


def make_normalization(options: Any, **arguments: Any) -> keras.layers.Layer:
    """Return the normalisation that a `LayerConfig`, or a layer with its options, describes."""
    return NORMALIZATIONS[options.normalization](epsilon=options.norm_epsilon, **arguments)
