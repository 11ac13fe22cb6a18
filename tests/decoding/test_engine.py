"""Decoding by the engine: the tokens of the graph, weights as they are now, and reasons where it steps aside."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import itertools
import os
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import heed
from heed.decoding import engine
from heed.decoding.engine.describe import describe_decoder, describe_stack
from heed.layers import (
    FeedForward,
    MultiHeadAttention,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)
from heed.layers.flat_dense import FlatEinsumDense
from heed.layers.normalization import LayerNormalization
from heed.models import (
    LanguageModel,
    LanguageModelConfig,
    Transformer,
    TransformerConfig,
    explain_generate,
    generate,
    stream,
)
from heed.models.config import POSITIONS
from heed.ops import set_implementation
from heed.ops.backends import current
from heed.ops.core.decoder import Decoding, PackedDecoder, Stack
from heed.ops.core.description import (
    Batch,
    Dense,
    Norm,
    Positions,
    Search,
    map_tensors,
)
from heed.ops.observe import set_watcher
from heed.weights import CACHES, WEIGHTS
from tests.backend import BACKEND, WrongValue, on_tensorflow, tf
from tests.decoding.scores import log_probabilities
from tests.decoding.ways import by_both, in_the_graph, request
from tests.graphs import traced
from tests.models.builders import small_config, small_language_model, small_model, sources
from tests.slow import slow as slow_cases

pytestmark = pytest.mark.skipif(
    bool(engine.machine_reasons()), reason="the engine does not run here"
)
slow = pytest.mark.slow  # a graph is traced in each case: the default run has the telling ones
GREEDY: dict[str, Any] = {"method": "greedy"}
BEAM: dict[str, Any] = {"method": "beam", "beam_size": 3}
SAMPLED: dict[str, Any] = {"method": "sample", "seed": 5, "top_k": 5, "temperature": 1.5}


def decode(model: Any, source: Any, max_length: int = 8, **options: Any) -> np.ndarray:
    return np.asarray(generate(model, source, max_length=max_length, **options))


def decode_in_graph(model: Any, source: Any, **options: Any) -> np.ndarray:
    with in_the_graph():
        return decode(model, source, **options)


VARIANTS: tuple[dict[str, Any], ...] = (
    *({"position": position} for position in POSITIONS),
    {"norm_first": False, "decoder_layers": 3},
    {"num_heads": 4, "num_key_value_heads": 2, "width": 24},
    {"tie_embeddings": True},
    {"share_embeddings": True, "tie_embeddings": True, "target_vocabulary_size": 11},
    {"width": 70, "num_heads": 5, "feed_forward_width": 101, "target_vocabulary_size": 75},
    {"activation": "gelu", "position": "rotary", "norm_first": False},
)


WAYS = (GREEDY, BEAM, SAMPLED)
# Each option of a config has its turn in `test_every_option_of_a_config_is_taken_or_named`; here are the sizes that
# leave tails, by `generate` itself.
QUICK = ((8, BEAM), (9, GREEDY), (10, SAMPLED))


@pytest.mark.parametrize(
    ("variant", "options"),
    [
        *((VARIANTS[number], way) for number, way in QUICK),
        *(pytest.param(x, way, marks=slow) for x in VARIANTS for way in WAYS),
    ],
    ids=str,
)
def test_the_tokens_are_those_of_the_graph(variant: Any, options: Any) -> None:
    tied = variant.get("tie_embeddings", False)
    model = small_model(seed=4, **({} if tied else {"end_bias": 0.7}), **variant)
    assert explain_generate(model, method=options["method"]).implementation == "engine"
    source = sources(12)
    tokens = decode(model, source, **options)
    assert tokens.dtype == np.int32
    np.testing.assert_array_equal(tokens, decode(model, source, **options))  # compiled now
    np.testing.assert_array_equal(tokens, decode_in_graph(model, source, **options))


@pytest.mark.parametrize(
    "options", [BEAM, *(pytest.param(x, marks=slow) for x in (GREEDY, SAMPLED))], ids=str
)
@pytest.mark.usefixtures("compiled")
def test_nothing_is_traced_but_the_reading_of_weights(options: Any) -> None:
    model = small_model(seed=3)
    with traced() as found:
        first = decode(model, sources(), **options)
    assert not found.ops
    with traced() as found:
        second = decode(model, sources(), **options)
    assert "ReadVariableOp" in found.ops
    assert not found.ops & {"HeedDecode", "MatMul", "While"}
    with traced() as found:  # of another number and length
        third = decode(model, sources(7)[:2], **options)
    assert not found.ops
    assert third.shape == (2, 8)
    np.testing.assert_array_equal(first, second)


def by_engine(*arguments: Any, **options: Any) -> np.ndarray:
    return np.asarray(engine.decode(*request(*arguments, **options))[0])[:, 0]


METHODS = ({"method": "greedy"}, {"method": "beam"}, {"method": "sample"})
SEVERAL = ({"method": "beam", "num_results": 3}, {"method": "sample", "num_results": 2})

# Of each field of a config, other values than those of `small_config`: all are taken.
TAKEN: dict[str, Any] = {
    "source_vocabulary_size": [12, 40],
    "target_vocabulary_size": [4, 70],
    "width": [2, 70],
    "num_heads": [1, 4],
    "num_key_value_heads": [1, 2],
    "encoder_layers": [2],
    "decoder_layers": [3],
    "feed_forward_width": [1, 33],
    "dropout": [0.5],
    "attention_dropout": [0.5],
    # The formulas of all are compared in tests/native/test_decoder.py.
    "activation": ["gelu", "silu", "tanh"],
    "norm_first": [False],
    "position": list(POSITIONS),
    "max_length": [7],
    "tie_embeddings": [False],
    "scale_embeddings": [False],
    "normalize_embeddings": [True],
    "share_embeddings": [True],
    "logit_soft_cap": [0.5],
    "sliding_window_pattern": [2],
    "rotary_local_base": [5.0],
    "rotary_pattern": [2],
    "pad_id": [5],
    "start_id": [6],
    "end_id": [4],
    "key_dim": [6, 1],
    "value_dim": [5, 17],
    "use_bias": [False],
    "qkv_bias": [True],
    "soft_cap": [0.5],
    "sliding_window": [1, 3, 2**31 - 1],
    "normalization": ["rms"],
    "norm_epsilon": [0.5],
    "gated": [True],
    "qk_norm": [True],
    "sinks": [True],
    "score_mod": [None],
    "post_norms": [False],
    "score_scale": [1.5],
    "rotary_base": [7.0],
    "rotary_dim": [2, 0],
    "parallel": [False],
}
# What the graph decodes, with the value in the reason.
NAMED = {
    "activation": ["softmax", "mish"],
    "score_mod": ["test_engine>farther_is_less"],
    "post_norms": [True],  # of a layer with cross-attention
    "parallel": [True],
}


@keras.saving.register_keras_serializable(package="test_engine")
def farther_is_less(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return score - 0.1 * keras.ops.abs(query - key)


def varied(**changes: Any) -> Any:
    """Return a model with these changes, and those that they need to make sense."""
    if any(name.startswith("rotary_") for name in changes):
        changes["position"] = "rotary"
    if "key_dim" in changes and changes["key_dim"] % 2 and changes.get("position") == "rotary":
        changes["position"] = "alibi"
    if changes.get("sliding_window_pattern") or changes.get("rotary_local_base"):
        changes.setdefault("sliding_window", 2)
    if changes.get("share_embeddings"):
        changes["target_vocabulary_size"] = changes.setdefault("source_vocabulary_size", 11)
    return small_model(seed=4, **changes)


@pytest.mark.parametrize("together", [5, pytest.param(1, marks=slow)])
def test_every_option_of_a_config_is_taken_or_named(together: int) -> None:
    """Several at a time by default: one that is not taken changes what is written all the same."""
    assert set(TAKEN) == {field.name for field in dataclasses.fields(TransformerConfig)}
    if together == 1:
        cases = [{name: value} for name, values in TAKEN.items() for value in values]
    else:
        names = list(TAKEN)
        cases = [
            {name: TAKEN[name][0] for name in names[start : start + together]}
            for start in range(0, len(names), together)
        ]
    found = set()
    for changes in cases:
        model = varied(**changes)
        batch = sources(4, vocabulary=model.config.source_vocabulary_size)
        mine, graphs = by_both(model, batch, max_length=4, method="beam")
        np.testing.assert_array_equal(mine, graphs, err_msg=str(changes))
        found.add(mine.tobytes())
    for name, values in NAMED.items():
        for value in values[: 1 if together > 1 else None]:
            (reason,) = explain_generate(varied(**{name: value})).reasons
            assert repr(value) in reason
    assert len(found) > len(TAKEN) // together // 2  # options change tokens


OF_LANGUAGE_MODELS: tuple[dict[str, Any], ...] = (
    {"post_norms": True},
    {"post_norms": True, "norm_first": False},
    {"logit_soft_cap": 0.7},
    {"qkv_bias": True},
    {"sliding_window_pattern": 2},
    {"score_scale": 1.7},
    {"rotary_base": 7.0, "rotary_dim": 4},
    {"sliding_window_pattern": 2, "rotary_local_base": 3.0},
    {"rotary_pattern": 2},
    {"rotary_dim": 0},
    {"parallel": True},
    {"parallel": True, "post_norms": True, "position": "alibi"},
)
_TOGETHER = {name: x for one in OF_LANGUAGE_MODELS[:-3] for name, x in one.items()} | {
    "norm_first": True,
    "parallel": True,
    "rotary_pattern": 3,  # after a layer of each base
}


@pytest.mark.parametrize(
    "changes",
    [
        _TOGETHER,
        *(pytest.param(x, marks=slow) for x in OF_LANGUAGE_MODELS),
    ],
    ids=str,
)
def test_options_of_language_models_are_those_of_the_graph(changes: dict[str, Any]) -> None:
    shared = {"layers": 3, "normalization": "rms", "sliding_window": 2, "use_bias": False}
    shared["key_dim"] = (
        8  # two pairs of features to rotate: the first one turns the same whatever the base
    )
    plain = {"norm_first": changes.get("norm_first", True)}
    models = [small_language_model(**shared, **x) for x in (changes, plain)]
    assert explain_generate(models[0]).implementation == "engine"
    options = {
        "prompt": np.array([[3, 4, 5], [6, 7, 8]], "int32"),
        "method": "beam",
        "max_length": 9,
    }

    def written(model: Any) -> list[np.ndarray]:
        return [np.asarray(x) for x in generate(model, **options, return_scores=True)]

    tokens, scores = written(models[0])
    with set_implementation("portable"):
        graph = written(models[0])
    np.testing.assert_array_equal(tokens, graph[0])
    np.testing.assert_allclose(scores, graph[1], atol=1e-4, rtol=1e-5)
    assert not np.array_equal(scores, written(models[1])[1])


@given(
    changes=st.fixed_dictionaries(
        {}, optional={name: st.sampled_from(x) for name, x in TAKEN.items() if name[-3:] != "_id"}
    ),
    method=st.sampled_from((*METHODS, *SEVERAL)),
    data=st.data(),
)
@settings(max_examples=settings.default.max_examples // 3)
def test_tokens_are_those_of_the_graph_whatever_is_combined(
    changes: Any, method: Any, data: Any
) -> None:
    try:
        model = varied(**changes)
    except ValueError as error:
        assert "must" in str(error)  # noqa: PT017 (no such config)
        return
    config = model.config
    batch = sources(4, vocabulary=config.source_vocabulary_size)
    prompt = None
    if data.draw(st.booleans()):
        row = st.lists(st.integers(0, config.target_vocabulary_size - 1), min_size=3, max_size=3)
        prompt = data.draw(st.lists(row, min_size=4, max_size=4))
    if method["method"] == "sample" and config.logit_soft_cap:
        # Scores at the cap are equal, and rounding decides which of them are the likeliest.
        method = {**method, "top_k": None, "top_p": None}
    mine, graphs = by_both(model, batch, prompt=prompt, **method)
    other = (mine != graphs).any(axis=1)
    if method["method"] == "beam" and other.any():
        # Rounding decides between hypotheses of one score: the model itself must give both the same.
        source = batch.repeat(len(mine) // len(batch), axis=0)[other]
        given = 0
        if prompt is not None:
            rows = np.asarray(prompt).repeat(len(mine) // len(batch), axis=0)[other]
            given = (np.cumprod(rows != config.pad_id, axis=1)).sum(axis=1, keepdims=True)
        scores = []
        for tokens in (mine[other], graphs[other]):
            own = (tokens != config.pad_id).sum(axis=1) - np.squeeze(given)
            scores.append(log_probabilities(model, source, tokens, given) / ((5 + own) / 6) ** 0.6)
        np.testing.assert_allclose(*scores, atol=1e-4, rtol=1e-5)
    else:
        np.testing.assert_array_equal(mine, graphs)


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 1, "return_scores": False},
        {"top_k": 4, "top_p": 0.6},
        {"min_p": 0.3, "top_k": None, "top_p": None},
        {"beam_size": 4, "length_penalty": 2.0},
        *slow_cases(
            [
                {"top_k": None, "top_p": None},
                {"top_p": 0.7},
                {"top_p": 1.0},
                {"beam_size": 1},
                {"beam_size": 2, "length_penalty": 0.0},
                {"beam_size": 9},
            ]
        ),
    ],
    ids=str,
)
def test_choices_are_those_of_the_graph(options: Any) -> None:
    method = "beam" if "beam_size" in options else "sample"
    model = small_model(seed=4, end_bias=0.7, position="relative")
    mine, graphs = by_both(model, sources(20), max_length=8, method=method, **options)
    np.testing.assert_array_equal(mine, graphs)


def test_each_layer_has_settings_of_its_own() -> None:
    """As when some layers see a window and others all, or when one is put in the place of another."""
    model = small_model(seed=4, decoder_layers=3, encoder_layers=2, sliding_window=2)
    model.decoder.blocks[1] = TransformerDecoderLayer(
        2, 24, soft_cap=0.5, gated=True, normalization="rms", activation="gelu", norm_first=False
    )
    model.encoder.blocks[0] = TransformerEncoderLayer(2, 5, use_bias=False, norm_epsilon=0.1)
    for block in (model.decoder.blocks[1], model.encoder.blocks[0]):
        block.build((None, None, 8))
    np.testing.assert_array_equal(*by_both(model, sources(8), method="beam"))


def test_heads_that_are_gated() -> None:
    model = small_model(seed=4, num_heads=4, num_key_value_heads=2)
    rng = np.random.default_rng(0)
    for stack in (model.decoder, model.encoder):
        for block in stack.blocks:
            for name in ("attention", "self_attention", "encoded_attention"):
                if hasattr(block, name):
                    gated = MultiHeadAttention(4, 2, num_key_value_heads=2, use_gate=True)
                    gated.build((None, None, 8), (None, None, 8))
                    gated.set_weights([rng.normal(size=x.shape) for x in gated.weights])
                    block.__dict__[name] = gated
    np.testing.assert_array_equal(*by_both(model, sources(8), method="beam"))


@pytest.mark.parametrize(
    ("vocabulary", "end_bias", "beams"),
    [
        (4, -50.0, (9, 4)),
        (5, 0.7, (9, 4)),
        *(
            pytest.param(*each, marks=slow)
            for each in itertools.product([4, 5, 9], [-50.0, 0.7], [(3, 3), (9, 4)])
        ),
    ],
)
def test_several_results_are_those_of_the_graph(
    vocabulary: int, end_bias: float, beams: tuple[int, int]
) -> None:
    """Also where nothing ends, where there are fewer sequences, and where a prompt leaves nothing to decode."""
    model = small_model(seed=4, end_bias=end_bias, target_vocabulary_size=vocabulary)
    prompt = np.array(
        [[0] * 6, [3, 2, 0, 0, 0, 0], [3] * 6, [3, 0, 0, 0, 0, 0], [3, 3, 3, 3, 3, 0]]
    )
    options = {"method": "beam", "beam_size": beams[0], "num_results": beams[1]}
    np.testing.assert_array_equal(*by_both(model, sources(), prompt=prompt, **options))
    np.testing.assert_array_equal(*by_both(model, sources(), **options))


def test_prompts_are_those_of_the_graph() -> None:
    model, source = small_model(seed=4, end_bias=0.7, position="relative"), sources(12)
    rng = np.random.default_rng(0)
    prompt = np.where(np.arange(5) < rng.integers(0, 6, (12, 1)), rng.integers(2, 9, (12, 5)), 0)
    prompt[3] = [5, 0, 4, 4, 0]
    for method in METHODS:
        mine, graphs = by_both(model, source, prompt=prompt, **method)
        np.testing.assert_array_equal(mine, graphs)
        assert mine[3, 0] == 5
        for row in (0, 3, 7):  # of its own, whatever stands beside it
            rows = slice(row, row + 1)
            if method["method"] != "sample":  # whose numbers belong to places
                alone = by_engine(model, source[rows], prompt=prompt[rows], **method)
                np.testing.assert_array_equal(alone[0], mine[row])
    with pytest.raises(ValueError, match=r"`prompt` must be integers in \[0, 9\)"):
        decode(model, source, prompt=np.full((12, 2), 9))


@on_tensorflow
@pytest.mark.usefixtures("compiled")
def test_prompts_of_unknown_sizes() -> None:
    model = small_model(seed=4)
    spec = [tf.TensorSpec((None, None), tf.int32)] * 2

    @tf.function(input_signature=spec)
    def inside(x: Any, prompt: Any) -> Any:
        return generate(model, x, prompt=prompt, max_length=8)

    for prompt in (np.full((5, 2), 3), np.zeros((5, 0))):
        prompt = prompt.astype("int32")
        np.testing.assert_array_equal(
            inside(sources(), prompt), decode(model, sources(), prompt=prompt)
        )
    assert inside(np.zeros((0, 4), "int32"), np.zeros((0, 3), "int32")).shape == (0, 8)


def test_threads_change_nothing(monkeypatch: Any) -> None:
    """0 is as many as the process may use; more than there are do as many as there are rows."""
    model, source = small_model(seed=4, end_bias=0.7), sources(9)
    expected = by_engine(model, source, method="beam")
    for threads in (0, 1, 2, 5, 1000, 2**31 - 1, -3):
        monkeypatch.setattr(current(), "native_threads", lambda threads=threads: threads)
        np.testing.assert_array_equal(by_engine(model, source, method="beam"), expected)


@on_tensorflow
def test_threads_are_fixed_once_tensorflow_runs() -> None:
    model = small_model(seed=4)
    expected = decode(model, sources())
    with pytest.raises(RuntimeError, match="cannot be modified after initialization"):
        tf.config.threading.set_intra_op_parallelism_threads(1 + current().native_threads())
    np.testing.assert_array_equal(decode(model, sources()), expected)


def described() -> tuple[Any, Any]:
    """Describe decoder and encoder of a small model, of arrays."""
    model = small_model(seed=4)
    stacks = describe_decoder(model.decoder, "float32"), describe_stack(model.encoder, "float32")
    return tuple(map_tensors(x, lambda x: np.asarray(x, "float32")) for x in stacks)


def test_weights_that_do_not_fit_are_named_with_what_was_expected() -> None:
    stack, _ = described()
    source = sources()
    encoded = np.zeros((*source.shape, 8), "float32")

    def run_with(stack: Any, positions: Any = None, encoded: Any = encoded) -> Any:
        batch = Batch(source, source > 0, encoded, positions or Positions())
        return PackedDecoder(stack, None).decode(batch, Search(4, 0, 1, 2), 1)

    assert run_with(stack)[0].shape == (5, 1, 4)
    (layer,) = stack.layers
    for changed, text in (
        (
            {"back": Dense(np.zeros((15, 8)))},
            r"`decoder/layer_0/back/kernel` must hold 128 numbers. Received: shape \(15, 8\)",
        ),
        (
            {"self_norm": Norm(np.ones(9), None, 1e-6)},
            r"self_norm/gamma` must hold 8 numbers.*\(9,\)",
        ),
        ({"self_norm": Norm(np.ones(8, "float32"), None, -1.0)}, "`epsilon` of `self_norm` must"),
    ):
        bad = dataclasses.replace(stack, layers=(dataclasses.replace(layer, **changed),))
        with pytest.raises(ValueError, match=text):
            run_with(bad)
    with pytest.raises(ValueError, match=r"makes it shape \(4, 8\)\. Received: shape \(4, 9\)"):
        run_with(stack, Positions(table=np.zeros((4, 9))))
    with pytest.raises(ValueError, match=r"`encoded` must fit.*\(5, \d, 8\).*\(5, \d, 9\)"):
        run_with(stack, encoded=np.zeros((*source.shape, 9)))


@pytest.fixture(scope="module")
def arguments() -> dict[str, Any]:
    """Those of the engine's op in a beam search."""
    from heed.ops.backends.tensorflow.native import library

    calls: list[dict[str, Any]] = []
    real = library.ops()

    def decode_and_note(**arguments: Any) -> Any:
        calls.append(arguments)
        return real.heed_decode(**arguments)

    source = keras.ops.convert_to_tensor(sources())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(library, "ops", lambda: types.SimpleNamespace(heed_decode=decode_and_note))
        batch, search = Batch(source, source > 0), Search(8, 0, 1, 2, method="beam", beam_size=3)
        current().DECODER_OP.decode(*described(), batch, search)
    return calls[0]


