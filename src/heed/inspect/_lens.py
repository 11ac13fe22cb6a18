"""`logit_lens`: what a model would say if it stopped after each of its layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.inspect import _names
from heed.inspect._residual import to_floats
from heed.inspect._row_statistics import Floats
from heed.inspect._run import ModelCall, check_layers
from heed.inspect._stack import run_stack
from heed.ops.backends import current


@dataclass(frozen=True)
class Lens:
    """The result of `logit_lens`.

    Attributes:
        logits: by the name of a place, the outputs of the model if the stream there were that of its last layer:
            (B, t, V), or of a classifier (B, V).
        positions: the positions t; None of a classifier.
    """

    logits: Mapping[str, Floats]
    positions: tuple[int, ...] | None

    def top(self, count: int = 5) -> dict[str, tuple[NDArray[np.int64], Floats]]:
        """Return the likeliest tokens and their probabilities, both (B, t, count), by place, the likeliest first."""
        found = {}
        for name, x in self.logits.items():
            ids = np.argsort(-x, axis=-1, kind="stable")[..., :count]
            found[name] = ids, np.take_along_axis(_softmax(x), ids, axis=-1)
        return found

    def rank(self, token: int) -> dict[str, NDArray[np.int64]]:
        """Return how many tokens are likelier than `token`, (B, t), by place."""
        width = next(iter(self.logits.values())).shape[-1]
        token = _names.check_index("token", token, width)
        return {name: (x > x[..., token : token + 1]).sum(-1) for name, x in self.logits.items()}

    def __repr__(self) -> str:
        return f"<Lens of {len(self.logits)} places: {', '.join(self.logits)}>"


def logit_lens(
    model: Any,
    inputs: Any,
    *,
    layers: Sequence[str] | None = None,
    positions: Sequence[int] | None = None,
    call_arguments: Mapping[str, Any] | None = None,
) -> Lens:
    """Compute the logits from the residual stream after each layer, with the model's own final norm and head.

    The model runs once; then only what surrounds its blocks runs again for each layer, with the stream of this layer in
    place of the last one. The lens at the last layer is the output of the model, bit for bit. Of an encoder-decoder
    model the layers are those of the decoder.

    Args:
        model: as for `capture`, with one output, its logits: such as `GPT2CausalLM`, no backbone.
        inputs, call_arguments: as for `capture`.
        layers: names of blocks or places, as "layer_1" or "layer_1/output". Default: the input of the first block, and
            the output of each.
        positions: which positions of the outputs to keep, integers in [0, T). Default: all.

    Returns:
        A `Lens`, with `top` and `rank`.

    Raises:
        ValueError: if the model has no blocks that heed knows, or several outputs, or if a layer or position does not
            exist.
        TypeError, RuntimeError: as `capture`.

    Numerics: an early stream was not trained to be read by the final head, so that its tokens may mislead.

    Source: nostalgebraist, "Interpreting GPT: the logit lens", 2020.

    >>> import numpy as np
    >>> from heed import models
    >>> config = models.LanguageModelConfig(vocabulary_size=20, layers=2, num_heads=2, width=8, feed_forward_width=16)
    >>> model = models.LanguageModel(config)
    >>> tokens = np.array([[3, 7, 7, 5]])
    >>> lens = logit_lens(model, tokens)
    >>> lens
    <Lens of 3 places: layer_0/input, layer_0/output, layer_1/output>
    >>> bool(np.all(lens.logits["layer_1/output"] == model(tokens)))
    True
    """
    check_layers(layers)
    stack = run_stack(ModelCall(model, inputs, call_arguments))
    if not hasattr(stack.outputs, "shape"):
        raise ValueError(
            "`model` must return one tensor, its logits. "
            f"Received: {model.name!r}, which returns a {type(stack.outputs).__name__}"
        )
    streams = {f"{stack.blocks[0].name}/input": stack.blocks[0].input}
    streams |= {f"{block.name}/output": block.output for block in stack.blocks}
    short = dict(zip(streams, _names.shorten_names(list(streams)), strict=True))
    _names.check_names("layers", layers or (), list(streams), "blocks")
    shape = tuple(stack.outputs.shape)
    length = shape[1] if len(shape) > 2 else 0
    chosen = _names.check_indices("positions", positions, length, f" of outputs of shape {shape}")
    last = f"{stack.blocks[-1].name}/output"
    logits = {}
    for name, x in streams.items():
        if layers is not None and not any(_names.selects(given, name) for given in layers):
            continue
        with current().without_gradients():
            found = to_floats(stack.run_head(last, x))
        logits[short[name]] = found if chosen is None else np.array(found[:, list(chosen)])
    return Lens(logits, None if len(shape) < 3 else chosen or tuple(range(length)))


def _softmax(x: Floats) -> Floats:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
