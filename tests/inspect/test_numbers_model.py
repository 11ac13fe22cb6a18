"""In a trained model, the words of a number attend to the digits that they name."""

from __future__ import annotations

import numpy as np
import pytest

from heed.inspect import capture, plot_alignment
from tests.backend import on_tensorflow

UNITS = "one two three four five six seven eight nine".split()
TENS = "ten twenty thirty forty fifty sixty seventy eighty ninety".split()
DIGIT = {word: str(digit) for words in (UNITS, TENS) for digit, word in enumerate(words, 1)}


def rings(translator, number: int) -> list[tuple[str, str, int]]:
    """Return each word that names a digit, the digit it attends to most, and its position (1 for the last)."""
    task, model = translator.task, translator.model
    source = task.encode(str(number), None)
    target = translator.decode([source])[0]
    words = task.target_labels(target)
    read = [model.config.start_id, *target[: len(words)]]
    found = capture(model, {"source": np.array([source]), "target": np.array([read])})
    labels = task.source_labels(source)
    axes = plot_alignment(found, labels, [*words, "end"]).axes[0]
    ringed = {int(t): int(s) for s, t in np.asarray(axes.collections[0].get_offsets())}
    shown = [label.get_text() for label in axes.yaxis.get_ticklabels()]
    return [(w, labels[ringed[t]], ringed[t]) for t, w in enumerate(shown) if w in DIGIT]


@on_tensorflow  # which trains it
@pytest.mark.slow
def test_words_read_the_digits_that_they_name(tmp_path):
    from heed.seq2seq import NumbersTask, Translator, start_run, train

    run = start_run(tmp_path / "numbers", NumbersTask())
    train(run, progress=False)
    translator = Translator(run)
    digits = np.random.default_rng(0).integers(2, 10, (20, 6))  # no zero and no "eleven"
    right = total = 0
    for row in digits:
        found = rings(translator, int("".join(map(str, row))))
        assert len(found) == 6
        for place, (word, digit, position) in zip(range(6, 0, -1), found, strict=True):
            total += 1
            right += digit == DIGIT[word] and position == place
    assert right / total > 0.8
