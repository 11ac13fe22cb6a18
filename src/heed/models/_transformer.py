"""The encoder-decoder Transformer."""

from __future__ import annotations

import inspect
from typing import Any

import keras
from keras import ops

from heed.decoding.streaming import stream
from heed.layers.masks import implicit_mask
from heed.layers.shapes import agree
from heed.models._decoder import TransformerDecoder
from heed.models._encoder import TransformerEncoder
from heed.models._model import ConfiguredModel, check_translation
from heed.models.config import TransformerConfig


@keras.saving.register_keras_serializable(package="heed")
class Transformer(ConfiguredModel):
    """Encoder and decoder: scores the next tokens of a target, given a source and the target so far.

    A source is a text, or with a custom `encoder` whatever that reads: images for a `VisionTransformer`, features for a
    `Dense` layer. The encoder's output width must be D.

    Args:
        config: Sizes and choices. With an `encoder`, those for the encoder are ignored, and `source_vocabulary_size`
            may be None.
        encoder: A Keras layer or model that turns sources into (B, S, D) floats, instead of a `TransformerEncoder` made
            from the config. The decoder does not attend to positions that a Keras mask (B, S) of its output hides. It
            is saved with the model.
        **kwargs: `name`, `dtype`, as for every Keras model.

    Call arguments:
        inputs: `{"source": (B, S) integers, "target": (B, T) integers}`. The target starts with
            `config.start_id`; the label of token t is token t + 1. Nothing attends to source tokens equal to
            `config.pad_id`. With an `encoder` the source is its input, one tensor.
        return_attention_scores: Whether to return the attention weights too; "alignment" returns only the alignment of
            each target token, see `TransformerDecoder`.
        training: Whether dropout is on.

    Returns:
        Logits (B, T, target_vocabulary_size), float32. With `return_attention_scores=True` the
        pair of them and `{"encoder": [(B, N, S, S) ...], "decoder": [(B, N, T, T) ...], "cross":
        [(B, N, T, S) ...]}`, an entry for each layer; "encoder" holds the scores of an `encoder` that takes the
        argument, and is empty for others. With "alignment" the pair of them and (B, T, S).

    Raises:
        ValueError: If `inputs` lacks the source or the target, or the output of an `encoder` is not (B, S, D).

    Source:
        Vaswani et al. 2017 (d_model = D, h = N).

    Example:
        >>> import numpy as np
        >>> from heed.models import Transformer, TransformerConfig
        >>> config = TransformerConfig(20, 30, width=8, num_heads=2, feed_forward_width=16)
        >>> model = Transformer(config)
        >>> logits = model({"source": np.array([[5, 3, 4, 0]]), "target": np.array([[1, 7]])})
        >>> tuple(logits.shape)
        (1, 2, 30)
        >>> import keras
        >>> config = TransformerConfig(None, 30, width=8, num_heads=2, feed_forward_width=16)
        >>> model = Transformer(config, encoder=keras.layers.Dense(8))
        >>> features = np.zeros((1, 7, 5), "float32")
        >>> tuple(model({"source": features, "target": np.array([[1, 7]])}).shape)
        (1, 2, 30)
    """

    def __init__(
        self, config: TransformerConfig, encoder: keras.layers.Layer | None = None, **kwargs: Any
    ) -> None:
        super().__init__(config, **kwargs)
        policy, shared = self.dtype_policy, None
        self._has_own_encoder = encoder is not None
        if encoder is None:
            self.encoder: Any = TransformerEncoder(config, dtype=policy, name="encoder")
            if config.share_embeddings:
                shared = self.encoder.embedding.tokens
        elif not isinstance(encoder, keras.layers.Layer):
            raise TypeError(f"`encoder` must be a Keras layer or model. Received: {encoder!r}")
        elif config.share_embeddings:
            raise ValueError(
                "`share_embeddings` must be False for a Transformer with its own `encoder`. "
                "Received: share_embeddings=True"
            )
        else:
            self.encoder = encoder
        self.decoder = TransformerDecoder(config, tokens=shared, dtype=policy, name="decoder")

    def build(self, input_shape: Any = None) -> None:
        """Create the variables.

        Args:
            input_shape: Of the inputs of a call. Only an unbuilt `encoder` whose variables depend on its input needs
                it.
        """
        self._build_encoder(None if input_shape is None else input_shape["source"])
        self.decoder.build()

    def _build_encoder(self, source_shape: Any) -> None:
        if self.encoder.built:
            return
        if isinstance(self.encoder, ConfiguredModel):
            self.encoder.build()
        elif source_shape is None:
            raise ValueError(
                "`encoder` must be built before the model is built without data. "
                f"Received: encoder={self.encoder!r}"
            )
        else:
            # Not every layer creates all its variables in `build`, so it is called with a symbolic tensor.
            self.encoder(keras.KerasTensor(source_shape, self.encoder.compute_dtype))

    def source_mask(self, source: Any, encoded: Any = None) -> Any:
        """Return (B, S) booleans, True = a real position; None if all are.

        Args:
            source: For tokens (B, S), padding is masked.
            encoded: The result of `encode` for it: a custom `encoder` masks by the Keras mask of its output.
        """
        if isinstance(self.encoder, TransformerEncoder):
            return self.encoder.source_mask(source)
        return implicit_mask(encoded)

    def encode(
        self, source: Any, training: bool | None = None, return_attention_scores: bool = False
    ) -> Any:
        """Run the encoder; see `TransformerEncoder` for arguments and result."""
        arguments = {"training": training}
        scoring = "return_attention_scores" in inspect.signature(self.encoder.call).parameters
        if scoring:
            arguments["return_attention_scores"] = return_attention_scores
        result = self.encoder(source, **arguments)
        encoded, scores = result if scoring and return_attention_scores else (result, [])
        shape = tuple(getattr(encoded, "shape", ()))
        if not agree(shape, (None, None, self.config.width)) or shape[-1] is None:
            raise ValueError(
                f"`encoder` must give (B, S, D) with D = {self.config.width}, the config's `width`. "
                f"Received: {self.encoder.name!r}, which gives {shape or type(encoded).__name__}"
            )
        return (encoded, scores) if return_attention_scores else encoded

    def decode(
        self,
        target: Any,
        encoded: Any = None,
        source_mask: Any = None,
        caches: Any = None,
        cache_index: Any = None,
        **arguments: Any,
    ) -> Any:
        """Run the decoder on a target, or on the tokens from `cache_index` on; see `TransformerDecoder`."""
        arguments |= {"source_mask": source_mask, "caches": caches, "cache_index": cache_index}
        return self.decoder(target, encoded, **arguments)

    def make_caches(self, batch_size: Any, length: int, encoded: Any) -> list[Any]:
        """Cache for decoding `length` tokens of `batch_size` targets, one for each layer.

        Args:
            batch_size: Number of targets, a multiple of B.
            length: Number of tokens that they hold.
            encoded: (B, S, D), from `encode`.
        """
        return self.decoder.make_caches(batch_size, length, encoded)

    stream = stream

    # The protocol of `generate`, see `Decodable`.
    def check_source(self, source: Any) -> Any:
        """Return the source as a tensor. heed's encoders check it here, others when they are called."""
        source = getattr(self.encoder, "check_source", ops.convert_to_tensor)(source)
        self._build_encoder((None, *source.shape[1:]))
        return source

    def encode_source(self, source: Any) -> dict[str, Any]:
        """Encode the source: return its states, any mask, and keys and values for each layer's cross-attention."""
        encoded = self.encode(source, training=False)
        mask = self.source_mask(source, encoded)
        memory = {"encoded": encoded, "cross": self.decoder.project(encoded)}
        return memory if mask is None else {**memory, "mask": mask}

    def make_state(self, rows: Any, length: int, memory: Any) -> Any:
        """Return empty caches of the self-attention."""
        return [cache["self"] for cache in self.decoder.make_caches(rows, length)]

    def decode_step(
        self, tokens: Any, index: Any, state: Any, memory: Any, return_alignment: bool = False
    ) -> tuple[Any, ...]:
        """Read tokens, see `Decodable` and `Aligning`."""
        return self.decoder.next_logits(
            tokens, index, state, memory["cross"], memory.get("mask"), return_alignment
        )

    def decode_all(self, tokens: Any, memory: Any, return_alignment: bool = False) -> Any:
        """Return scores of the token after each, see `Decodable` and `Aligning`."""
        return self.decode(
            tokens,
            memory["encoded"],
            memory.get("mask"),
            training=False,
            return_attention_scores="alignment" if return_alignment else False,
        )

    aligns = True

    def make_coverage(self, memory: Any) -> Any:
        """Return the coverage before the first token, see `Aligning`."""
        if "mask" in memory:
            return 1.0 - ops.cast(memory["mask"], "float32")
        return ops.zeros(ops.shape(memory["encoded"])[:2], dtype="float32")

    def call(
        self, inputs: Any, training: bool | None = None, return_attention_scores: bool | str = False
    ) -> Any:
        source, target = check_translation(inputs)
        every = bool(return_attention_scores) and return_attention_scores != "alignment"
        encoded = self.encode(source, training, every)
        scores: dict[str, Any] = {}
        if every:
            encoded, scores["encoder"] = encoded
        result = self.decode(
            target,
            encoded,
            self.source_mask(source, encoded),
            training=training,
            return_attention_scores=return_attention_scores,
        )
        if not every:
            return result
        logits, decoder_scores = result
        return logits, {**scores, **decoder_scores}

    def get_config(self) -> dict[str, Any]:
        own = keras.saving.serialize_keras_object(self.encoder) if self._has_own_encoder else None
        return {**super().get_config(), "encoder": own}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        encoder = keras.saving.deserialize_keras_object(config.get("encoder"), custom_objects)
        return super().from_config({**config, "encoder": encoder}, custom_objects)
