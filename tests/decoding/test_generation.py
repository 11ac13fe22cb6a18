import dataclasses
import gc
import itertools
import traceback
import weakref

import keras
import numpy as np
import pytest

import heed
from heed.decoding import _generation, compiled
from heed.decoding._beam import beam_search, penalty
from heed.decoding._incremental_decoder import DecodingState, IncrementalDecoder
from heed.decoding._sampling import draw
from heed.decoding.options import GenerateOptions
from heed.models import Transformer, explain_generate, generate
from heed.models.config import POSITIONS
from heed.ops.backends import current
from tests.backend import on_tensorflow, tf
from tests.decoding.scores import allowed_log_probabilities, log_probabilities
from tests.decoding.ways import in_the_graph
from tests.graphs import allocated, traced
from tests.models.builders import small_config, small_model, sources
from tests.slow import slow as slow_cases

METHODS = {
    "greedy": {"method": "greedy"},
    "beam": {"method": "beam", "beam_size": 3},
    "sample": {"method": "sample", "seed": 5, "top_k": 5},
}
slow = pytest.mark.slow  # a graph is traced in each case: the default run has the telling ones
END_BIAS = 0.7  # makes rows end at different steps


@pytest.fixture(autouse=True)
def _in_the_graph():
    """test_engine.py compares the engine's output with this."""
    with in_the_graph():
        yield


def decode(model, source, max_length=8, **options):
    return np.asarray(generate(model, source, max_length=max_length, **options))


def lengths_of(tokens, end=2):
    """Return tokens up to and including the end, or all."""
    ended = (tokens == end).any(axis=1)
    return np.where(ended, (tokens == end).argmax(axis=1) + 1, tokens.shape[1])


OTHERS = (
    {"norm_first": False, "encoder_layers": 2, "decoder_layers": 3},
    {"num_key_value_heads": 1, "dropout": 0.4, "attention_dropout": 0.4},
)


@pytest.mark.parametrize(
    ("changes", "method"),
    [
        ({"position": "learned"}, "greedy"),
        ({"position": "alibi"}, "beam"),
        *slow_cases(({"position": x}, y) for x in POSITIONS for y in METHODS),
        *slow_cases((x, y) for x in OTHERS for y in METHODS),
    ],
    ids=str,
)
def test_the_cache_changes_nothing(changes, method):
    model = small_model(seed=4, end_bias=END_BIAS, **changes)
    source = sources(6)
    cached = decode(model, source, **METHODS[method])
    assert cached.shape == (6, 8)
    assert cached.dtype == np.int32
    np.testing.assert_array_equal(cached, decode(model, source, use_cache=False, **METHODS[method]))
    assert changes in OTHERS or len({tuple(row) for row in cached}) > 1


@pytest.mark.parametrize("use_cache", [True, pytest.param(False, marks=slow)])
def test_a_state_of_decoding_is_a_value(use_cache):
    """It knows how many tokens it has read, can be gone on from twice, and gives what the whole model gives."""
    model, source = small_model(seed=4), np.repeat(sources(1), 3, axis=0)  # rows may change places
    decoder = IncrementalDecoder(model, model.encode_source(source), 3, 4, use_cache=use_cache)
    start, state = decoder.start()
    np.testing.assert_array_equal(start, 1)
    read = np.array([[1, 3, 4], [1, 5, 6], [1, 7, 8]], "int32")
    whole = np.asarray(model({"source": source, "target": read}))
    expected = whole + np.where(np.arange(whole.shape[-1]) < 2, np.float32(-1e30), 0)
    _, other = decoder.step(state, read[:, 2])
    decoder.step(other, read[:, 2])
    for place, tokens in enumerate(read.T):
        assert int(state.index) == place
        logits, state = decoder.step(state, tokens)
        np.testing.assert_allclose(logits, expected[:, place], atol=1e-5)
    moved = decoder.select(state, np.array([2, 0, 0]))
    logits, _ = decoder.step(moved, read[0, 1].repeat(3))
    same, _ = decoder.step(state, read[0, 1].repeat(3))
    np.testing.assert_allclose(logits, np.asarray(same)[[2, 0, 0]], atol=1e-5)
    _, again = decoder.start()
    logits, _ = decoder.step(again, read[:, 0])
    np.testing.assert_allclose(logits, expected[:, 0], atol=1e-5)


