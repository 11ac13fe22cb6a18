"""Keras' dropout by heed's op: its arguments, seed and files."""

from __future__ import annotations

from typing import Any

import keras

from heed.layers._base_layers import KernelLayer
from heed.layers.attend import dropout_options
from heed.ops import dropout


@keras.saving.register_keras_serializable(package="heed")
class Dropout(KernelLayer, keras.layers.Dropout):
    """`keras.layers.Dropout` by `heed.ops.dropout`; `add` adds the result to a residual in the same pass.

    Example:
        >>> import numpy as np
        >>> x = np.ones((1, 1000), "float32")
        >>> layer = Dropout(0.25, seed=1)
        >>> y = np.asarray(layer(x, training=True))
        >>> bool(0.7 < (y > 0).mean() < 0.8), round(float(y.max()), 4)
        (True, 1.3333)
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(rate, seed=seed, **kwargs)
        if self.noise_shape is not None:
            raise ValueError(
                f"`noise_shape` must be None. Received: noise_shape={self.noise_shape}"
            )

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Drop some values of `inputs` in training."""
        return dropout(inputs, **options) if (options := self._options(training)) else inputs

    def add(self, residual: Any, change: Any, training: bool | None = None) -> Any:
        """Return `residual + change`; in training some values of the change are dropped."""
        options = self._options(training)
        return dropout(change, residual=residual, **options) if options else residual + change

    def _options(self, training: bool | None) -> dict[str, Any]:
        options = dropout_options(self.rate, training, self)
        return {"rate": options["dropout"], "seed": options["seed"]} if options else {}
