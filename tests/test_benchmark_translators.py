"""The translators that heed's is compared with are the same model, and nothing of how they are asked favours one."""

import numpy as np
import pytest

from benchmarks import quality
from benchmarks.translators import _training, keras_layers
from heed.models import Transformer, TransformerConfig
from heed.seq2seq import catalogs

CONFIG = TransformerConfig(
    30, 40, width=8, num_heads=2, feed_forward_width=16, encoder_layers=1, decoder_layers=2
)
SOURCE = np.array([[5, 6, 7, 2], [8, 9, 2, 0]], "int32")
TARGET = np.array([[1, 5, 6], [1, 7, 0]], "int32")


def keras_logits(model):
    return lambda source, target: np.asarray(model([source, target], training=False))


def torch_side():
    torch = pytest.importorskip("torch")
    from benchmarks.translators.torch_modules import Model

    model = Model(CONFIG).eval()

    def logits(source, target):
        source, target = (torch.from_numpy(x).long() for x in (source, target))
        return model.logits(model.decode(model.encode(source), target)).detach().numpy()

    return sum(p.numel() for p in model.parameters()), logits


def keras_side():
    model = keras_layers.models(CONFIG)[2]
    return model.count_params(), keras_logits(model)


@pytest.mark.parametrize("side", [keras_side, torch_side])
def test_each_is_the_same_model(side):
    heeds = Transformer(CONFIG)
    heeds({"source": SOURCE, "target": TARGET})
    size, logits = side()
    assert size == heeds.count_params()
    found = logits(SOURCE, TARGET)
    # Neither padding nor what comes later counts, and all else does.
    np.testing.assert_allclose(logits(SOURCE[1:, :3], TARGET[1:])[0, :2], found[1, :2], atol=1e-5)
    np.testing.assert_allclose(logits(SOURCE, TARGET[:, :2]), found[:, :2], atol=1e-5)
    for place in range(3):
        changed = SOURCE.copy()
        changed[0, place] = 20
        assert not np.allclose(logits(changed, TARGET)[0], found[0], atol=1e-3)


def test_another_model_is_refused():
    other = TransformerConfig(30, 40, width=8, num_heads=2, position="rotary")
    run = type("Run", (), {"config": {"model": other.to_dict()}})
    with pytest.raises(ValueError, match="only sizes and dropout may be chosen"):
        _training.config_of(run)
    run.config = {"model": CONFIG.to_dict()}
    assert _training.config_of(run) == CONFIG


def test_greedy_takes_the_likeliest_until_the_end():
    """A model that says each source id and one more after it, and likes padding and the start best."""

    def next_logits(source, target, index):
        assert target.shape[1] > index
        logits = np.zeros((len(source), 40), "float32")
        logits[:, [CONFIG.pad_id, CONFIG.start_id]] = 9
        wanted = np.where(source[:, index] > 2, source[:, index] + 1, source[:, index])
        logits[np.arange(len(source)), wanted] = 8
        return logits

    rows = [[5, 6, 7, 2], [8, 2], [9, 3, 9, 3, 9]]
    found = _training.greedy(CONFIG, lambda source: source, next_logits, rows, longest=5)
    assert found == [[6, 7, 8, 2, 0], [9, 2, 0, 0, 0], [10, 4, 10, 4, 10]]


def test_full_sentences_are_held_out(tmp_path, monkeypatch):
    pairs = [(f"A b c d {i}.", f"E {i}.") for i in range(40)] + [
        (f"Word {i}", "x") for i in range(9)
    ]
    monkeypatch.setattr(catalogs, "pairs", lambda language: pairs)
    quality.write_text("de", tmp_path)
    trained, tested = (
        [tuple(line.split("\t")) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("pairs.tsv", "test.tsv")
    )
    assert sorted(trained + tested) == sorted(pairs)
    assert len(tested) == 10
    assert all(source.endswith(".") for source, _ in tested)
    assert tested != pairs[:10]