@pytest.mark.parametrize(
    "method", [pytest.param("greedy", marks=slow), pytest.param("beam", marks=slow), "sample"]
)
def test_a_row_ends_once_and_is_padded_after(method):
    model = small_model(seed=5, end_bias=END_BIAS)
    tokens = decode(model, sources(12, seed=2), **METHODS[method])
    lengths = lengths_of(tokens)
    assert len(set(lengths)) > 1  # rows finish independently
    for row, length in zip(tokens, lengths, strict=True):
        assert not np.any(row[length:])
        assert not np.isin(row[:length], [0, 1]).any()
        assert (row[:length] == 2).sum() <= 1


@pytest.mark.parametrize("method", [pytest.param("greedy", marks=slow), "beam"])
def test_rows_do_not_depend_on_their_neighbours(method):
    model, options = small_model(seed=4, end_bias=END_BIAS), {**METHODS[method], "max_length": 5}
    source = sources(8)
    together = decode(model, source, **options)
    for row in (1, 4):
        alone = decode(model, source[row : row + 1], **options)
        np.testing.assert_array_equal(alone[0], together[row])
    short = source[source[:, -1] == 0][:1]
    unpadded = short[short != 0][None]
    np.testing.assert_array_equal(
        decode(model, unpadded, **options), decode(model, short, **options)
    )
    order = np.random.default_rng(0).permutation(8)
    shuffled = decode(model, source[order], **options)
    np.testing.assert_array_equal(shuffled, together[order])
    wider = np.pad(source, ((0, 0), (0, 4)))
    np.testing.assert_array_equal(decode(model, wider, **options), together)


def test_a_sampled_row_depends_on_its_own_number_only():
    model = small_model(seed=3)
    source = sources(4)
    other = source.copy()
    other[2:] = source[:2]
    one, two = (decode(model, x, 4, method="sample", seed=9) for x in (source, other))
    np.testing.assert_array_equal(one[:2], two[:2])


def assert_greedy(model, source, tokens, given=0):
    """Check that each token after `given` ones, (B,) or a number, is the best: up to the end, then padding."""
    best = allowed_log_probabilities(model, source, tokens).argmax(axis=-1)
    place = np.arange(tokens.shape[1])
    written = place < lengths_of(tokens)[:, None]
    np.testing.assert_array_equal(tokens[~written], 0)
    free = written & (place >= np.reshape(given, (-1, 1)))
    np.testing.assert_array_equal(tokens[free], best[free])


def test_greedy_takes_the_best_token_of_the_whole_model():
    model = small_model(seed=4, end_bias=END_BIAS)
    assert_greedy(model, sources(4), decode(model, sources(4)))


STEPS, VOCABULARY = 4, 6
REWEIGHTED = range(2)  # seeds of the weights that are put into one model, compiled once


@pytest.fixture(scope="module")
def exhausted():
    """Return a model, and for some weights of it: a source and log p of every sequence that ends."""
    options = {"end_bias": 0.5, "target_vocabulary_size": VOCABULARY}
    model, cases = small_model(**options), []
    for seed in REWEIGHTED:
        weights = small_model(seed=seed, **options).get_weights()
        model.set_weights(weights)
        source = sources(2, seed=seed)
        cases.append((weights, source, [finished_sequences(model, row) for row in source]))
    return model, cases


def finished_sequences(model, row):
    """Return log p of each sequence of at most STEPS tokens that ends, by trying all of them."""
    longest = list(itertools.product(range(3, VOCABULARY), repeat=STEPS - 1))
    targets = np.array([[1, *prefix] for prefix in longest])  # shorter ones are their beginnings
    batch = {"source": np.tile(row, (len(longest), 1)), "target": targets}
    logits = np.asarray(model(batch))[:, :, 2:].astype("float64")  # no padding, no start
    logs = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
    finished = {}
    for prefix, log in zip(longest, logs, strict=True):
        score = 0.0
        for length in range(STEPS):
            finished[(*prefix[:length], 2)] = score + log[length, 0]
            if length < STEPS - 1:
                score += log[length, prefix[length] - 2]
    return finished


@pytest.mark.parametrize(
    "alpha", [pytest.param(0.0, marks=slow), 0.6, pytest.param(2.0, marks=slow)]
)
def test_a_beam_as_wide_as_the_space_is_an_exhaustive_search(exhausted, alpha):
    model, cases = exhausted
    differs = False
    for weights, source, tables in cases:
        model.set_weights(weights)
        options = {"method": "beam", "beam_size": 81, "length_penalty": alpha}
        found = decode(model, source, STEPS, **options)
        for finished, tokens in zip(tables, found, strict=True):
            best = max(finished, key=lambda y: finished[y] / penalty(len(y), alpha))
            assert tuple(tokens) == best + (0,) * (STEPS - len(best))
        differs |= bool(np.any(found != decode(model, source, STEPS)))
    assert differs  # greedy decoding misses the best sequence somewhere


