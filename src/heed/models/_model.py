"""The base of the models: made from a config, built without data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import keras
from keras import ops

from heed.config import Config
from heed.layers import TokenEmbedding
from heed.layers.flat_dense import FlatDense
from heed.models.config import TransformerConfig
from heed.ops.checks import check_tokens


class ConfiguredModel(keras.Model):
    """A Keras model made from a config, an instance of `config_class`."""

    config_class: ClassVar[type[Config]] = TransformerConfig

    def __init__(self, config: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(config, self.config_class):
            raise TypeError(
                f"`config` must be a {self.config_class.__name__}. Received: config={config!r}"
            )
        self.config: Any = config

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # By tracing: the outputs depend on the arguments.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "trainable": self.trainable,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "config": self.config.to_dict(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        arguments = dict(config)
        return cls(cls.config_class.from_dict(arguments.pop("config")), **arguments)

    def get_build_config(self) -> dict[str, Any]:
        """Return an empty shape: building needs the config alone."""
        return {"input_shape": None}

    def build_from_config(self, config: dict[str, Any]) -> None:
        self.build()


def make_output(config: Any, size: int, dtype: Any, use_bias: bool = True) -> Any:
    """Make the output layer, which scores tokens; None where the table of the embedding does."""
    if config.tie_embeddings:
        return None
    return FlatDense(size, use_bias=use_bias, dtype=dtype, name="output")


def score_tokens(output_layer: Any, tokens: TokenEmbedding, hidden: Any) -> Any:
    """Return scores of each token, (..., D) to (..., vocabulary) float32, by what `make_output` returned."""
    scores = tokens.logits(hidden) if output_layer is None else output_layer(hidden)
    return ops.cast(scores, "float32")


def check_translation(inputs: Any) -> tuple[Any, Any]:
    """Split the inputs of a call into source and target."""
    if not isinstance(inputs, Mapping) or not {"source", "target"} <= set(inputs):
        received = sorted(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
        raise ValueError(
            f'`inputs` must be a dict with "source" and "target". Received: {received}'
        )
    return inputs["source"], inputs["target"]


def check_call_tokens(name: str, tokens: Any, size: int, letters: str = "(B, T)") -> Any:
    """Check the tokens of a call and return a tensor; in a graph the embedding checks them."""
    return check_tokens(name, tokens, size, letters, in_graph=False)


def check_token_source(source: Any, size: int) -> Any:
    """Check the source of `generate` and return an int32 tensor (B, S) of tokens in [0, size)."""
    return ops.cast(check_tokens("source", source, size, "(B, S)"), "int32")
