"""One layer of a Transformer encoder and one of a decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from heed.layers import _score_functions
from heed.layers._base_layers import AttentionLayer, SequenceLayer
from heed.layers._feed_forward import FeedForward
from heed.layers._multi_head_attention import MultiHeadAttention
from heed.layers.attend import ScoresRequest, pack_outputs
from heed.layers.dropout import Dropout
from heed.layers.flat_dense import clone_initializer
from heed.layers.layer_config import (
    LayerConfig,
    describes_options,
    options_of,
    pop_options,
    takes_options,
)
from heed.layers.masks import check_positions, check_scores, implicit_mask
from heed.layers.normalization import make_normalization
from heed.number_checks import check_integer


def residual_step(
    x: Any,
    read: Any,
    part: Callable[[Any], Any],
    norm: Any,
    post_norm: Callable[[Any], Any] | None,
    add: Callable[[Any, Any], Any],
    norm_first: bool,
) -> tuple[Any, ...]:
    """Add what a part of a Transformer layer makes of `read` to x; return the sum and the other outputs of the part.

    The part returns a sequence (B, T, D), or a tuple that begins with one. `norm` normalises what it reads, or with
    `norm_first=False` the sum; `post_norm`, if there is one, what is added; `add` adds that to x, after dropout.
    """
    result = part(norm(read) if norm_first else read)
    change, *rest = result if isinstance(result, (tuple, list)) else (result,)
    if post_norm is not None:
        change = post_norm(change)
    x = add(x, change)
    return (x if norm_first else norm(x)), *rest


class _TransformerLayer(SequenceLayer, AttentionLayer):
    """The base of both layers: their arguments, their parts, and the step around each part."""

    @takes_options()
    def __init__(
        self,
        num_heads: int,
        feed_forward_width: int,
        *,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        options = pop_options(kwargs)
        super().__init__(**kwargs)
        options |= {"num_heads": num_heads, "feed_forward_width": feed_forward_width}
        config = LayerConfig(**options)
        for name, value in config.layer_options().items():
            setattr(self, name, value)
        self.activation = keras.activations.get(config.activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.seed = check_integer("seed", seed, least=None, optional=True)

    def _seed(self, part: int) -> int | None:
        return None if self.seed is None else self.seed + part

    def _arguments_of(self, part: str) -> dict[str, Any]:
        """Return the options that a part takes under their own names, and those that every part takes."""
        return {
            **{name: _score_functions.copy(getattr(self, name)) for name in options_of(part)},
            "kernel_initializer": clone_initializer(self.kernel_initializer),
            "bias_initializer": clone_initializer(self.bias_initializer),
            "dtype": self.dtype_policy,
        }

    def _make_attention(
        self, name: str, width: int, source_width: int, part: int, sliding_window: int | None
    ) -> tuple[MultiHeadAttention, keras.layers.Layer, keras.layers.Layer]:
        """Make an attention to a sequence of the source's width, its normalisation and its dropout."""
        if self.key_dim is None and width % self.num_heads:
            raise ValueError(
                "`num_heads` must divide the width of the inputs (or `key_dim` be given). "
                f"Received: num_heads={self.num_heads}, inputs.shape=(..., {width})"
            )
        attention = MultiHeadAttention(
            key_dim=self.key_dim or width // self.num_heads,
            dropout=self.attention_dropout,
            output_shape=width,
            sliding_window=sliding_window,
            seed=self._seed(part),
            name=name,
            **self._arguments_of("attention"),
        )
        attention.build((None, None, width), (None, None, source_width))
        dropout = self._make_dropout(part + 1, f"{name}_output_dropout")
        return attention, self._make_norms(width, name), dropout

    def _make_norm(self, width: int, name: str) -> keras.layers.Layer:
        norm = make_normalization(self, dtype=self.dtype_policy, name=name)
        norm.build((None, None, width))
        return norm

    def _make_norms(self, width: int, part: str) -> keras.layers.Layer:
        """Make the normalisation of a part, and that of what it adds."""
        if self.post_norms:
            setattr(self, f"{part}_post_norm", self._make_norm(width, f"{part}_post_norm"))
        return self._make_norm(width, f"{part}_norm")

    def post_norm(self, norm: keras.layers.Layer) -> keras.layers.Layer | None:
        """Return the normalisation of what a part adds, by that of the part; None without `post_norms`."""
        return getattr(self, f"{norm.name.removesuffix('_norm')}_post_norm", None)

    def _make_dropout(self, part: int, name: str) -> Dropout:
        return Dropout(self.dropout, seed=self._seed(part), dtype=self.dtype_policy, name=name)

    def _build_feed_forward(self, width: int) -> None:
        self.feed_forward = FeedForward(
            self.feed_forward_width,
            seed=self._seed(0),
            name="feed_forward",
            **self._arguments_of("feed_forward"),
        )
        self.feed_forward.build((None, None, width))
        self.feed_forward_norm = self._make_norms(width, "feed_forward")
        self.feed_forward_dropout = self._make_dropout(1, "feed_forward_dropout")

    def _step(
        self,
        x: Any,
        part: Callable[[Any], Any],
        norm: Any,
        dropout: Any,
        training: bool | None,
        read: Any = None,
    ) -> tuple[Any, ...]:
        """Add a part to the sequence; return the sum and the other outputs of the part, which reads `read`, or x."""

        def add(x: Any, change: Any) -> Any:
            return dropout.add(x, change, training)

        read = x if read is None else read
        return residual_step(x, read, part, norm, self.post_norm(norm), add, self.norm_first)

    def _feed_forward_step(self, x: Any, inputs: Any, training: bool | None) -> Any:
        def part(x: Any) -> Any:
            return self.feed_forward(x, training=training)

        norm, dropout = self.feed_forward_norm, self.feed_forward_dropout
        return self._step(x, part, norm, dropout, training, inputs if self.parallel else x)[0]


