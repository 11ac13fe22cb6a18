"""The decoder of a Transformer; without cross-attention, a language model."""

from __future__ import annotations

import functools
from typing import Any

import keras
from keras import ops

from heed.layers import TokenEmbedding, TransformerDecoderLayer
from heed.layers.attend import pack_outputs
from heed.models._model import check_call_tokens, make_output, score_tokens
from heed.models._stack import Stack
from heed.models.config import TransformerConfig
from heed.ops.dispatch import first_position


@keras.saving.register_keras_serializable(package="heed")
class TransformerDecoder(Stack):
    """Scores the token that follows each token, given an encoded sequence.

    Args:
        config: Sizes and choices; those for the encoder are ignored.
        cross_attention: Whether the layers attend to an encoded sequence. False gives a language
            model.
        tokens: A `TokenEmbedding` to share, or None for a new one.
        **kwargs: `name`, `dtype`, as for every Keras model.

    Call arguments:
        target: (B, T) integers. Token t sees the tokens up to t.
        encoded: (B, S, D) floats, for the cross-attention. Not needed with caches, which hold its projections.
        source_mask: (B, S) booleans, True = a token, False = padding; None attends to all of
            `encoded`.
        caches: From `make_caches` or the previous call, one for each layer.
        cache_index: Position of the first of the T new tokens, an int or an integer tensor ().
        return_attention_scores: Whether to return the attention weights too; "alignment" computes only those of one
            cross-attention and returns the mean over its heads.
        training: Whether dropout is on.

    Returns:
        Logits (B, T, target_vocabulary_size), float32; with scores or caches the tuple `(logits[,
        scores][, caches])`. `scores` is `{"decoder": [(B, N, T, T) ...], "cross": [(B, N, T, S)
        ...]}`; with "alignment" it is (B, T, S) float32, from the last layer but one (or the only one), before dropout.

    Source:
        Vaswani et al. 2017, section 3.1. Garg et al. 2019, section 4.1 (the layer that aligns best).

    Example:
        >>> import numpy as np
        >>> from heed.models import TransformerConfig, TransformerDecoder
        >>> config = TransformerConfig(20, 30, width=8, num_heads=2, feed_forward_width=16)
        >>> language_model = TransformerDecoder(config, cross_attention=False)
        >>> tuple(language_model(np.array([[1, 3, 4]])).shape)
        (1, 3, 30)
    """

    def __init__(
        self,
        config: TransformerConfig,
        cross_attention: bool = True,
        tokens: TokenEmbedding | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(config, **kwargs)
        self.cross_attention = bool(cross_attention)
        self.make_parts(
            functools.partial(TransformerDecoderLayer, cross_attention=self.cross_attention),
            config.decoder_layers,
            config.target_vocabulary_size,
            tokens,
            bidirectional=False,
        )
        size = config.target_vocabulary_size
        self.output_layer = make_output(config, size, self.dtype_policy)

    def build(self, input_shape: Any = None) -> None:
        super().build()
        if self.output_layer is not None:
            self.output_layer.build((None, None, self.config.width))

    def make_caches(self, batch_size: Any, length: int, encoded: Any = None) -> list[Any]:
        """Return empty caches, one for each layer, see `TransformerDecoderLayer.make_cache`."""
        if not self.built:
            self.build()
        return [block.make_cache(batch_size, length, encoded) for block in self.blocks]

    def project(self, encoded: Any) -> list[Any]:
        """Return the keys and values (B, S, K, .) of `encoded` (B, S, D), for the cross-attention of each layer."""
        return [block.encoded_attention.project_cache(encoded) for block in self.blocks]

    def hidden(
        self,
        target: Any,
        encoded: Any = None,
        source_mask: Any = None,
        caches: Any = None,
        cache_index: Any = None,
        return_attention_scores: bool | str = False,
        training: bool | None = None,
    ) -> tuple[Any, dict[str, list[Any]], list[Any] | None]:
        """Return the input of the output layer, (B, T, D), with the scores and the new caches.

        The arguments are those of a call. The lists of scores are empty unless requested; with "alignment" they hold
        those of one cross-attention.
        """
        aligning = return_attention_scores == "alignment"
        if aligning and not self.cross_attention:
            raise ValueError(
                '`return_attention_scores` can be "alignment" where there is cross-attention. '
                "Received: cross_attention=False"
            )
        target = check_call_tokens("target", target, self.config.target_vocabulary_size)
        length = ops.shape(target)[1]
        start = first_position(length) if caches is None else cache_index
        key_length = length if caches is None else ops.shape(caches[0]["self"]["key"])[1]
        arguments = self.embedding.attention_arguments(length, key_length, start)
        x = self.embedding(target, start_index=start, training=training)
        mask = None if source_mask is None else source_mask[:, None, None, :]
        scores: dict[str, list[Any]] = {"decoder": [], "cross": []}
        new_caches: list[Any] | None = None if caches is None else []
        for index, block in enumerate(self.blocks):
            request: bool | str = return_attention_scores
            if aligning:
                request = "cross" if index == self.alignment_layer else False
            result = block(
                x,
                encoded,
                cross_attention_mask=mask,
                cache=None if caches is None else caches[index],
                cache_index=cache_index,
                return_attention_scores=request,
                training=training,
                **arguments,
            )
            x, *rest = result if isinstance(result, tuple) else (result,)
            for name, key in (("decoder", "self"), ("cross", "cross")):
                if request and key in rest[0]:
                    scores[name].append(rest[0][key])
            if new_caches is not None:
                new_caches.append(rest[-1])
        if self.final_norm is not None:
            x = self.final_norm(x)
        return x, scores, new_caches

    @property
    def alignment_layer(self) -> int:
        """The layer whose cross-attention aligns best (Garg et al. 2019): the last but one, or the only one."""
        return max(0, len(self.blocks) - 2)

    def next_logits(
        self,
        tokens: Any,
        index: Any,
        state: Any,
        cross: Any = None,
        source_mask: Any = None,
        return_alignment: bool = False,
    ) -> tuple[Any, ...]:
        """Return one step of decoding.

        Args:
            tokens: (B, T) integers, the tokens from `index` on.
            index: (), an int or an integer tensor.
            state: The entries "self" of caches, one for each layer.
            cross: Their entries "cross", where there is cross-attention.
            source_mask: As in a call.
            return_alignment: Whether to return the alignment too.

        Returns:
            Scores of the token after the last one, (B, target_vocabulary_size) float32, and the new state; with
            `return_alignment=True` the alignment (B, T, S) float32 after them.
        """
        caches: Any = [{"self": own} for own in state]
        for cache, encoded in zip(caches, cross or (), strict=False):
            cache["cross"] = encoded
        hidden, scores, new = self.hidden(
            tokens,
            source_mask=source_mask,
            caches=caches,
            cache_index=index,
            training=False,
            return_attention_scores="alignment" if return_alignment else False,
        )
        logits = ops.squeeze(self.logits(ops.expand_dims(hidden[:, -1], 1)), axis=1)
        found = logits, [cache["self"] for cache in new or ()]
        return (*found, _mean_of_heads(scores["cross"][0])) if return_alignment else found

    def logits(self, hidden: Any) -> Any:
        """Return scores of each token, (B, T, D) to (B, T, target_vocabulary_size), float32."""
        return self.bound(score_tokens(self.output_layer, self.embedding.tokens, hidden))

    def bound(self, scores: Any) -> Any:
        """Return float32 scores of the output layer within the config's `logit_soft_cap`."""
        cap = self.config.logit_soft_cap
        return scores if cap is None else cap * ops.tanh(scores / cap)

    def call(
        self,
        target: Any,
        encoded: Any = None,
        source_mask: Any = None,
        caches: Any = None,
        cache_index: Any = None,
        return_attention_scores: bool | str = False,
        training: bool | None = None,
    ) -> Any:
        hidden, found, caches = self.hidden(
            target, encoded, source_mask, caches, cache_index, return_attention_scores, training
        )
        scores: Any = found if return_attention_scores else None
        if return_attention_scores == "alignment":
            scores = _mean_of_heads(found["cross"][0])
        return pack_outputs(self.logits(hidden), scores, caches)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "cross_attention": self.cross_attention}


def _mean_of_heads(scores: Any) -> Any:
    """Map (B, N, T, S) to (B, T, S) float32."""
    return ops.mean(ops.cast(scores, "float32"), axis=1)