def struct(cls: Any, data: bytes, **changes: Any) -> bytes:
    """Return the bytes of a structure, with some fields changed; what follows it stays."""
    made = cls.from_buffer_copy(data[: ctypes.sizeof(cls)])
    for name, value in changes.items():
        setattr(made, name, value)
    return bytes(made) + data[ctypes.sizeof(cls) :]


@on_tensorflow
@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("stacks", lambda x: x[:-8], "`stacks` must hold two stacks and their layers"),
        ("stacks", lambda x: x + bytes(8), "two stacks and their layers alone"),
        ("stacks", lambda x: b"", "`stacks` must hold two stacks"),
        ("stacks", lambda x: struct(Stack, x, layer_count=2**31 - 1), "must hold two stacks"),
        ("stacks", lambda x: struct(Stack, x, layer_count=2), "`stacks` must hold"),
        ("stacks", lambda x: struct(Stack, x, embedding=1000), "must hold numbers of weights"),
        ("stacks", lambda x: struct(Stack, x, embedding=2**63), "must hold numbers of weights"),
        ("stacks", lambda x: struct(Stack, x, vocabulary=2**40), "a weight must hold"),
        ("stacks", lambda x: struct(Stack, x, heads=2**40), "`heads` must be in"),
        ("search", lambda x: x[:-1], "`search` must hold a search"),
        ("search", lambda x: struct(Decoding, x, length=2**40), "must hold a length from 1 to"),
        ("search", lambda x: struct(Decoding, x, length=0), "must hold a length from 1 to"),
        ("search", lambda x: struct(Decoding, x, results=2**24), "`results` must be in"),
        ("search", lambda x: struct(Decoding, x, beams=-1), "`beams` must be in"),
    ],
)
def test_the_op_refuses_structs_that_cannot_be(
    arguments: Any, name: str, change: Any, text: str
) -> None:
    refused(arguments, text, **{name: change(arguments[name])})