@keras.saving.register_keras_serializable(package="heed")
@describes_options
class TransformerEncoderLayer(_TransformerLayer):
    """Self-attention and a feed-forward part, each with a residual connection and a normalisation.

    Pre-norm (`norm_first=True`): `x = x + attention(norm(x)); x = x + feed_forward(norm(x))`.
    Post-norm: `x = norm(x + attention(x)); x = norm(x + feed_forward(x))`.
    With `post_norms`, another normalisation of what is added: `x = x + post_norm(attention(norm(x)))` (Gemma 2).
    With `parallel`, both parts read the input: `x + attention(norm(x)) + feed_forward(other_norm(x))` (GPT-NeoX).

    Args:
        num_heads: Number of query heads N, a positive integer.
        feed_forward_width: Hidden width of the feed-forward part, a positive integer.
        kernel_initializer: Initializer of the kernels. Default "glorot_uniform".
        bias_initializer: Initializer of the biases. Default "zeros".
        seed: Integer seed of everything that is dropped, or None.
        {options}
        **kwargs: `name`, `dtype`, `trainable`, as for every Keras layer.

    Call arguments:
        inputs: (B, T, D) floats.
        mask: (B, T) booleans, True = a token, False = padding. Default: the Keras mask of `inputs`.
        attention_mask: A `heed.Mask` or booleans (T, T), (B, T, T) or (B, N, T, T), True = attend.
        position_bias: Floats broadcastable to (B, N, T, T), added to the scores.
        alibi_slopes: (N,) floats, see `heed.ops.alibi_slopes`.
        rotary_positions: (T,) or (B, T) integers: queries and keys are rotated by these positions.
        use_causal_mask: Whether a token sees only itself and those before it. Default False.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether dropout is on.

    Returns:
        (B, T, D), with `return_attention_scores=True` the pair of it and the weights (B, N, T, T).

    Raises:
        ValueError: If an argument is out of its range, or N does not divide D and `key_dim` is
            not given.

    Source:
        Vaswani et al. 2017, section 3.1 (d_model = D, h = N, d_k = H, d_v = V); Xiong et al. 2020
        (pre-norm).

    Example:
        >>> import numpy as np
        >>> layer = TransformerEncoderLayer(num_heads=2, feed_forward_width=32)
        >>> y, scores = layer(np.zeros((3, 5, 8), "float32"), return_attention_scores=True)
        >>> tuple(y.shape), tuple(scores.shape)
        ((3, 5, 8), (3, 2, 5, 5))
    """

    def build(self, input_shape: Any) -> None:
        width = input_shape[-1]
        self.attention, self.attention_norm, self.attention_dropout_layer = self._make_attention(
            "attention", width, width, 2, self.sliding_window
        )
        self._build_feed_forward(width)

    def call(
        self,
        inputs: Any,
        mask: Any = None,
        attention_mask: Any = None,
        position_bias: Any = None,
        alibi_slopes: Any = None,
        rotary_positions: Any = None,
        use_causal_mask: bool = False,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        mask = check_positions(mask, inputs, "mask")

        def attend(x: Any) -> Any:
            return self.attention(
                x,
                x,
                value_mask=mask,
                attention_mask=attention_mask,
                position_bias=position_bias,
                alibi_slopes=alibi_slopes,
                rotary_positions=rotary_positions,
                use_causal_mask=use_causal_mask,
                return_attention_scores=return_attention_scores,
                training=training,
            )

        x, *scores = self._step(
            inputs, attend, self.attention_norm, self.attention_dropout_layer, training
        )
        return pack_outputs(self._feed_forward_step(x, inputs, training), *scores)


@keras.saving.register_keras_serializable(package="heed")
class TransformerDecoderLayer(_TransformerLayer):
    """Causal self-attention, cross-attention to an encoded sequence, and a feed-forward part.

    Args:
        cross_attention: Whether there is a cross-attention. False gives the layer of a language model.
        *, **kwargs: As for `TransformerEncoderLayer`. `sliding_window` holds for the self-attention only.

    Call arguments:
        inputs: (B, T, D) floats.
        encoded: (B, S, D') floats, for the cross-attention. Not needed with a `cache` that holds it.
        inputs_mask: (B, T) booleans, True = a token. Default: the Keras mask of `inputs`. With a cache it holds for the
            T new tokens and the others count as True, or (B, L) for all.
        encoded_mask: (B, S) booleans, True = a token. Default: the Keras mask of `encoded`.
        attention_mask: `heed.Mask` or booleans for the self-attention, combined with the causal
            mask.
        cross_attention_mask: The same for the cross-attention: (T, S), (B, T, S) or (B, N, T, S).
        position_bias, alibi_slopes, rotary_positions: For the self-attention, as in
            `TransformerEncoderLayer`. With a cache the bias is (1, N, T, L) and the positions are
            those of the T new tokens.
        cache: From `make_cache` or the previous call: `{"self": ..., "cross": ...}`.
        cache_index: Position of the first of the T new tokens in the cache, an int or an integer
            tensor (), at most L - T.
        use_causal_mask: Whether a token sees only itself and those before it. Default True.
        return_attention_scores: Whether to return the attention weights too; "cross" returns only those of the
            cross-attention, before dropout.
        training: Whether dropout is on.

    Returns:
        (B, T, D); with scores or a cache the tuple `(output[, scores][, cache])`. `scores` is
        `{"self": (B, N, T, T or L), "cross": (B, N, T, S)}`, without "cross" where there is none.

    Raises:
        ValueError: If there is cross-attention but neither `encoded` nor a cache of it, or if the
            cache has no room at `cache_index` (in a graph that is tf.errors.InvalidArgumentError).

    Source:
        Vaswani et al. 2017, section 3.1; Xiong et al. 2020 (pre-norm).

    Example:
        >>> import numpy as np
        >>> layer = TransformerDecoderLayer(num_heads=2, feed_forward_width=32)
        >>> tuple(layer(np.zeros((3, 5, 8), "float32"), np.zeros((3, 7, 8), "float32")).shape)
        (3, 5, 8)
    """

    def __init__(
        self,
        num_heads: int,
        feed_forward_width: int,
        *,
        cross_attention: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, feed_forward_width, **kwargs)
        self.cross_attention = bool(cross_attention)

    def build(self, inputs_shape: Any, encoded_shape: Any = None) -> None:
        width = inputs_shape[-1]
        self.self_attention, self.self_attention_norm, self.self_attention_dropout = (
            self._make_attention("self_attention", width, width, 2, self.sliding_window)
        )
        if self.cross_attention:
            source_width = width if encoded_shape is None else encoded_shape[-1]
            self.encoded_attention, self.encoded_attention_norm, self.encoded_attention_dropout = (
                self._make_attention("cross_attention", width, source_width, 4, None)
            )
        self._build_feed_forward(width)

    def make_cache(
        self, batch_size: Any, length: int, encoded: Any = None, dtype: Any = None
    ) -> dict[str, Any]:
        """Return an empty cache for decoding `length` tokens.

        Args:
            batch_size: B, an int or an integer tensor ().
            length: L, the number of tokens the cache holds.
            encoded: (B', S, D'), for the cross-attention; None leaves "cross" out. B' divides B: rows b B / B' ..
                (b + 1) B / B' - 1 of the inputs (the beams of one sentence) read row b.
            dtype: Dtype of the cache. Default: the layer's compute dtype.

        Returns:
            `{"self": {"key": (B, L, K, H), "value": (B, L, K, V)}, "cross": ...}`, in "cross" B'
            for B and S for L.

        Raises:
            ValueError: If the layer is not built.
        """
        self._check_built("make_cache")
        cache = {"self": self.self_attention.make_cache(batch_size, length, dtype)}
        if encoded is not None:
            cache["cross"] = self.encoded_attention.project_cache(encoded)
        return cache

    def call(
        self,
        inputs: Any,
        encoded: Any = None,
        inputs_mask: Any = None,
        encoded_mask: Any = None,
        attention_mask: Any = None,
        cross_attention_mask: Any = None,
        position_bias: Any = None,
        alibi_slopes: Any = None,
        rotary_positions: Any = None,
        cache: Any = None,
        cache_index: Any = None,
        use_causal_mask: bool = True,
        return_attention_scores: bool | str = False,
        training: bool | None = None,
    ) -> Any:
        inputs_mask = check_positions(inputs_mask, inputs, "inputs_mask")
        encoded_mask = check_positions(encoded_mask, encoded, "encoded_mask")
        cross_attention_mask = check_scores(cross_attention_mask, "cross_attention_mask")
        of_self = of_cross = return_attention_scores
        if return_attention_scores == "cross":
            of_self, of_cross = False, ScoresRequest(dropped=False)  # type: ignore[assignment]
        for_self: dict[str, Any] = {
            "return_attention_scores": of_self,
            "training": training,
            "value_mask": inputs_mask,
            "attention_mask": attention_mask,
            "position_bias": position_bias,
            "alibi_slopes": alibi_slopes,
            "rotary_positions": rotary_positions,
        }
        if cache is None:
            for_self["use_causal_mask"] = use_causal_mask
        else:
            for_self |= {"cache": cache["self"], "cache_index": cache_index}
        x, *rest = self._step(
            inputs,
            lambda x: self.self_attention(x, x, **for_self),
            self.self_attention_norm,
            self.self_attention_dropout,
            training,
        )
        if cache is not None:
            cache = {**cache, "self": rest.pop()}
        scores: dict[str, Any] | None = {} if return_attention_scores else None
        if scores is not None and of_self:
            scores["self"] = rest[0]
        if self.cross_attention:
            cached = None if cache is None else cache.get("cross")
            for_cross: dict[str, Any] = {
                "return_attention_scores": of_cross,
                "training": training,
                # A cache carries no mask, so that of `encoded` is passed explicitly.
                "value_mask": implicit_mask(encoded) if encoded_mask is None else encoded_mask,
                "attention_mask": cross_attention_mask,
            }
            x, *rest = self._step(
                x,
                lambda x: self._attend_encoded(x, encoded, cached, **for_cross),
                self.encoded_attention_norm,
                self.encoded_attention_dropout,
                training,
            )
            if scores is not None:
                scores["cross"] = rest[0]
        return pack_outputs(self._feed_forward_step(x, inputs, training), scores, cache)

    def _attend_encoded(self, query: Any, encoded: Any, cached: Any, **arguments: Any) -> Any:
        """Return the outputs of the cross-attention without its cache."""
        if encoded is None and cached is None:
            raise ValueError(
                "`encoded` must be given to a layer with cross-attention, unless `cache` holds its "
                "projection. Received: encoded=None"
            )
        if cached is None:
            return self.encoded_attention(query, encoded, **arguments)
        # Queries do not see each other here: the beams of one sentence become one longer query.
        rows = ops.shape(cached["key"])[0]
        merged = ops.reshape(query, (rows, -1, query.shape[-1]))
        change, *scores, _ = self.encoded_attention(merged, None, cache=cached, **arguments)
        scores = [_of_each_beam(x, ops.shape(query)[1]) for x in scores]
        return ops.reshape(change, ops.shape(query)), *scores

    def compute_output_shape(
        self, inputs_shape: Any, encoded_shape: Any = None
    ) -> tuple[int | None, ...]:
        return tuple(inputs_shape)


def _of_each_beam(scores: Any, length: Any) -> Any:
    """Map (B', N, r T, S), of r concatenated sequences of T queries, to (r B', N, T, S)."""
    _, heads, _, keys = ops.shape(scores)
    by_query = ops.reshape(ops.transpose(scores, (0, 2, 1, 3)), (-1, length, heads, keys))
    return ops.transpose(by_query, (0, 2, 1, 3))