class Script:
    """In place of a model: scores that depend on the step alone."""

    def __init__(self, probabilities, beams):
        self.config = small_config()
        self.length, self.batch_size, self.rows = len(probabilities), 1, beams
        self.logits = keras.ops.log(keras.ops.convert_to_tensor(probabilities, "float32"))

    def start(self, prompt=None):
        return keras.ops.ones((self.rows,), "int32"), DecodingState(
            keras.ops.convert_to_tensor(0, "int32"), keras.ops.zeros((self.rows,))
        )

    def step(self, state, tokens):
        row = keras.ops.take(self.logits, keras.ops.reshape(state.index, (1,)), axis=0)
        logits = keras.ops.repeat(row, self.rows, axis=0)
        return logits, state._replace(index=state.index + 1)

    def select(self, state, rows):
        return state


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_a_sure_model_is_not_led_astray_by_early_ends(alpha):
    """Ends that come second in each step do not end the search before the true end is met."""
    path = [3, 4, 5, 6, 7, 8, 2, 3]
    probabilities = np.full((len(path), 9), 1e-5)
    probabilities[:, 2] = 1e-3
    probabilities[np.arange(len(path)), path] = 0.99
    tokens = beam_search(Script(probabilities, 3), 3, alpha)[0][:, 0]
    np.testing.assert_array_equal(tokens, [[3, 4, 5, 6, 7, 8, 2, 0]])


def test_a_late_end_may_win_by_the_length_penalty():
    """The search goes on while a hypothesis could still win at its full length, though not at the present one."""
    path = [3, 4, 5, 6, 7, 8, 4, 2]
    probabilities = np.full((len(path), 9), 1e-5)
    probabilities[np.arange(len(path)), path] = 0.99
    probabilities[0, [2, 3]] = 0.55, 0.4
    assert np.log(0.4) / penalty(1, 3.0) < np.log(0.55) / penalty(1, 3.0)
    tokens = beam_search(Script(probabilities, 2), 2, 3.0)[0][:, 0]
    np.testing.assert_array_equal(tokens, [path])
    tokens = beam_search(Script(probabilities, 2), 2, 0.0)[0][:, 0]
    np.testing.assert_array_equal(tokens, [[2, 0, 0, 0, 0, 0, 0, 0]])


@pytest.mark.parametrize(("alpha", "best"), [(2.0, [2, 0, 0]), (2.3, [3, 2, 0])])
def test_the_length_penalty_counts_all_tokens_with_the_end(alpha, best):
    """ln p is -1 of one token and -1.4 of two: they draw at ((5 + 2) / (5 + 1))**alpha = 1.4, alpha = 2.18."""
    probabilities = np.full((3, 9), 1e-9)
    probabilities[0, 2], probabilities[0, 3] = np.exp(-1), 1 - np.exp(-1)
    second = np.exp(-1.4) / probabilities[0, 3]
    probabilities[1, 2], probabilities[1, 3:] = second, (1 - second) / 6
    probabilities[2, 2:] = 1 / 7
    tokens = beam_search(Script(probabilities, 2), 2, alpha)[0][:, 0]
    np.testing.assert_array_equal(tokens, [best])


def test_a_higher_length_penalty_never_shortens():
    model = small_model(seed=1, end_bias=2.0)
    source = sources(10)
    short, long = (
        lengths_of(decode(model, source, method="beam", beam_size=30, length_penalty=alpha))
        for alpha in (0.0, 3.0)
    )
    assert np.all(long >= short)
    assert np.any(long > short)


def test_where_nothing_ends_the_best_open_sequence_is_found():
    model = small_model(seed=4, end_bias=-50.0)
    tokens = decode(model, sources(), 3, method="beam", beam_size=2)
    assert np.all(tokens > 2)
    # A beam wider than the vocabulary holds every end, however unlikely: an ended sequence wins.
    tokens = decode(model, sources(), 3, method="beam", beam_size=20)
    assert np.all((tokens == 2).sum(axis=1) == 1)