@on_tensorflow
def test_the_op_refuses_weights_of_other_sizes(arguments: Any) -> None:
    weights = arguments["weights"]
    for index, weight in enumerate(weights):
        for changed in (keras.ops.zeros((*weight.shape, 2)), keras.ops.zeros((0,))):
            several = [*weights[:index], changed, *weights[index + 1 :]]
            refused(arguments, "a weight must hold", weights=several)


def refused(arguments: dict[str, Any], text: str, **changes: Any) -> None:
    from heed.ops.backends.tensorflow.native import library

    with pytest.raises(WrongValue, match=text):
        library.ops().heed_decode(**{**arguments, **changes})


@on_tensorflow
@pytest.mark.parametrize("shape", [(2**40, 0), (2**32, 0), (0, 2**40), (0, 2**21)])
def test_sizes_that_no_memory_holds_are_refused(arguments: Any, shape: tuple[int, int]) -> None:
    text = "`source` must have at most 2\\^31 rows"
    refused(arguments, text, source=np.zeros(shape, np.int32), source_mask=np.zeros(shape, bool))


@pytest.fixture(scope="module")
def trained() -> tuple[Any, np.ndarray]:
    """Return a model that has learned to write its source backwards, and sources that it has not seen."""
    keras.utils.set_random_seed(0)
    sizes = {"width": 64, "num_heads": 4, "feed_forward_width": 128, "target_vocabulary_size": 11}
    model = Transformer(small_config(**sizes, position="rotary"))
    model.build()
    model.compile(
        keras.optimizers.Adam(2e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    rng = np.random.default_rng(0)
    source = rng.integers(3, 11, (9000, 5)).astype("int32")
    target = np.concatenate([source[:, ::-1], np.full((9000, 1), model.config.end_id)], 1)
    shifted = np.concatenate([np.full((9000, 1), model.config.start_id), target[:, :-1]], 1)
    known = {"source": source[:8000], "target": shifted[:8000]}
    model.fit(known, target[:8000], batch_size=64, epochs=6, verbose=0)
    right = decode(model, source[8000:], 6) == target[8000:]
    assert right.mean() > 0.95
    return model, source[8000:]


@slow
@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_narrow_weights_write_what_whole_ones_do(trained: Any, weights: str) -> None:
    model, source = trained
    narrow = decode(model, source, 6, weights=weights)
    assert np.mean(decode(model, source, 6) == narrow) >= 0.999


def test_channels_of_large_numbers_cost_integers_nothing() -> None:
    """A channel 100 times as large, whose consumers make up for it: the tokens are those of before."""
    model, source = small_model(seed=4, target_vocabulary_size=200), sources(40)
    kinds = ("float32", "int8", "int4")
    before = [decode(model, source, weights=kind) for kind in kinds]

    def multiply(variable: Any, factor: float, place: Any = 3) -> None:
        changed = np.array(keras.ops.convert_to_numpy(variable))
        changed[place] *= factor
        variable.assign(changed)

    def plant(norm: Any, *consumers: Any) -> None:
        for name in ("gamma", "beta"):
            multiply(getattr(norm, name), 128)
        for dense in consumers:
            multiply(dense.kernel, 1 / 128)

    for block in model.decoder.blocks:
        attention, part = block.self_attention, block.feed_forward
        plant(
            block.self_attention_norm,
            *(getattr(attention, f"{x}_dense") for x in ("query", "key", "value")),
        )
        plant(block.encoded_attention_norm, block.encoded_attention.query_dense)
        plant(block.feed_forward_norm, part.hidden_dense)
        # A column of large weights must not decide which inputs are scaled.
        multiply(part.hidden_dense.kernel, 128, np.s_[:, 3])
        multiply(part.hidden_dense.bias, 128)
        multiply(part.output_dense.kernel, 1 / 128)
    for kind, expected in zip(kinds, before, strict=True):
        np.testing.assert_array_equal(decode(model, source, weights=kind), expected)


def add_in_place(variable: Any, numbers: Any, counted: bool = True) -> None:
    """Add in the memory of a variable, where the backend has such a thing; not `counted`: behind PyTorch's back."""
    numbers = np.asarray(numbers, "float32")
    if BACKEND == "tensorflow":
        variable.value.assign_add(numbers)
    elif BACKEND == "jax":
        variable.assign(variable.value + numbers)
    else:
        (variable.value.detach() if counted else variable.value.data).add_(
            keras.ops.convert_to_tensor(numbers)
        )


def test_weights_of_several_kinds_stand_side_by_side() -> None:
    """A model that decides at random: rounding shows."""
    model, source = small_model(seed=4, target_vocabulary_size=2000), sources(40)
    tokens = {kind: decode(model, source, weights=kind) for kind in WEIGHTS}
    assert len({x.tobytes() for x in tokens.values()}) == len(WEIGHTS)
    for kind in WEIGHTS:
        np.testing.assert_array_equal(decode(model, source, weights=kind), tokens[kind])
    for x in model.trainable_variables:
        add_in_place(x, np.full(x.shape, 0.1))
    for kind in WEIGHTS:
        assert (decode(model, source, weights=kind) != tokens[kind]).any()


def test_narrow_weights_need_the_engine() -> None:
    model = small_model(seed=3, activation="softmax")
    with pytest.raises(ValueError, match=r"`weights` must be \"float32\" .*'softmax'.*'int8'"):
        decode(model, sources(), weights="int8")
    with pytest.raises(ValueError, match="`weights` must be one of"):
        decode(model, sources(), weights="int3")
    with pytest.raises(ValueError, match=r"`cache` must be \"float32\" .*'softmax'.*'bfloat16'"):
        decode(model, sources(), cache="bfloat16")


def test_caches_of_several_formats() -> None:
    model = small_language_model(seed=4, vocabulary_size=50, layers=2, max_length=80)
    prompt = np.random.default_rng(0).integers(4, 50, (20, 79))
    options = {"max_length": 80, "method": "sample", "top_k": 1, "seed": 3, "return_scores": True}
    tokens, scores = {}, {}
    for cache in CACHES:
        made = generate(model, prompt=prompt, cache=cache, **options)
        tokens[cache], scores[cache] = map(np.asarray, made)
    assert len({x.tobytes() for x in scores.values()}) == 3
    for narrow in CACHES[1:]:  # tests/native/test_decoder.py holds their numbers
        assert (tokens[narrow] == tokens["float32"]).all(1).sum() > 9
    source = sources()
    model = small_model(seed=4)
    for refused in ({"method": "beam"}, {"return_scores": True}):
        with pytest.raises(ValueError, match=r"`cache` must be .* for a beam search"):
            generate(model, source, max_length=8, cache="int8", **refused)
    with pytest.raises(ValueError, match="`cache` must be one of"):
        generate(model, source, max_length=8, cache="int4")


@on_tensorflow
@pytest.mark.usefixtures("compiled")
def test_it_is_one_op_of_a_graph() -> None:
    model = small_model(seed=4)
    with traced() as found:
        graph = tf.function(lambda x: generate(model, x, max_length=8))
        np.testing.assert_array_equal(graph(sources()), decode(model, sources()))
    assert "HeedDecode" in found.ops
    assert not found.ops & {"While", "StatelessWhile"}


@on_tensorflow
@pytest.mark.usefixtures("compiled")
def test_unknown_sizes_and_empty_batches() -> None:
    model = small_model(seed=4)
    spec = [tf.TensorSpec((None, None), tf.int32)]
    inside = tf.function(lambda x: generate(model, x, max_length=8), input_signature=spec)
    assert inside.get_concrete_function().structured_outputs.shape.as_list() == [None, 8]
    np.testing.assert_array_equal(inside(sources()), decode(model, sources()))
    assert inside(np.zeros((0, 4), "int32")).shape == (0, 8)
    assert inside(np.zeros((3, 0), "int32")).shape == (3, 8)


def test_weights_are_those_of_now() -> None:
    """However they were changed: whole, by an optimizer, or in place."""
    model, source = small_model(seed=3), sources(12)
    rng = np.random.default_rng(0)
    seen = {decode(model, source, 4).tobytes()}
    optimizer = keras.optimizers.SGD(1.0)

    def change(how: int) -> None:
        if how == 0:
            model.set_weights(small_model(seed=4).get_weights())
        elif how == 1:
            gradients = [
                keras.ops.convert_to_tensor(rng.normal(size=x.shape), "float32") for x in variables
            ]
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        else:
            for x in variables:
                add_in_place(x, rng.normal(size=x.shape), counted=how == 2)

    variables = model.trainable_variables
    for how in (0, 1, 2, 2, 3):
        change(how)
        tokens = decode(model, source, 4)
        np.testing.assert_array_equal(tokens, decode_in_graph(model, source, max_length=4))
        seen.add(tokens.tobytes())
    assert len(seen) > 3


def resident() -> int:
    """Return the memory of this process that is there, in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=slow)])
def test_large_weights_are_read_in_the_memory_of_the_model(tied: bool) -> None:
    """They are those of now, may change while a text is decoded, and outlive their model as long as it is."""
    sizes = {"vocabulary_size": 66000, "width": 256, "feed_forward_width": 64, "max_length": 24}
    model = LanguageModel(LanguageModelConfig(num_heads=2, layers=1, tie_embeddings=tied, **sizes))
    model.build()
    prompt, before = np.arange(4, 24)[None, :3], resident()
    tokens = list(stream(model, prompt=prompt, max_length=24))
    assert resident() - before < 45 << 20  # of a table of 65 MiB
    text = stream(model, prompt=prompt, max_length=24)
    first = next(text)
    for x in model.trainable_variables:
        add_in_place(x, -3 * keras.ops.convert_to_numpy(x))
    changed = list(stream(model, prompt=prompt, max_length=24))
    assert changed != tokens
    assert changed == list(stream(model, prompt=prompt, max_length=24))
    if BACKEND != "torch":  # which alone writes where others read
        assert [first, *text] == tokens
    text = stream(model, prompt=prompt, max_length=24)
    first = next(text)
    del model
    gc.collect()
    assert [first, *text] == changed


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_child_after_fork_decodes_with_threads_of_its_own() -> None:
    """What was packed before goes on; frameworks themselves may not work in such a child."""
    decoder = PackedDecoder(*described())
    source = sources(9)
    batch, search = Batch(source, source > 0), Search(6, 0, 1, 2)
    expected = decoder.decode(batch, search, 2)[0]
    child = os.fork()
    if child == 0:  # a hang would be seen as the parent's time-out
        status = 1
        try:
            status = int(not np.array_equal(decoder.decode(batch, search, 2)[0], expected))
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.usefixtures("compiled")
def test_threads_share_one_model() -> None:
    model = small_model(seed=4)
    batches = [sources(6, seed=seed) for seed in range(8)]
    expected = [decode(model, x) for x in batches]
    with ThreadPoolExecutor(4) as pool:
        for found, tokens in zip(
            pool.map(lambda x: decode(model, x), batches), expected, strict=True
        ):
            np.testing.assert_array_equal(found, tokens)


@slow
def test_packed_weights_go_with_the_model() -> None:
    sizes = []
    for seed in range(8):
        model = Transformer(small_config(width=512, num_heads=8, target_vocabulary_size=16000))
        decode(model, sources(2), 2)
        model.decoder.embedding.tokens.embeddings.assign_add(np.full((16000, 512), seed, "float32"))
        decode(model, sources(2), 3)
        del model
        keras.backend.clear_session()
        gc.collect()  # a model is in cycles, which wait for the collector
        sizes.append(resident())
    assert sizes[-1] - sizes[2] < 64 << 20  # twice 33 MB each, if they stayed


AT_THE_END = """
import sys, types
holder = types.ModuleType("holder")  # a module that is emptied after those imported later
sys.modules["holder"] = holder
from heed.ops.core import decoder
from tests.decoding.test_engine import described
holder.packed = decoder.PackedDecoder(*described())
sys.alive = holder, decoder
"""


@slow
def test_packed_weights_may_outlive_the_modules() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_END], capture_output=True, text=True, check=True
    )
    assert "Exception ignored" not in done.stderr


def subclassed(model: Any) -> None:
    class Own(MultiHeadAttention):
        pass

    model.decoder.blocks[0].self_attention.__class__ = Own


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"activation": "softmax"}, "no activation 'softmax'"),
        ({"dtype": "mixed_bfloat16"}, "computes in mixed_bfloat16"),
        ({"dtype": "float64"}, "computes in float64"),
    ],
)
def test_a_reason_of_the_config(changes: Any, reason: str) -> None:
    model = small_model(seed=3, **changes)
    explained = explain_generate(model)
    assert explained.implementation == "graph"
    assert reason in str(explained)
    assert decode(model, sources(), 2).shape == (5, 2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda model: model.decoder.blocks[0].feed_forward.hidden_dense.quantize("int8"),
            "is quantised to int8",
        ),
        (
            lambda model: model.decoder.blocks[0].self_attention.value_dense.enable_lora(2),
            "has LoRA weights",
        ),
        (subclassed, "is a Own, not a heed MultiHeadAttention"),
    ],
)
def test_a_reason_of_the_model(change: Any, reason: str) -> None:
    model = small_model(seed=3)
    assert explain_generate(model).implementation == "engine"
    change(model)
    assert reason in str(explain_generate(model))
    assert decode(model, sources(), 2).shape == (5, 2)


@on_tensorflow
@pytest.mark.usefixtures("compiled")
def test_a_reason_of_the_call() -> None:
    model = small_model(seed=3)
    assert "a beam of 33" in str(explain_generate(model, method="beam", beam_size=33))
    assert "without a cache" in str(explain_generate(model, use_cache=False))
    with heed.set_implementation("portable"):
        assert 'chose "portable"' in str(explain_generate(model))
    with set_watcher(lambda spec, tensors, output: output):
        assert "heed.inspect captures the attention" in str(explain_generate(model))
    reasons: list[str] = []

    @tf.function(jit_compile=True)
    def compiled(x: Any) -> Any:
        reasons.extend(explain_generate(model).reasons)
        return x

    compiled(tf.zeros(()))
    assert "XLA" in reasons[0]


def reclassed(part: Any, kind: type) -> None:
    part.__class__ = type("Own", (kind,), {})


def relu(x: Any) -> Any:
    return x * x


LOCAL: tuple[tuple[Any, str], ...] = (
    (lambda block: reclassed(block.feed_forward, FeedForward), "is a Own, not a heed FeedForward"),
    (
        lambda block: reclassed(block.feed_forward_norm, LayerNormalization),
        "is a Own, not a heed LayerNormalization or RMSNormalization",
    ),
    (
        lambda block: reclassed(block.self_attention.key_dense, FlatEinsumDense),
        "is a Own, not a heed FlatDense or FlatEinsumDense",
    ),
    (
        lambda block: setattr(block.feed_forward.hidden_dense, "activation", relu),
        "no activation '(relu)'",
    ),
    (
        lambda block: setattr(
            block.feed_forward.output_dense, "activation", keras.activations.relu
        ),
        "output of layer_1 has an activation, 'relu'",
    ),
    (
        lambda block: setattr(block.self_attention, "_position", {"kind": "alibi"}),
        "self_attention of layer_1 has a `position` of its own",
    ),
    (
        lambda block: setattr(block.self_attention, "_key_dim", 3),
        "other numbers or widths of heads than the first layer",
    ),
    (
        lambda block: setattr(block.encoded_attention, "_sliding_window", 3),
        "cross_attention of layer_1 has a sliding window",
    ),
)


@pytest.fixture(scope="module")
def two_layers() -> Any:
    """Return a model whose last layer is another one in each test."""
    return small_model(seed=3, decoder_layers=2)


@pytest.mark.parametrize(("change", "reason"), LOCAL)
def test_a_reason_of_one_layer(two_layers: Any, change: Any, reason: str) -> None:
    first, last = two_layers.decoder.blocks
    block = TransformerDecoderLayer.from_config({**first.get_config(), "name": last.name})
    block.build((None, None, 8))
    two_layers.decoder.blocks[1] = block
    assert explain_generate(two_layers).implementation == "engine"
    change(block)
    assert reason in str(explain_generate(two_layers))


def attending(model: Any, **options: Any) -> Any:
    """Return the model, with a self-attention of these options in its last layer."""
    old = model.decoder.blocks[-1].self_attention
    new = MultiHeadAttention(old.num_heads, **{"key_dim": old.key_dim, **options}, name=old.name)
    new.build((None, None, 8), (None, None, 8))
    rng = np.random.default_rng(0)
    new.set_weights([rng.normal(size=weight.shape) for weight in new.weights])
    model.decoder.blocks[-1].__dict__["self_attention"] = new
    return model


@pytest.mark.parametrize(
    ("layers", "options", "reason"),
    [
        (2, {"key_dim": [2, 6]}, "has heads of own widths"),
        (1, {"key_dim": 4, "output_projection": False}, "has no output projection"),
    ],
)
def test_heads_that_the_graph_alone_decodes(layers: int, options: Any, reason: str) -> None:
    model = attending(small_model(seed=3, decoder_layers=layers), **options)
    assert f"self_attention of layer_{layers - 1} {reason}" in str(explain_generate(model))
    assert decode(model, sources(), 2).shape == (5, 2)


def test_a_shared_projection_is_decoded() -> None:
    model = attending(small_model(seed=3), shared_projection=True)
    for options in METHODS:
        assert explain_generate(model, method=options["method"]).implementation == "engine"
        np.testing.assert_array_equal(*by_both(model, sources(), **options))


def test_a_reason_of_the_output_layer_and_of_a_layer_of_another_dtype() -> None:
    model = small_model(seed=3, tie_embeddings=False, decoder_layers=2)
    model.decoder.output_layer.activation = keras.activations.tanh
    assert "output has an activation, 'tanh'" in str(explain_generate(model))
    model = small_model(seed=3, decoder_layers=2)
    other = small_model(seed=3, decoder_layers=2, dtype="float64")
    model.decoder.blocks[1] = other.decoder.blocks[1]
    assert "computes in float64" in str(explain_generate(model))


class EncodesInALoop(Transformer):
    """The memory of a source is written by a loop, and by a branch."""

    def encode_source(self, source):
        memory = super().encode_source(source)
        sign = tf.cond(keras.ops.shape(source)[0] > 1, lambda: 1.0, lambda: -1.0)
        more = tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x + sign), (0, 0.0))[1]
        return {**memory, "encoded": memory["encoded"] + more}


@on_tensorflow
def test_an_encoder_with_loops_and_branches_is_compiled():
    model = EncodesInALoop(small_model().config)
    assert explain_generate(model).implementation == "engine"
    for source in (sources(), sources()[:1], sources()):
        found = np.asarray(generate(model, source, max_length=4))
        wanted = np.asarray(generate(model, source, max_length=4, use_cache=False))
        np.testing.assert_array_equal(found, wanted)
