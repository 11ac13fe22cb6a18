"""The recipes as they are, trained to the end."""

import pytest

from heed.seq2seq import NumbersTask, Translator, evaluate, start_run, train
from heed.seq2seq.tasks.number_words import LANGUAGES


@pytest.mark.slow
@pytest.mark.parametrize(("languages", "held_out"), [(("en",), 0.999), (LANGUAGES, 0.995)])
def test_all_numbers_below_a_thousand_and_nearly_all_held_out_ones_are_right(
    tmp_path, languages, held_out
):
    run = start_run(tmp_path / "run", NumbersTask(languages))
    train(run, progress=False)
    result = evaluate(Translator(run))
    assert len(result.answers) == 2000 * len(languages)
    assert result.exact >= held_out, result.wrong
    (small,) = result.extra.values()
    assert len(small.answers) == 1000 * len(languages)
    assert small.wrong == []