@pytest.mark.parametrize("method", METHODS)
def test_decoding_stops_when_all_rows_have_ended(method, monkeypatch):
    steps = []
    real = IncrementalDecoder.step
    monkeypatch.setattr(
        IncrementalDecoder, "step", lambda self, *args: steps.append(1) or real(self, *args)
    )
    model = small_model(end_bias=1000.0)
    made = _generation.make_request(model, sources(), None, {"max_length": 20, **METHODS[method]})
    # Runs step by step, not as a graph.
    tokens = _generation._decode(model, made.inputs, made.options)[0][:, 0]
    np.testing.assert_array_equal(tokens[:, 0], 2)
    assert len(steps) == 1


@on_tensorflow
@pytest.mark.parametrize("method", METHODS)
@slow  # a language model is compiled by XLA by default
@pytest.mark.usefixtures("compiled")
def test_inside_a_tf_function_by_xla(method):
    model = small_model(seed=4, end_bias=END_BIAS)
    options = {"max_length": 8, **METHODS[method]}
    traced = tf.function(lambda x: generate(model, x, **options), jit_compile=True)
    source = tf.constant(sources())
    tokens = traced(source)
    if method == "sample":  # XLA has random numbers of its own
        np.testing.assert_array_equal(tokens, traced(source))
        assert np.all(lengths_of(np.asarray(tokens)) > 0)
    else:
        np.testing.assert_array_equal(tokens, generate(model, source, **options))


@on_tensorflow
@pytest.mark.parametrize(
    "method", [pytest.param("greedy", marks=slow), "beam", pytest.param("sample", marks=slow)]
)
@pytest.mark.usefixtures("compiled")
def test_inside_a_tf_function_with_unknown_sizes(method):
    model = small_model(seed=4, end_bias=END_BIAS, position="relative")
    options = {"max_length": 8, **METHODS[method]}
    spec = [tf.TensorSpec((None, None), tf.int32)]
    traced = tf.function(lambda x: generate(model, x, **options), input_signature=spec)
    for batch, length in ((5, 6), (2, 4)):
        source = sources(batch, length)
        np.testing.assert_array_equal(traced(source), generate(model, source, **options))


@on_tensorflow
@pytest.mark.usefixtures("compiled")
def test_autograph_does_not_rewrite_it(monkeypatch):
    """It would gain nothing, and take most of the time of tracing."""
    rewritten, step = [], Transformer.decode_step

    def decode_step(*args, **kwargs):
        stack = traceback.extract_stack()
        rewritten.append([x.name for x in stack if "__autograph_generated" in x.filename])
        return step(*args, **kwargs)

    monkeypatch.setattr(Transformer, "decode_step", decode_step)
    model = small_model()
    tf.function(lambda x: generate(model, x, max_length=4))(sources())
    assert rewritten
    assert set().union(*rewritten) == {"<lambda>"}


def test_sampling_repeats_with_a_seed_and_not_without():
    model = small_model(seed=3)
    source = sources(8)
    one = decode(model, source, 4, method="sample", seed=1)
    np.testing.assert_array_equal(one, decode(model, source, 4, method="sample", seed=np.int64(1)))
    assert np.any(one != decode(model, source, 4, method="sample", seed=2))
    free = [decode(model, source, 4, method="sample") for _ in range(2)]
    assert np.any(free[0] != free[1])


def test_each_step_draws_with_a_number_of_its_own():
    model = small_model(seed=3)
    for weight in model.weights:
        weight.assign(np.zeros(weight.shape, "float32"))  # all tokens are equally likely
    rows, length, vocabulary = 16, 6, model.config.target_vocabulary_size
    tokens = decode(model, sources(rows), length, method="sample", seed=5)
    uniform = np.asarray(keras.random.uniform((rows, length), dtype="float32", seed=5))
    logits = np.zeros((rows, vocabulary), "float32")
    logits[:, [0, 1]] = -1e30
    convert = keras.ops.convert_to_tensor
    columns = [np.asarray(draw(convert(logits), convert(x), 1.0, None, None)) for x in uniform.T]
    expected = np.stack(columns, 1)
    ended = np.cumsum(expected == 2, axis=1) - (expected == 2) > 0
    np.testing.assert_array_equal(tokens, np.where(ended, 0, expected))
    assert len({tuple(row) for row in expected}) == rows


@on_tensorflow
@pytest.mark.usefixtures("compiled")
def test_sampling_without_a_seed_draws_afresh_in_a_tf_function():
    model = small_model(seed=3)
    traced = tf.function(lambda x: generate(model, x, max_length=8, method="sample"))
    source = tf.constant(sources(8))
    assert np.any(np.asarray(traced(source)) != np.asarray(traced(source)))


