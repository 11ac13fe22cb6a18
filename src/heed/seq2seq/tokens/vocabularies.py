"""The vocabularies of own text: learned, or given as files."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from heed.config import one_of, optional
from heed.errors import TaskError, UsageError, convert_value_errors
from heed.seq2seq.tokens.byte_pairs import read_tokenizer
from heed.seq2seq.tokens.tokenizer import UNITS, Tokenizer


class Vocabularies:
    """The user's choices about the tokens of both sides.

    Args:
        kind: "separate" (or None): each side has its own; "shared": both have the same.
        size: the most tokens of each; None: chosen for the text, see `Tokenizer.train`.
        unit: see `Tokenizer.train`; None: a subword.
        source, target: tokenizers, or sentencepiece models, to use as they are; None: learned from the text. The
            source's serves both sides if they share it.

    Raises:
        TaskError: if a file cannot be read or is not a model, or an option conflicts with a given model.
    """

    def __init__(
        self,
        kind: str | None = None,
        size: int | None = None,
        unit: str | None = None,
        source: Tokenizer | Path | str | None = None,
        target: Tokenizer | Path | str | None = None,
    ) -> None:
        with convert_value_errors():
            optional(one_of(("separate", "shared"))).check("vocabulary", kind)
            optional(UNITS).check("unit", unit)
        self._size, self._unit = size, unit
        self._shared = kind == "shared"
        self._tokenizers: tuple[Tokenizer, Tokenizer] | None = None
        if source is None and target is None:
            return
        for name, value in (("vocabulary_size", size), ("unit", unit)):
            if value is not None:
                raise UsageError(f"`{name}` is that of the given tokenizer: leave it out")
        if source is None:
            raise UsageError("`target_tokenizer` needs a `source_tokenizer` too")
        if target is None and not self._shared:
            raise UsageError(
                "`source_tokenizer` needs a `target_tokenizer` too, or one serves both sides: "
                "--vocabulary shared"
            )
        first = _open_tokenizer(source)
        second = first if target is None else _open_tokenizer(target)
        self._tokenizers = first, second
        if self._shared and first.model != second.model:
            raise UsageError("a shared vocabulary has one tokenizer: leave out `target_tokenizer`")

    @property
    def unit(self) -> str:
        """The unit of the source's tokens."""
        return self._unit or (self._tokenizers[0].unit if self._tokenizers else "subword")

    def make(self, sources: Sequence[str], targets: Sequence[str]) -> tuple[Tokenizer, Tokenizer]:
        """Return the tokenizers of source and target, learned from these sentences if none are given."""
        if self._tokenizers is not None:
            return self._tokenizers
        if self._shared:
            one = Tokenizer.train(itertools.chain(sources, targets), self._size, self.unit)
            return one, one
        source, target = (Tokenizer.train(x, self._size, self.unit) for x in (sources, targets))
        return source, target


def _open_tokenizer(source: Tokenizer | Path | str) -> Tokenizer:
    if isinstance(source, Tokenizer):
        return source
    path = Path(source)
    try:
        return read_tokenizer(path.read_bytes())
    except OSError as error:
        raise TaskError(f"cannot read {path}: {error.strerror or error}") from None
    except TaskError as error:
        raise TaskError(f"{path}: {error}") from None
