"""The translators that heed's is compared with are the same model, and nothing of how they are asked favours one."""

import dataclasses

import keras
import numpy as np
import pytest
import sacrebleu
import tensorflow as tf

from benchmarks import quality
from benchmarks.translators import _training, keras_layers
from heed.layers.dropout import Dropout
from heed.models import Transformer, TransformerConfig
from heed.seq2seq.evaluating.evaluation import Answer, Evaluation
from heed.seq2seq.text import catalogs

pytestmark = pytest.mark.slow

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
    model = keras_layers.make_models(CONFIG)[2]
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


def in_order_of_stock_layers(variables):
    """Each normalisation before the part that reads it."""
    found, held = [], []
    for variable in variables:
        if "embeddings" in variable.path or "_norm/" in variable.path:
            found.append(variable)
        else:
            held.append(variable)
        if variable.path.endswith("_norm/beta"):
            found, held = found + held, []
    return found


def test_heeds_learns_as_stock_layers_do(monkeypatch):
    """The same weights, and the same numbers dropped: the same loss and gradients."""
    config = dataclasses.replace(CONFIG, dropout=0.3)
    heeds = Transformer(config)
    heeds({"source": SOURCE, "target": TARGET})
    table = _training.sinusoids(9, config.width)
    turns = table.reshape(9, 2, -1).swapaxes(1, 2).reshape(9, -1)  # each sine beside its cosine
    monkeypatch.setattr(keras_layers, "sinusoids", lambda *_: turns)
    monkeypatch.setattr(keras.layers, "Dropout", Dropout)
    stock = keras_layers.make_models(config)[2]
    variables = in_order_of_stock_layers(heeds.trainable_variables)
    for mine, theirs in zip(variables, stock.trainable_variables, strict=True):
        mine.assign(mine + 0.1 * keras.random.normal(mine.shape, seed=3))  # biases are not 0 then
        theirs.assign(mine)

    def learned(model, of, inputs):
        dropping = [layer for layer in model._flatten_layers() if isinstance(layer, Dropout)]
        assert len(dropping) == 1 + 3 + 1 + 2 * 4
        for layer in dropping:  # a seed for all, in whatever order they are
            layer.seed_generator.state.assign([7, 7])
        with tf.GradientTape() as tape:
            losses = keras.ops.log_softmax(model(inputs, training=True))[..., 5]
            loss = -tf.reduce_sum(losses * [[1.0, 1, 1], [1, 1, 0]])
        found = tape.gradient(loss, [variable.value for variable in of])
        return loss, [np.asarray(tf.convert_to_tensor(x)) for x in found]

    loss, gradients = learned(heeds, variables, {"source": SOURCE, "target": TARGET})
    wanted = learned(stock, stock.trainable_variables, [SOURCE, TARGET])
    np.testing.assert_allclose(loss, wanted[0], rtol=1e-5)
    for variable, found, expected in zip(variables, gradients, wanted[1], strict=True):
        atol = 1e-3 * max(np.abs(expected).max(), 0.01)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=atol, err_msg=variable.path)
        assert np.any(expected) or variable.path.endswith("key/bias")


def test_a_mean_over_seeds_comes_with_what_it_may_be_by_chance():
    rng = np.random.default_rng(0)
    wanted = [" ".join(rng.choice(list("abcdefgh"), 9)) for _ in range(60)]

    def said(share, seed):
        """Return a share of the references as they are."""
        right = np.random.default_rng(seed).random(60) < share
        answers = [x if good else f"{x[:9]} z z" for x, good in zip(wanted, right, strict=True)]
        pairs = zip(answers, wanted, strict=True)
        return Evaluation([Answer("", x, y, "text") for x, y in pairs], 0.0)

    one = said(0.5, 0)
    expected = sacrebleu.corpus_bleu([x.translation for x in one.answers], [wanted]).score
    assert quality.compute_bleu(quality.count_ngrams(one).sum(axis=0)) == pytest.approx(expected)
    alike = quality.compare_over_seeds(
        [said(0.5, n) for n in range(4)], [said(0.5, n) for n in range(4, 8)]
    )
    low, high = (float(x) for x in alike.split("between ")[1].split(" and "))
    assert low < 0 < high
    better = quality.compare_over_seeds(
        [said(0.3, n) for n in range(4)], [said(0.7, n) for n in range(4)]
    )
    assert float(better.split("between ")[1].split(" and ")[0]) > 0
    # One seed says nothing of other seeds, many sentences or not; four that differ widen what may be chance.
    apart = quality.compare_over_seeds([said(x, 0) for x in (0.2, 0.8)], [said(0.5, 0)] * 2)
    low, high = (float(x) for x in apart.split("between ")[1].split(" and "))
    assert high - low > 15


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
    found = _training.decode_greedily(CONFIG, lambda source: source, next_logits, rows, longest=5)
    assert found == [[6, 7, 8, 2, 0], [9, 2, 0, 0, 0], [10, 4, 10, 4, 10]]


def test_full_sentences_are_held_out(tmp_path, monkeypatch):
    pairs = [(f"A b c d {i}.", f"E {i}.") for i in range(40)] + [
        (f"Word {i}", "x") for i in range(9)
    ]
    monkeypatch.setattr(catalogs, "read_pairs", lambda language: pairs)
    quality.write_text("de", tmp_path)
    trained, tested = (
        [tuple(line.split("\t")) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("pairs.tsv", "test.tsv")
    )
    assert sorted(trained + tested) == sorted(pairs)
    assert len(tested) == 10
    assert all(source.endswith(".") for source, _ in tested)
    assert tested != pairs[:10]