def test_sampling_cut_to_one_token_is_greedy():
    model = small_model(seed=4, end_bias=END_BIAS)
    greedy = decode(model, sources(), 5)
    for options in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-3}):
        sampled = decode(model, sources(), 5, method="sample", **options)
        np.testing.assert_array_equal(sampled, greedy, err_msg=str(options))


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, None, None, None),
        (0.5, None, None, None),
        (2.0, 3, None, None),
        (1.0, None, 0.7, None),
        (1.0, 4, 0.6, None),
        (2.0, None, None, 0.4),
        (2.0, 5, 0.95, 0.5),
    ],
)
def test_drawn_tokens_have_the_right_frequencies(temperature, top_k, top_p, min_p):
    logits = np.array([1.0, -1e30, 0.3, 2.0, -0.5, 1.4], "float32")
    p = np.exp(logits.astype("float64") / temperature)
    p /= p.sum()
    order = np.argsort(-p)
    if top_k is not None:
        p[order[top_k:]] = 0
        p /= p.sum()
    if top_p is not None:
        kept = np.searchsorted(np.cumsum(p[order]), top_p) + 1
        p[order[kept:]] = 0
        p /= p.sum()
    if min_p is not None:
        p[p < min_p * p.max()] = 0
        p /= p.sum()
    draws = 20000
    uniform = (np.arange(draws) + 0.5) / draws  # evenly spread: frequencies are exact up to 1/draws
    tokens = draw(
        keras.ops.convert_to_tensor(np.tile(logits, (draws, 1))),
        keras.ops.convert_to_tensor(uniform.astype("float32")),
        temperature,
        top_k,
        top_p,
        min_p,
    )
    frequencies = np.bincount(np.asarray(tokens), minlength=6) / draws
    np.testing.assert_allclose(frequencies, p, atol=5e-4)
    assert not np.any(frequencies[p == 0])


def test_draws_at_the_ends_of_the_interval_are_possible_tokens():
    logits = np.array([[-1e30, 0.0, 0.0, -1e30]] * 2, "float32")
    uniform = np.array([0.0, np.nextafter(np.float32(1), np.float32(0))], "float32")
    for cut in ((None, None), (3, None), (None, 1.0)):
        tokens = draw(*map(keras.ops.convert_to_tensor, (logits, uniform)), 1.0, *cut)
        assert set(np.asarray(tokens)) <= {1, 2}


@pytest.mark.parametrize(
    ("policy", "method"),
    [
        ("mixed_float16", "greedy"),
        pytest.param("mixed_bfloat16", "beam", marks=slow),
        pytest.param("mixed_bfloat16", "sample", marks=slow),
    ],
)
def test_mixed_precision(policy, method):
    model = small_model(seed=4, end_bias=END_BIAS, dtype=policy)
    tokens = decode(model, sources(), **METHODS[method])
    assert tokens.shape == (5, 8)
    assert np.all(tokens < 9)
    assert np.all(tokens >= 0)


def test_changed_weights_are_seen():
    model = small_model(seed=3)
    before = decode(model, sources(), 4)
    other = small_model(seed=4)
    model.set_weights(other.get_weights())
    after = decode(model, sources(), 4)
    assert np.any(before != after)
    np.testing.assert_array_equal(after, decode(other, sources(), 4))


def kept_programs(model):
    return list(compiled._kept[model].by_key)


@pytest.mark.usefixtures("compiled")
def test_lora_is_seen():
    model = small_model(seed=3)
    source = sources()
    before = scored(model, source)
    for block in model.decoder.blocks:
        dense = block.self_attention.value_dense
        dense.enable_lora(2)
        dense.lora_kernel_b.assign(np.ones(dense.lora_kernel_b.shape, "float32"))
        dense.lora_kernel_a.assign(np.ones(dense.lora_kernel_a.shape, "float32"))
    after = scored(model, source)
    assert np.all(after[1] != before[1])
    np.testing.assert_array_equal(after[0], decode(model, source, use_cache=False))
    assert len(kept_programs(model)) == 2  # those of before are gone


