"""`capture_generation`: the attention over a text that a model of KerasHub writes, with its tokens."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from heed.byte_pairs import name_token
from heed.inspect._capture import Capture
from heed.inspect._names import check_index
from heed.inspect._page import Page, page
from heed.inspect._run import Selection, capture
from heed.patching import ContextPatch, Function, activate

# Of the tokens that a model continues.
_MASKS = ("decoder_padding_mask", "padding_mask")


@dataclasses.dataclass(frozen=True, repr=False)
class Generation:
    """A text that a model wrote, and the attention of the model over it.

    Args:
        text: the result of `generate`.
        tokens: T labels of the tokens of the prompt and of the text. The query of row t has read token t, and the model
            writes token t + 1 with it.
        source_tokens: S labels of the encoder's tokens; None for a model without one.
        capture: the weights.
        inputs: what the model read at last, (1, T) arrays by name, such as "token_ids": for `logit_lens(model, inputs)`
            and `circuit_scores(capture, inputs["token_ids"])`.
        steps: the row of each step, in order; step n wrote the token `tokens[steps[n] + 1]`.
        token_name: returns the label of a token of the vocabulary. Default: its number.
    """

    text: str
    tokens: tuple[str, ...]
    source_tokens: tuple[str, ...] | None
    capture: Capture
    inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    steps: range = range(0)
    token_name: Callable[[int], str] = str

    def step(self, number: int) -> Capture:
        """Return the attention of one step: the row that wrote a token, of the layers that ran in the step.

        The result is a `Capture` of one row, for rows, pictures and measures as those of a run.

        Args:
            number: which step, in [0, len(steps)).

        Raises:
            ValueError: if there is no such step, or its row has not been captured.
            TypeError: if `number` is no integer.
        """
        number = check_index("number", number, len(self.steps), ", the steps of this text")
        names = [name for name, kind in self.capture.kinds.items() if kind != "self"]
        return self.capture.select_row(self.steps[number], names)

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

    def page(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        title: str | None = None,
        step: int | None = None,
        **tables: Any,
    ) -> Page:
        """Write a page of every head, of the whole text or of one step, see `heed.inspect.page`.

        Args:
            path, title: as for `heed.inspect.page`. The default title is the text.
            step: which step, as for `step`. Default: all rows.
            **tables: `scores`, `lens` and `token_name`, as for `heed.inspect.page`. By default a lens names the tokens
                as the axes do.
        """
        title = self.text if title is None else title
        seen = self.capture if step is None else self.step(step)
        labels = {name: self.layer_tokens[name] for name in seen}
        return page(seen, labels, path, title=title, **{"token_name": self.token_name, **tables})

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
    residual: bool = False,
) -> Generation:
    """Let a model of KerasHub write a text, and return its attention over the text, with the tokenizer's labels.

    Calls `model.generate(prompt)`, with the sampler of `model.compile`, accelerated or not, and then runs the model
    once over what it has read and written. A causal model attends there as it did while it wrote, up to rounding.

    Args:
        model: a `keras_hub.models.CausalLM` or `Seq2SeqLM` with its preprocessor, such as GPT-2, Llama, BART or T5.
        prompt: one text; of a `Seq2SeqLM` the source, or a dict of "encoder_text" and "decoder_text".
        max_length, stop_token_ids: as for `generate`.
        layers, heads, rows, size, residual: as for `capture`.

    Returns:
        A `Generation`: the text, the tokens, and the `Capture`. `.page(path)` writes the page, `.step(n)` is the
        attention of one step.

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
    found = capture(
        model.backbone, inputs, layers=layers, heads=heads, rows=rows, size=size, residual=residual
    )
    label = functools.partial(label_tokens, preprocessor.tokenizer)
    ids = next(inputs[name][0] for name in ("decoder_token_ids", "token_ids") if name in inputs)
    source = inputs.get("encoder_token_ids")
    steps = range(max(1, seen["prompt_length"]) - 1, len(ids) - 1)
    sources = None if source is None else label(source[0])
    return Generation(
        text, label(ids), sources, found, inputs, steps, lambda token: label([token])[0]
    )


def _check_model(model: Any) -> Any:
    """Return the preprocessor of a model of KerasHub."""
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
    """Collect the arrays that `generate` gets from the preprocessor and give back to it, by name."""

    def make_before(original: Function) -> Function:
        def observe(*args: Any, **kwargs: Any) -> Any:
            inputs = original(*args, **kwargs)
            seen.update(inputs)
            read = next(name for name in _MASKS if name in inputs)
            seen["prompt_length"] = _count(inputs[read])
            return inputs

        return observe

    def make_after(original: Function) -> Function:
        def observe(self: Any, outputs: Any) -> Any:
            seen.update(outputs)
            return original(self, outputs)

        return observe

    makers = {"generate_preprocess": make_before, "generate_postprocess": make_after}
    with activate(ContextPatch(type(preprocessor), *one) for one in makers.items()):
        yield


def _trim(seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays (1, T) without padding."""
    inputs: dict[str, Any] = {}
    for prefix in ("", "encoder_", "decoder_"):
        names = [f"{prefix}token_ids", f"{prefix}padding_mask"]
        if names[0] in seen:
            ids, mask = (np.array(seen[name]) for name in names)
            length = max(1, _count(mask))
            inputs |= {names[0]: ids[:1, :length], names[1]: mask[:1, :length].astype("int32")}
    return inputs


def _count(mask: Any) -> int:
    """Return the number of tokens in the first row of a padding mask."""
    return int(np.sum(np.array(mask)[0] != 0))


def label_tokens(tokenizer: Any, ids: Iterable[int]) -> tuple[str, ...]:
    """Return readable names of tokens of KerasHub's: "▁" stands for a space, and an unknown id is its number."""
    by_bytes = any(cls.__name__ == "BytePairTokenizer" for cls in type(tokenizer).__mro__)

    def name(i: int) -> str:
        try:
            token = str(tokenizer.id_to_token(i))
        except (ValueError, IndexError):
            return str(i)
        return name_token(token) if by_bytes else token

    return tuple(name(int(i)) for i in ids)
