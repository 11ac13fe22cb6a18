"""The examples run, and learn what they say they learn."""

import importlib
from pathlib import Path

import numpy as np
import pytest

# The least share that must be right on data that was not trained on.
LEARNERS = {
    "encoder_with_tensorboard": 0.98,
    "attention_over_lstm": 0.97,
    "translate_dates": 0.95,
}
FOLDER = Path(__file__).parents[1] / "examples"


def test_every_example_is_tested():
    scripts = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert scripts == {*LEARNERS, "three_attentions"}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_example_learns(name):
    module = importlib.import_module(f"examples.{name}")
    assert module.main() >= LEARNERS[name]


@pytest.mark.slow
def test_three_attentions(capsys):
    outputs = importlib.import_module("examples.three_attentions").main()
    assert outputs["additive, one state"].shape == (4, 48)
    assert outputs["additive, a sequence"].shape == (4, 5, 48)
    assert outputs["multi-head, cross"].shape == (4, 5, 32)
    # The last sequence of values is empty: nothing comes back from it.
    assert not np.any(np.array(outputs["additive, one state, masked"])[3])
    assert not np.any(np.array(outputs["additive, a sequence, masked"])[3])
    assert "[0. 1.]" in capsys.readouterr().out


@pytest.mark.slow
def test_shared_projection_attention_equals_the_plain_formula():
    import keras

    from examples.attention_over_lstm import SharedProjectionAttention

    states = np.random.default_rng(0).standard_normal((2, 5, 8)).astype("float32")
    layer = SharedProjectionAttention([3, 4])
    output = np.array(layer(states, mask=np.arange(5) < [[5], [2]]))
    assert output.shape == (2, 5, 7)
    start = 0
    for projection, width in zip(layer.projections, layer.head_widths, strict=True):
        head = states @ np.array(projection.kernel)
        for item, length in enumerate([5, 2]):
            keys = head[item, :length]
            weights = keras.ops.softmax(head[item] @ keys.T / np.sqrt(width))
            expected = np.array(weights) @ keys
            part = output[item, :, start : start + width]
            np.testing.assert_allclose(part, expected, rtol=1e-4, atol=1e-5)
        start += width
    again = SharedProjectionAttention.from_config(layer.get_config())
    assert again.head_widths == [3, 4]


@pytest.mark.slow
def test_tensorboard_logs_are_written(tmp_path, monkeypatch):
    module = importlib.import_module("examples.encoder_with_tensorboard")
    make_data = module.make_data
    monkeypatch.setattr(module, "make_data", lambda count, seed: make_data(256, seed))
    module.main(str(tmp_path))
    assert list(tmp_path.rglob("events.out.tfevents.*"))