def test_the_dtype_of_the_weights_and_a_policy_are_seen():
    """A policy changes what a layer computes in, and no variable."""

    def program():  # made, and not traced before it runs
        return compiled.program(model, {"max_length": 8}, _generation._decode)

    model = small_model(seed=3)
    dense = model.decoder.blocks[0].feed_forward.hidden_dense
    first = program()
    assert program() is first
    dense.dtype_policy = keras.DTypePolicy("mixed_bfloat16")
    second = program()
    assert second is not first
    assert program() is second
    dense.dtype_policy = keras.DTypePolicy("float32")
    dense.quantize("int8")
    assert program() not in (first, second)


@pytest.mark.usefixtures("compiled")
def test_the_choice_of_an_implementation_is_seen():
    model = small_model(seed=3)
    native = heed.info()["implementation"] == "native"
    with traced() as auto:
        decode(model, sources())
        decode(model, sources())  # the engine's program is compiled when it is used again
    with traced() as portable, heed.set_implementation("portable"):
        decode(model, sources())
    assert bool(auto.native) == native
    assert portable.ops
    assert not portable.native
    with traced() as again:
        decode(model, sources())
    assert not again.ops  # the first program is still there


@pytest.mark.usefixtures("compiled")
def test_programs_are_as_few_as_they_can_be():
    model = small_model(seed=3)
    source = sources()[:1]
    for temperature in (0.5, 1.0):
        decode(model, source, 2, temperature=temperature, top_k=3, beam_size=2)
    assert len(kept_programs(model)) == 1
    for length in range(1, 12):  # made, and not traced before it runs
        compiled.program(model, {"max_length": length}, _generation._decode)
    assert len(kept_programs(model)) == compiled._MOST
    assert {dict(key[2:])["max_length"] for key in kept_programs(model)} == set(range(4, 12))


def test_a_model_is_not_kept_alive():
    model = small_model()
    decode(model, sources())
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("method", [pytest.param("greedy", marks=slow), "beam"])
def test_padding_other_than_zero(method):
    model = small_model(seed=4, end_bias=2.0, pad_id=7, start_id=3, end_id=0)
    source = np.where(sources() == 0, 7, sources())
    tokens = decode(model, source, **METHODS[method])
    lengths = lengths_of(tokens, end=0)
    assert np.any(lengths < 8)
    for row, length in zip(tokens, lengths, strict=True):
        assert not np.isin(row[:length], [3, 7]).any()
        assert np.all(row[length:] == 7)


def test_a_prompt_is_gone_on_from():
    """Token by token, rows with prompts of their own lengths, of which one has none and one has ended."""
    model, source = small_model(seed=4, end_bias=END_BIAS), sources(4)
    prompt = [[5, 0, 0], [7, 4, 3], [0, 6, 6], [3, 2, 5]]
    given = np.array([1, 3, 0, 2])  # what comes after padding, or the end, is none
    for use_cache in (True, False):
        tokens = decode(model, source, prompt=prompt, use_cache=use_cache)
        assert_greedy(model, source, tokens, given)
        kept = np.arange(3) < given[:, None]
        np.testing.assert_array_equal(tokens[:, :3][kept], np.array(prompt)[kept])
    whole = decode(model, source, prompt=np.full((4, 8), 5))
    np.testing.assert_array_equal(whole, np.full((4, 8), 5))


@pytest.mark.parametrize("alpha", [pytest.param(0.0, marks=slow), 2.0])
def test_a_prompt_counts_for_nothing_in_a_search(exhausted, alpha):
    """The best sequence that begins with it, by the probability and the length of what comes after."""
    model, cases = exhausted
    weights, source, tables = cases[0]
    model.set_weights(weights)
    options = {"method": "beam", "beam_size": 81, "length_penalty": alpha}
    for token in range(3, VOCABULARY):
        found = decode(model, source, STEPS, prompt=[[token], [token]], **options)
        for row, finished, tokens in zip(source, tables, found, strict=True):
            given = allowed_log_probabilities(model, row[None], [[0]])[0, 0, token]
            scores = {
                y: (log - given) / penalty(len(y) - 1, alpha)
                for y, log in finished.items()
                if y[0] == token
            }
            best = max(scores, key=scores.get)
            assert tuple(tokens) == best + (0,) * (STEPS - len(best))


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ([[3], [4]], r"`prompt` must have as many rows .*=\(2, 1\).*source.shape=\(5, 6\)"),
        (np.full((5, 9), 3), r"`prompt` must not be longer .*\(5, 9\), max_length=8"),
    ],
)
def test_bad_prompts_are_named(prompt, text):
    with pytest.raises(ValueError, match=text):
        decode(small_model(), sources(), prompt=prompt)


