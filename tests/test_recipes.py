"""The recipes run, beat the baseline beside them, and reach what the documentation says."""

import importlib
from pathlib import Path

import pytest

# The least score on data that was not trained on, of each recipe.
RECIPES = {
    # the standard library's sources
    "language_model": -1.76,
    # pre-training on sources without labels, fine-tuning on a few with them
    "pretraining": 0.7,
    # scikit-learn's digits
    "image_classification": 0.97,
    # scenes that are drawn and described by rules
    "captioning": 0.5,
    # questions about signatures of the standard library
    "question_answering": 0.97,
    # reports that are written by rules, ROUGE
    "summarisation": 0.95,
    # gettext catalogs, or numbers and their words
    "recurrent_translation": 7.0,
    # reviews that are written by rules
    "sentiment": 0.78,
    # a token that only the other worker holds
    "split_sequence": 0.9,
}
FOLDER = Path(__file__).parents[1] / "examples" / "recipes"


def test_every_recipe_is_tested():
    assert {path.stem for path in FOLDER.glob("*.py")} - {"__init__"} == set(RECIPES)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_recipe_beats_its_baseline(name, tmp_path):
    score, baseline = importlib.import_module(f"examples.recipes.{name}").main(tmp_path)
    assert score > baseline
    assert score >= RECIPES[name]
    pictures = list(tmp_path.glob("*.png"))
    assert pictures
    assert all(picture.stat().st_size > 5000 for picture in pictures)
