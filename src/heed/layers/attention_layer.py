"""What all layers that attend share: Keras learns from them whether XLA may compile a model."""

from __future__ import annotations

from heed.layers.configured_layer import ConfiguredLayer
from heed.ops.dispatch import explain


class AttentionLayer(ConfiguredLayer):
    """A layer whose attention XLA cannot compile while the native kernels run it."""

    @property
    def supports_jit(self) -> bool:
        """Whether Keras may have XLA compile a model with this layer.

        False while the native kernels are in use: `compile(jit_compile=True)` then warns and goes on without XLA.
        Under `heed.set_implementation("portable")` it is True.
        """
        return self._supports_jit and explain().implementation != "native"

    @supports_jit.setter
    def supports_jit(self, value: bool) -> None:
        # Keras sets it when the layer is made; a subclass may say that it cannot be compiled at all.
        self._supports_jit = bool(value)
