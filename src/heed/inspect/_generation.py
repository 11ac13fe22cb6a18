"""`capture_generation`: the attention over a text that a model of KerasHub writes, with its tokens."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from heed.byte_pairs import name_token
from heed.inspect._capture import Capture
from heed.inspect._page import Page, page
from heed.inspect._run import Selection, capture
from heed.patching import ContextPatch, Function


@dataclasses.dataclass(frozen=True, repr=False)
class Generation:
    """A text that a model wrote, and the attention of the model over it.

    Args:
        text: the result of `generate`.
        tokens: T labels of the tokens of the prompt and of the text. The query of row t has read token t, and the model
            writes token t + 1 with it.
        source_tokens: S labels of the encoder's tokens; None for a model without one.
        capture: the weights.
    """

    text: str
    tokens: tuple[str, ...]
    source_tokens: tuple[str, ...] | None
    capture: Capture

    @property
    def layer_tokens(self) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        """The labels of rows and columns by layer name, as `page` takes them."""
        source = self.tokens if self.source_tokens is None else self.source_tokens
        sides = {
            "self": (source, source),
            "causal": (self.tokens, self.tokens),
            "cross": (self.tokens, source),
        }
        return {name: sides[kind] for name, kind in self.capture.kinds.items()}

    def page(self, path: str | os.PathLike[str] | None = None, *, title: str | None = None) -> Page:
        """Writes a page of every head, see `heed.inspect.page`. The default title is the text."""
        title = self.text if title is None else title
        return page(self.capture, self.layer_tokens, path, title=title)

    def __repr__(self) -> str:
        source = "" if self.source_tokens is None else f" from {len(self.source_tokens)}"
        return f"<Generation of {len(self.tokens)} tokens{source}: {self.text!r}\n{self.capture}>"


def capture_generation(
    model: Any,
    prompt: str | Mapping[str, str],
    *,
    max_length: int | None = None,
    stop_token_ids: Any = "auto",
    layers: Sequence[str] | None = None,
    heads: Selection = None,
    rows: Selection = None,
    size: int | None = 512,
) -> Generation:
    """Lets a model of KerasHub write a text, and returns its attention over the text, with the tokenizer's labels.

    Calls `model.generate(prompt)`, with the sampler of `model.compile`, accelerated or not, and then runs the model
    once over what it has read and written. A causal model attends there as it did while it wrote, up to rounding.

    Args:
        model: a `keras_hub.models.CausalLM` or `Seq2SeqLM` with its preprocessor, such as GPT-2, Llama, BART or T5.
        prompt: one text; of a `Seq2SeqLM` the source, or a dict of "encoder_text" and "decoder_text".
        max_length, stop_token_ids: as for `generate`.
        layers, heads, rows, size: as for `capture`.

    Returns:
        A `Generation`: the text, the tokens, and the `Capture`. `.page(path)` writes the page.

    Raises:
        TypeError: if `model` has no `generate` of KerasHub's, or `prompt` is not one text.
        ValueError: if `model` has no preprocessor, or as `capture`.
        RuntimeError: as `capture`.

    Example:
        >>> model = keras_hub.models.CausalLM.from_preset("gpt2_base_en")  # doctest: +SKIP
        >>> capture_generation(model, "The cat", max_length=20).page("cat.html")  # doctest: +SKIP
    """
    preprocessor = _check_model(model)
    texts = list(prompt.values()) if isinstance(prompt, Mapping) else [prompt]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"`prompt` must be one text, or a dict of texts. Received: {prompt!r}")
    seen: dict[str, Any] = {}
    with _watch_preprocessor(preprocessor, seen):
        text = model.generate(
            dict(prompt) if isinstance(prompt, Mapping) else prompt,
            max_length=max_length,
            stop_token_ids=stop_token_ids,
        )
    inputs = _trim(seen)
    found = capture(model.backbone, inputs, layers=layers, heads=heads, rows=rows, size=size)
    label = functools.partial(label_tokens, preprocessor.tokenizer)
    if "token_ids" in inputs:
        return Generation(text, label(inputs["token_ids"][0]), None, found)
    source, target = (inputs[f"{side}_token_ids"][0] for side in ("encoder", "decoder"))
    return Generation(text, label(target), label(source), found)


def _check_model(model: Any) -> Any:
    """Returns the preprocessor of a model of KerasHub."""
    if not all(hasattr(model, name) for name in ("generate", "backbone", "preprocessor")):
        raise TypeError(
            "`model` must be a CausalLM or Seq2SeqLM of KerasHub, which has `generate`. "
            f"Received: {type(model).__name__}"
        )
    if model.preprocessor is None:
        raise ValueError(
            "`model` must have a preprocessor, whose tokenizer reads the prompt and names the tokens. "
            "Received: model.preprocessor=None"
        )
    return model.preprocessor


@contextlib.contextmanager
def _watch_preprocessor(preprocessor: Any, seen: dict[str, Any]) -> Iterator[None]:
    """Collects the arrays that `generate` gets from the preprocessor and gives back to it, by name."""

    def make_before(original: Function) -> Function:
        @functools.wraps(original)
        def observe(*args: Any, **kwargs: Any) -> Any:
            inputs = original(*args, **kwargs)
            seen.update(inputs)
            return inputs

        return observe

    def make_after(original: Function) -> Function:
        @functools.wraps(original)
        def observe(self: Any, outputs: Any) -> Any:
            seen.update(outputs)
            return original(self, outputs)

        return observe

    kind = type(preprocessor)
    with (
        ContextPatch(kind, "generate_preprocess", make_before).active(),
        ContextPatch(kind, "generate_postprocess", make_after).active(),
    ):
        yield


def _trim(seen: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays (1, T) without padding."""
    inputs: dict[str, Any] = {}
    for prefix in ("", "encoder_", "decoder_"):
        names = [f"{prefix}token_ids", f"{prefix}padding_mask"]
        if names[0] in seen:
            ids, mask = (np.array(seen[name]) for name in names)
            length = max(1, int(np.sum(mask[0] != 0)))
            inputs |= {names[0]: ids[:1, :length], names[1]: mask[:1, :length].astype("int32")}
    return inputs


def label_tokens(tokenizer: Any, ids: Iterable[int]) -> tuple[str, ...]:
    """The names of tokens of KerasHub's, readable: "▁" stands for a space, as in SentencePiece.

    Args:
        tokenizer: of KerasHub.
        ids: token ids; one that the tokenizer does not have is named by its number.
    """
    by_bytes = any(cls.__name__ == "BytePairTokenizer" for cls in type(tokenizer).__mro__)

    def name(i: int) -> str:
        try:
            token = str(tokenizer.id_to_token(i))
        except (ValueError, IndexError):
            return str(i)
        return name_token(token) if by_bytes else token

    return tuple(name(int(i)) for i in ids)