def test_a_block_put_in_the_place_of_another_is_seen():
    model, source = small_model(seed=4, decoder_layers=2), sources()
    before = decode(model, source, 4)
    other = small_model(seed=5, decoder_layers=2)
    model.decoder.blocks[1] = other.decoder.blocks[1]
    after = decode(model, source, 4)
    assert np.any(after != before)
    model.decoder.blocks[1] = other.decoder.blocks[1]
    np.testing.assert_array_equal(decode(model, source, 4), after)


def test_lists_and_empty_batches():
    model = small_model(seed=3)
    np.testing.assert_array_equal(
        decode(model, [[3, 4, 5], [6, 0, 0]], 4),
        decode(model, np.array([[3, 4, 5], [6, 0, 0]]), 4),
    )
    assert decode(model, np.zeros((0, 4), "int32")).shape == (0, 8)
    assert decode(model, sources(), 1).shape == (5, 1)


# Values out of range; every option refuses what has another type, too.
BAD = {
    "method": ["viterbi", ["greedy"]],
    "max_length": [10**9, 0, 2.5],
    "beam_size": [10**9, 0],
    "num_results": [10**9],
    "length_penalty": [1000, -1, float("nan"), 10**400],
    "coverage_penalty": [1e6],
    "temperature": [0, 1e-320, 1e30, float("inf"), np.bool_(True)],  # logits would leave float32
    "top_k": [0, True],
    "top_p": [0.0, 1.5, float("nan")],
    "min_p": [1.5],
    "seed": [10**400],
    "return_scores": [1],
}


def test_bad_options_are_named():
    model = Transformer(small_config())
    for field in dataclasses.fields(GenerateOptions):
        name = field.name
        for value in [*BAD.get(name, ()), ..., "1"]:
            with pytest.raises(ValueError, match=rf"`{name}` must .*Received: {name}="):
                decode(model, sources(), **{"max_length": 4, name: value})
            if name in ("method", "beam_size", "use_cache"):
                with pytest.raises(ValueError, match=rf"`{name}` must .*Received: {name}="):
                    explain_generate(model, **{name: value})
    assert not model.built  # nothing was done yet


def test_more_tokens_to_choose_from_than_there_are_cut_nothing():
    model, options = small_model(), {"method": "sample", "seed": 3}
    np.testing.assert_array_equal(
        decode(model, sources(), 4, top_k=2**31 - 1, **options),
        decode(model, sources(), 4, top_k=model.config.target_vocabulary_size, **options),
    )


def test_bad_models_are_named():
    with pytest.raises(TypeError, match="`model` must be"):
        decode(keras.Sequential(), sources())


def test_learned_positions_bound_the_length():
    model = small_model(position="learned", max_length=6)
    assert decode(model, sources(), 6).shape == (5, 6)
    with pytest.raises(ValueError, match=r"`max_length` must .*=7, config\.max_length=6"):
        decode(model, sources(), 7)


@on_tensorflow
@pytest.mark.slow
@pytest.mark.usefixtures("compiled")
def test_a_step_in_the_graph_allocates_no_caches():
    """Whatever the length of the caches: an op that copied one, even one layer's keys, would show."""

    def bytes_of_a_step(length):
        model = small_model(seed=4, end_bias=-1e4, width=16)
        options = {"method": "greedy", "max_length": length, "use_cache": True}
        options |= {"num_results": 1, "return_scores": False}

        def decode_in_graph(source):
            return _generation._decode(model, {"source": source}, options)[0]

        function = tf.function(decode_in_graph, input_signature=[tf.TensorSpec((2, 5), tf.int32)])
        with traced() as found:
            concrete = function.get_concrete_function()
        assert "HeedCacheWrite" in found.native  # what XLA does in its place is not counted
        return allocated(concrete, tf.fill((2, 5), 4)) / length

    keys = 2 * 16 * 4  # of two texts at one position, in float32
    assert abs(bytes_of_a_step(264) - bytes_of_a_step(64)) < 200 * keys / 10


def scored(model, source, max_length=8, **options):
    """Return tokens and scores, as arrays."""
    found = generate(model, source, max_length=max_length, return_scores=True, **options)
    return tuple(np.asarray(x) for x in found)


