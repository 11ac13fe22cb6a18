import keras
import numpy as np
import pytest

from heed import inspect
from heed.decoding._incremental_decoder import IncrementalDecoder
from heed.models import explain_generate, generate
from heed.models._recurrent_translator import ATTENTIONS
from tests.backend import BACKEND
from tests.models.builders import TARGET, randomise, small_recurrent, sources
from tests.slow import slow

LOOKING = [name for name in ATTENTIONS if name != "none"]
METHODS = {
    "greedy": {},
    "beam": {"method": "beam", "beam_size": 3},
    "sample": {"method": "sample", "seed": 5},
}


def inputs():
    return {"source": sources(3), "target": TARGET}


every_attention = pytest.mark.parametrize(
    "attention", ["location", "none", *slow(x for x in LOOKING if x != "location")]
)


@pytest.mark.parametrize(
    ("attention", "changes"),
    [
        *slow((attention, {}) for attention in LOOKING),
        ("additive", {"cell": "gru", "encoder_layers": 2, "decoder_layers": 3}),
        *slow([("location", {"tie_embeddings": False, "attention_units": 5})]),
        ("general", {"pad_id": 5, "start_id": 0, "dropout": 0.4}),
    ],
)
def test_shapes_and_the_alignment(attention, changes):
    model = small_recurrent(attention, **changes)
    batch = inputs()
    count = model.count_params()
    logits, alignment = model(batch, return_attention_scores=True)
    assert model.count_params() == count  # no variable was made late
    np.testing.assert_array_equal(model(batch), logits)
    assert tuple(logits.shape) == (3, 5, 9)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    assert tuple(alignment.shape) == (3, 5, 6)
    np.testing.assert_allclose(np.sum(np.asarray(alignment), -1), 1.0, rtol=1e-5)
    padding = np.broadcast_to(batch["source"][:, None] == model.config.pad_id, alignment.shape)
    assert not np.any(np.asarray(alignment)[padding])


@pytest.mark.parametrize("attention", ["additive", "general", *slow(["dot", "scaled", "location"])])
def test_inspect_sees_one_alignment_of_the_whole_target(attention):
    model = small_recurrent(attention, decoder_layers=2)
    batch = inputs()
    logits, alignment = model(batch, return_attention_scores=True)
    found = inspect.capture(model, batch)
    assert found.names == ("attention",)
    assert found.kinds["attention"] == "cross"
    assert found.weights["attention"].shape == (3, 1, 5, 6)
    np.testing.assert_allclose(found.weights["attention"][:, 0], alignment, atol=1e-5)
    if BACKEND == "jax" and model.config.attends_inside:  # in a loop that was compiled
        np.testing.assert_allclose(found.outputs, logits, atol=1e-5)
    else:
        np.testing.assert_array_equal(found.outputs, logits)
    inspect.plot_alignment(found, list("abcdef"), list("vwxyz"))


