"""What the three models share: they are made from one config and built without data."""

from __future__ import annotations

from typing import Any

import keras

from heed.models.config import TransformerConfig


class ConfiguredModel(keras.Model):
    """A Keras model whose only hyperparameters are those of a `TransformerConfig`."""

    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(config, TransformerConfig):
            raise TypeError(f"`config` must be a TransformerConfig. Received: config={config!r}")
        self.config = config

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Shape and dtype of what a call returns."""
        # Traced, not worked out from shapes: what comes back depends on the arguments.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain values."""
        return {
            "name": self.name,
            "trainable": self.trainable,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "config": self.config.to_dict(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """The model that `get_config` described."""
        arguments = dict(config)
        return cls(TransformerConfig.from_dict(arguments.pop("config")), **arguments)

    def get_build_config(self) -> dict[str, Any]:
        """Nothing: the config says all that building needs."""
        return {"input_shape": None}

    def build_from_config(self, config: dict[str, Any]) -> None:
        """Creates the variables."""
        self.build()
