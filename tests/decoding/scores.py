"""Scores of given targets, by the call of the model."""

import numpy as np


def allowed_log_probabilities(model, source, tokens):
    """Return log p (B, L, vocabulary) of the token at each place of targets (B, L), without padding and start."""
    targets = np.pad(np.asarray(tokens)[:, :-1], ((0, 0), (1, 0)), constant_values=1)
    logits = np.asarray(model({"source": source, "target": targets})).astype("float64")
    logits[..., [0, 1]] = -np.inf
    return logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))


def log_probabilities(model, source, tokens, given=0):
    """Return (B,): log p of the tokens of each target after `given` ones."""
    logs = allowed_log_probabilities(model, source, tokens)
    own = np.take_along_axis(logs, tokens[..., None], axis=-1)[..., 0]
    written = np.arange(tokens.shape[1]) >= given
    return np.where(written & (tokens != 0), own, 0).sum(axis=1)