def formula(model, source, target):
    """Return the logits of one row, in float64 NumPy: additive attention, GRU, one layer each; tied embeddings."""
    weights = {w.path.split("/", 1)[1]: np.asarray(w, "float64") for w in model.weights}

    def dense(name, x):
        return np.tanh(x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"])

    def gru(name, x, state):
        bias = weights[f"{name}/bias"]
        read = np.split(x @ weights[f"{name}/kernel"] + bias[0], 3)
        held = np.split(state @ weights[f"{name}/recurrent_kernel"] + bias[1], 3)
        update, reset = (1 / (1 + np.exp(-read[i] - held[i])) for i in (0, 1))
        return update * state + (1 - update) * np.tanh(read[2] + reset * held[2])

    width = model.config.width
    embedded = weights["encoder/tokens/embeddings"][source] * width**0.5
    sides = []
    for side, order in (("forward", 1), ("backward", -1)):
        state, states = np.zeros(width // 2), []
        for x in embedded[::order]:
            state = gru(f"encoder/layer_0/{side}_gru/gru_cell", x, state)
            states.append(state)
        sides.append(states[::order])
    encoded = np.concatenate(sides, axis=1)
    state = dense("decoder/bridge", np.concatenate([sides[0][-1], sides[1][0]]))
    table, logits = weights["decoder/tokens/embeddings"], []
    for token in target:
        hidden = encoded @ weights["decoder/attention/key/kernel"]
        hidden = hidden + state @ weights["decoder/attention/query/kernel"]
        scores = np.tanh(hidden + weights["decoder/attention/bias"])
        scores = np.exp(scores @ weights["decoder/attention/score_vector"])
        context = scores / scores.sum() @ encoded
        x = np.concatenate([table[token] * width**0.5, context])
        state = gru("decoder/cell_0", x, state)
        logits.append(dense("decoder/readout", np.concatenate([state, context])) @ table.T)
    return np.array(logits)


def test_it_is_the_papers_formula():
    model = small_recurrent(cell="gru")
    batch = inputs()
    logits = np.asarray(model(batch))
    for source, target, ours in zip(batch["source"], batch["target"], logits, strict=True):
        expected = formula(model, source[source != 0], target)
        np.testing.assert_allclose(ours, expected, atol=1e-4)


@every_attention
def test_padding_of_the_source_changes_nothing(attention):
    model = small_recurrent(attention, encoder_layers=2)
    batch = inputs()
    wider = {**batch, "source": np.pad(batch["source"], ((0, 0), (0, 3)))}
    logits = np.asarray(model(batch))
    np.testing.assert_allclose(model(wider), logits, atol=1e-5)
    row = batch["source"][2]
    alone = {"source": row[row != 0][None], "target": TARGET[2:]}
    assert alone["source"].shape[1] < batch["source"].shape[1]
    np.testing.assert_allclose(model(alone)[0], logits[2], atol=1e-5)


@every_attention
def test_the_target_is_causal_and_the_source_is_read(attention):
    model = small_recurrent(attention)
    batch = inputs()
    changed = {**batch, "target": batch["target"].copy()}
    changed["target"][:, 3:] = 5
    one, other = np.asarray(model(batch)), np.asarray(model(changed))
    np.testing.assert_allclose(one[:, :3], other[:, :3], atol=1e-5)
    assert np.abs(one[:, 3:] - other[:, 3:]).max() > 1e-2
    reversed_ = {**batch, "source": batch["source"][:1, ::-1], "target": TARGET[:1]}
    assert np.abs(np.asarray(model(reversed_))[0] - one[0]).max() > 1e-2


@pytest.mark.parametrize(
    ("attention", "method"),
    [
        ("location", "beam"),
        ("general", "greedy"),
        *slow((attention, m) for attention in ATTENTIONS for m in METHODS),
    ],
)
def test_the_cache_changes_nothing(attention, method):
    model = small_recurrent(attention, cell="gru", tie_embeddings=False)
    randomise(model, seed=4, end_bias=-9.0)  # no text ends at once
    source, options = sources(4), METHODS[method]
    cached = np.asarray(generate(model, source, max_length=5, **options))
    again = generate(model, source, max_length=5, use_cache=False, **options)
    np.testing.assert_array_equal(cached, again)
    assert len({tuple(row) for row in cached}) > 1
    assert "RecurrentTranslator" in explain_generate(model).reasons[-1]


@every_attention
def test_steps_give_what_the_call_gives(attention):
    """Also of several rows for each source, which may change places."""
    model = small_recurrent(attention, decoder_layers=2)
    source = sources(2)
    read = np.array([[1, 3, 4], [1, 5, 6], [1, 7, 8], [1, 4, 4]], "int32")  # two of each source
    whole = np.asarray(model({"source": source.repeat(2, axis=0), "target": read}))[:, :, 2:]
    decoder = IncrementalDecoder(model, model.encode_source(source), 2, 4, beams=2)
    _, state = decoder.start()
    for place, tokens in enumerate(read.T):
        logits, state = decoder.step(state, tokens)
        np.testing.assert_allclose(np.asarray(logits)[:, 2:], whole[:, place], atol=1e-5)
    swapped, _ = decoder.step(decoder.select(state, [1, 0, 3, 2]), [3, 4, 5, 6])
    straight, _ = decoder.step(state, [4, 3, 6, 5])
    np.testing.assert_allclose(swapped, np.asarray(straight)[[1, 0, 3, 2]], atol=1e-5)
    # Several tokens at once, as a prompt.
    memory = model.encode_source(source)
    logits, _ = model.decode_step(read, 0, model.make_state(4, 4, memory), memory)
    np.testing.assert_allclose(np.asarray(logits)[:, 2:], whole[:, 2], atol=1e-5)


def test_what_is_asked_of_a_model_without_attention():
    with pytest.raises(ValueError, match="`return_attention_scores` needs attention"):
        small_recurrent("none")(inputs(), return_attention_scores=True)
    with pytest.raises(ValueError, match="`model` must have attention"):
        inspect.capture(small_recurrent("none"), inputs())


def test_inputs_are_checked():
    with pytest.raises(ValueError, match='"source" and "target"'):
        small_recurrent()({"source": sources()})
    with pytest.raises(ValueError, match="`source` must be integers"):
        generate(small_recurrent(), np.ones((2, 3), "float32"), max_length=4)
