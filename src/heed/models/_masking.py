"""Chooses the tokens that a masked language model must predict, and replaces them."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from heed.models._masked_language_model import MaskedLanguageModelConfig
from heed.number_checks import check_real

# The shares of the chosen tokens that become the mask, and a random token.
_MASKED, _RANDOM = 0.8, 0.1


def mask_tokens(
    tokens: Any,
    config: MaskedLanguageModelConfig,
    *,
    rate: float = 0.15,
    seed: Any = None,
) -> tuple[Any, Any, Any]:
    """Hide tokens as BERT does.

    Of the n ordinary tokens of a row, it chooses `round(rate n)`, at least one. 80 % of them become `config.mask_id`,
    10 % a random ordinary token, and 10 % stay, so the model cannot see which tokens count. Special tokens, padding
    included, are never chosen and never inserted.

    `fit` takes the three results, and a `map` of tf.data may return them:
    `dataset.map(lambda row: mask_tokens(row, config, seed=generator))`. The weights are 1 or 0; Keras' mean of a loss
    counts all positions unless the loss has `reduction="mean_with_sample_weight"`.

    Args:
        tokens: (..., T) integers, whole rows.
        config: The model's, for its special tokens and its vocabulary.
        rate: Share of the tokens to choose, in (0, 1). Default 0.15.
        seed: An int makes the same choice at every call; a `keras.random.SeedGenerator` makes a new one each time;
            None is Keras' own generator.

    Returns:
        The masked tokens (..., T); the labels, which are `tokens`; and the weights of the labels, (..., T) float32: 1
        where a token was chosen. Tokens and labels are int32.

    Raises:
        ValueError: If `tokens` are not integers with an axis, or `rate` is not in (0, 1).
        TypeError: If `config` is another one.

    Source:
        Devlin et al. 2019, "BERT", section 3.1 (task 1).

    Example:
        >>> import numpy as np
        >>> from heed.models import MaskedLanguageModelConfig, mask_tokens
        >>> config = MaskedLanguageModelConfig(vocabulary_size=100)
        >>> tokens = np.array([[1, *range(10, 30), 2, 0, 0]])
        >>> masked, labels, weights = (np.asarray(x)[0] for x in mask_tokens(tokens, config, seed=1))
        >>> int(weights.sum()), bool((masked == labels)[weights == 0].all())
        (3, True)
    """
    if not isinstance(config, MaskedLanguageModelConfig):
        raise TypeError(
            f"`config` must be a MaskedLanguageModelConfig. Received: config={config!r}"
        )
    rate = check_real("rate", rate, least=0, most=1, exclusive=True)
    tokens = ops.convert_to_tensor(tokens)
    if not len(tokens.shape) or "int" not in keras.backend.standardize_dtype(tokens.dtype):
        raise ValueError(
            "`tokens` must be integers of shape (..., T). Received: "
            f"tokens.shape={tuple(tokens.shape)}, tokens.dtype={tokens.dtype}"
        )
    tokens = ops.cast(tokens, "int32")
    # One draw for all three: two draws with the same int as the seed would give the same numbers.
    uniform = keras.random.uniform((3, *ops.shape(tokens)), seed=seed)
    order, fate, token = ops.unstack(uniform, 3)

    special = ops.any(ops.stack([ops.equal(tokens, one) for one in config.special_ids]), axis=0)
    count = ops.sum(ops.cast(ops.logical_not(special), "float32"), axis=-1, keepdims=True)
    wanted = ops.maximum(ops.round(rate * count), 1.0)
    rank = ops.argsort(ops.argsort(ops.where(special, 2.0, order), axis=-1), axis=-1)
    chosen = ops.logical_and(ops.cast(rank, "float32") < wanted, ops.logical_not(special))

    changed = ops.where(fate < _MASKED, config.mask_id, _ordinary_token(token, config))
    changed = ops.where(fate < _MASKED + _RANDOM, changed, tokens)
    return ops.where(chosen, changed, tokens), tokens, ops.cast(chosen, "float32")


def _ordinary_token(uniform: Any, config: MaskedLanguageModelConfig) -> Any:
    """Return uniformly distributed ordinary tokens, from numbers in [0, 1)."""
    count = config.vocabulary_size - len(config.special_ids)
    number = ops.minimum(ops.cast(ops.floor(uniform * count), "int32"), count - 1)
    for one in config.special_ids:  # in ascending order: each shifts the ids from its own on by one
        number = number + ops.cast(number >= one, "int32")
    return number
