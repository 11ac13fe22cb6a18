"""Opens trained runs to translate with, before TensorFlow is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from heed.seq2seq.options.decoding import DecodingOptions
from heed.seq2seq.runs.run_folder import RunFolder
from heed.seq2seq.tensorflow_start import start_tensorflow

if TYPE_CHECKING:
    from heed.seq2seq.translating.translator import Translator


def open_translator(
    path: Path,
    note: Callable[[str], object],
    options: DecodingOptions | None = None,
    ensemble: Sequence[Path] | None = None,
    threads: int | None = None,
) -> Translator:
    """Open the run's model, and those of an ensemble; `note` hears of each problem that is not fatal.

    Raises:
        TaskError: if a run is damaged.
        ImportError: if there is no TensorFlow.
    """
    run, *others = (RunFolder.open(one) for one in (path, *(ensemble or ())))
    start_tensorflow(threads)
    from heed.seq2seq.translating.translator import Translator

    translator = Translator(run, note, options, others)
    if not run.weights.exists():
        note(f"{path} is not finished: using its checkpoint of step {translator.step}")
    return translator
