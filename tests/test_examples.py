"""The examples run, and learn what they say they learn."""

import importlib
from pathlib import Path

import numpy as np
import pytest

# The least share that must be right on data that was not trained on; of translations, BLEU in percent.
LEARNERS = {
    "digits_to_letters": 0.97,
    "attention_over_lstm": 0.97,
    "translate_messages": 10.0,
}
# Those that draw.
PICTURES = ("digits_to_letters", "translate_messages")
FOLDER = Path(__file__).parents[1] / "examples"


def test_every_example_is_tested():
    scripts = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert scripts == {*LEARNERS, "four_attentions"}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_example_learns(name, tmp_path):
    module = importlib.import_module(f"examples.{name}")
    score = module.main(tmp_path) if name in PICTURES else module.main()
    assert score >= LEARNERS[name]
    pictures = [f"{name}.png"] if name in PICTURES else []
    assert [path.name for path in tmp_path.glob("*.png")] == pictures


@pytest.mark.slow
def test_four_attentions(capsys):
    outputs = importlib.import_module("examples.four_attentions").main()
    assert outputs["dot-product, cross"].shape == (4, 5, 60)
    assert outputs["additive, one state"].shape == (4, 60)
    assert outputs["additive, a sequence"].shape == (4, 5, 60)
    assert outputs["multi-head, cross"].shape == (4, 5, 50)
    # The last sequence of values is empty: nothing comes back from it.
    assert not np.any(np.array(outputs["additive, one state, masked"])[3])
    assert not np.any(np.array(outputs["additive, a sequence, masked"])[3])
    assert "[0. 1.]" in capsys.readouterr().out


def test_a_model_of_your_own_is_decoded():
    assert importlib.import_module("examples.extending.describer").main().shape == (2, 6)


def test_digits_are_spelled_as_the_tutorial_states():
    module = importlib.import_module("examples.digits_to_letters")
    assert module.spell([1, 2]) == "o n e t w o"
    inputs, labels = module.encode([[1, 2], [7] * module.MOST_DIGITS])
    assert inputs["source"][0].tolist() == [4, 5, 0, 0, 0, 0]
    np.testing.assert_array_equal(inputs["target"][:, 1:6], labels[:, :5])  # moved one place
    assert module.read(labels[0]) == "o n e t w o"
    assert labels[0, 6] == labels[1, -1] == module.END  # the longest fits, with its end
    lists = module.make_lists(300)
    assert len({tuple(digits) for digits in lists}) == 300


def test_held_out_messages_are_in_no_way_trained_on():
    module = importlib.import_module("examples.translate_messages")
    # Four ways to write each message, and four messages with one translation.
    pairs = [(f"{mark}message {i}{mark}", f"german {i // 4}") for i in range(80) for mark in ".!? "]
    train, held_out = module.split(pairs, 10)
    assert len(held_out) == 10
    assert len(train) >= 320 - 10 * 16
    for side in (0, 1):
        trained, kept = ({pair[side].strip(".!? ") for pair in part} for part in (train, held_out))
        assert not trained & kept


def test_what_reviews_are_made_of():
    pytest.importorskip("sklearn")
    module = importlib.import_module("examples.recipes.sentiment")
    reviews, favourable = module.make_reviews(400, seed=0)
    held_out, _ = module.make_reviews(100, seed=1, held_out=True)
    assert 0.4 < favourable.mean() < 0.6
    words = {word for review in reviews for word in review.split()}
    assert {word for review in held_out for word in review.split()} <= words
    assert not set(module.pairs(True)) & set(module.pairs(False))
    assert not set(reviews) & set(held_out)


@pytest.mark.slow
def test_tensorboard_logs_are_written(tmp_path):
    importlib.import_module("examples.digits_to_letters").main(tmp_path, count=1100)
    assert list(tmp_path.rglob("events.out.tfevents.*"))