@pytest.mark.parametrize("alpha", [pytest.param(0.0, marks=slow), 0.6])
def test_several_results_of_a_beam_are_the_best_of_all(exhausted, alpha):
    """Every sequence that ends, in order, with its score; then those that are cut."""
    model, cases = exhausted
    for weights, source, tables in cases:
        model.set_weights(weights)
        options = {"method": "beam", "beam_size": 120, "length_penalty": alpha, "num_results": 45}
        tokens, scores = scored(model, source, STEPS, **options)
        assert tokens.shape == (2, 45, STEPS)
        for finished, found, own in zip(tables, tokens, scores, strict=True):
            ranked = sorted(finished, key=lambda y: -finished[y] / penalty(len(y), alpha))
            assert len(ranked) == 40
            expected = [finished[y] / penalty(len(y), alpha) for y in ranked]
            np.testing.assert_allclose(own[:40], expected, rtol=1e-4)
            assert {tuple(row[row != 0].tolist()) for row in found[:40]} == set(ranked)
            assert (found[40:] > 2).all()
            assert (np.diff(own[40:]) <= 0).all()


def test_the_first_of_several_is_what_a_search_for_one_finds():
    model, source = small_model(seed=4, end_bias=END_BIAS), sources(6)
    options = {"method": "beam", "beam_size": 4}
    several, scores = scored(model, source, num_results=4, **options)
    one, score = scored(model, source, **options)
    assert (several.shape, scores.shape, one.shape, score.shape) == (
        (6, 4, 8),
        (6, 4),
        (6, 8),
        (6,),
    )
    np.testing.assert_array_equal(several[:, 0], one)
    np.testing.assert_array_equal(scores[:, 0], score)
    np.testing.assert_array_equal(decode(model, source, num_results=1, **options)[:, 0], one)
    assert all(len({tuple(tokens) for tokens in found}) == 4 for found in several)
    each = several.reshape(24, 8)
    expected = log_probabilities(model, source.repeat(4, 0), each)
    expected /= penalty((each != 0).sum(axis=1), 0.6)
    np.testing.assert_allclose(scores.ravel(), expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("prompt", "method"),
    [
        (None, "greedy"),
        ([3, 4], "sample"),
        pytest.param(None, "sample", marks=slow),
        pytest.param([3, 4], "greedy", marks=slow),
    ],
    ids=str,
)
def test_scores_are_log_probabilities_of_the_model(method, prompt):
    model, source = small_model(seed=4, end_bias=END_BIAS), sources(4)
    rows = None if prompt is None else np.tile(prompt, (4, 1))
    options = {"prompt": rows, "method": method}
    if method == "sample":
        options |= {"seed": 5, "temperature": 0.7, "top_k": 5}
    tokens, scores = scored(model, source, **options)
    np.testing.assert_array_equal(tokens, decode(model, source, **options))
    expected = log_probabilities(model, source, tokens, len(prompt or ()))
    np.testing.assert_allclose(scores, expected, rtol=1e-4)


def test_several_draws_are_rows_of_their_own():
    model, source = small_model(seed=3), sources(4)
    prompt = np.array([[3, 4], [5, 0], [0, 0], [3, 2]])
    options = {"method": "sample", "seed": 5}
    several, scores = scored(model, source, num_results=3, prompt=prompt, **options)
    assert (several.shape, scores.shape) == ((4, 3, 8), (4, 3))
    repeated = decode(model, source.repeat(3, 0), prompt=prompt.repeat(3, 0), **options)
    np.testing.assert_array_equal(several.reshape(12, 8), repeated)
    assert len({tuple(row) for row in several[0]}) > 1
    assert scores[3].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_results": 0}, "`num_results` must be an integer >= 1"),
        ({"num_results": 2}, '`num_results` must be 1 where `method` is "greedy"'),
        ({"num_results": 5, "method": "beam"}, "at most `beam_size`.*num_results=5, beam_size=4"),
    ],
)
def test_more_results_than_there_are(options, message):
    with pytest.raises(ValueError, match=message):
        decode(small_model(), sources(), **options)


def test_several_results_of_no_rows():
    tokens, scores = scored(small_model(), sources()[:0], method="beam", num_results=2)
    assert (tokens.shape, scores.shape) == ((0, 2, 8), (0, 2))


def test_inputs_of_a_repeated_graph_go_by_their_names():
    run = current().compile_graph_when_repeated(lambda x: x["source"] - 2.0 * x["prompt"])
    for size in (1, 2, 3):  # first called directly, then as one graph
        inputs = {"source": keras.ops.ones((size,)), "prompt": keras.ops.zeros((size,))}
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(run(inputs)), np.ones(size))
