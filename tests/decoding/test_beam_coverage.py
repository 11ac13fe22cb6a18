"""The coverage penalty of a beam search, beside a plain search in float64."""

import numpy as np
import pytest

from heed.models import (
    Ensemble,
    Transformer,
    explain_generate,
    generate,
)
from tests.graphs import traced
from tests.models.builders import (
    prompts,
    small_config,
    small_language_model,
    small_model,
    small_recurrent,
    sources,
)

LENGTH, END, ALPHA = 5, 2, 0.6
LEAST = 1e-9  # the least attention that a position counts with


def transformer(seed=4):
    """Return three decoder layers: the last but one is neither the first nor the last."""
    return small_model(seed=seed, end_bias=1.5, decoder_layers=3, position="rotary")


def recurrent(attention):
    return small_recurrent(attention, seed=2, end_bias=1.5, tie_embeddings=False)


MODELS = {
    "transformer": transformer,
    "additive": lambda: recurrent("additive"),
    "location": lambda: recurrent("location"),
    "general": lambda: recurrent("general"),
    "ensemble": lambda: Ensemble([transformer(), recurrent("general"), recurrent("additive")]),
}
slow = pytest.mark.slow  # a graph is traced in each case: the default run has the telling ones


def score_next(model, row, targets):
    """Return log p (B, vocabulary) of what follows each target, and the summed attention up to it, (B, S)."""
    if isinstance(model, Ensemble):
        parts = [score_next(one, row, targets) for one in model.models]
        return tuple(np.mean(each, axis=0) for each in zip(*parts, strict=True))
    batch = {
        "source": np.tile(row, (len(targets), 1)),
        "target": np.array([[1, *y] for y in targets]),
    }
    logits, scores = model(batch, return_attention_scores=True)
    if isinstance(scores, dict):
        scores = np.asarray(scores["cross"][-2], "float64").mean(axis=1)
    logits = np.asarray(logits[:, -1], "float64")
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return logs, np.asarray(scores, "float64").sum(axis=1)


def search(model, row, beams, beta, prompt=()):
    """Return the best target and its score, by the definition: nothing kept, nothing stopped early."""
    row = row[row != 0]
    prompt = tuple(int(token) for token in prompt if token)

    def score(tokens, total, covered):
        coverage = np.log(np.clip(covered, LEAST, 1)).sum()
        return total / ((5 + len(tokens) - len(prompt)) / 6) ** ALPHA + beta * coverage, tokens

    growing, ended = [(prompt, 0.0, None)], []
    for _ in range(LENGTH - len(prompt)):
        grown = []
        logs, covered = score_next(model, row, [tokens for tokens, *_ in growing])
        assert covered.shape == (len(growing), len(row))
        for (tokens, total, _), own, sums in zip(growing, logs, covered, strict=True):
            own[:2] = -np.inf
            own -= np.log(np.exp(own).sum())
            grown += [((*tokens, y), total + own[y], sums) for y in range(2, len(own))]
        grown.sort(key=lambda one: -one[1])
        ended += [score(*one) for one in grown[:beams] if one[0][-1] == END]
        growing = [one for one in grown if one[0][-1] != END][:beams]
    best = max(ended or [score(*one) for one in growing])
    return best[1], best[0]


def found(model, source, beta, beams=3, **options):
    tokens, scores = generate(
        model,
        source,
        max_length=LENGTH,
        method="beam",
        beam_size=beams,
        length_penalty=ALPHA,
        coverage_penalty=beta,
        return_scores=True,
        **options,
    )
    return np.asarray(tokens), np.asarray(scores)


def check(model, source, beta, prompt=None, **options):
    given = {} if prompt is None else {"prompt": prompt}
    tokens, scores = found(model, source, beta, **given, **options)
    for i, row in enumerate(source):
        wanted, score = search(model, row, 3, beta, () if prompt is None else prompt[i])
        assert tuple(tokens[i][: len(wanted)]) == wanted
        assert not tokens[i][len(wanted) :].any()
        np.testing.assert_allclose(scores[i], score, rtol=2e-4, atol=2e-4)
    return tokens


@pytest.mark.parametrize(
    "name",
    ["additive", *(pytest.param(name, marks=slow) for name in MODELS if name != "additive")],
)
def test_a_search_is_that_of_the_definition(name):
    model, source = MODELS[name](), sources(3)
    tokens = check(model, source, 3.0)
    assert any(
        tuple(found[found != 0]) != search(model, row, 3, 0.0)[0]
        for found, row in zip(tokens, source, strict=True)
    ), "the penalty decides nothing here"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["transformer", *(pytest.param(name, marks=slow) for name in ("location", "ensemble"))]
)
def test_the_cache_changes_nothing(name):
    model, source = MODELS[name](), sources(4)
    given = np.array([[5, 0], [6, 7], [8, 3], [4, 0]])
    cached, scores = found(model, source, 1.0, prompt=given)
    again, others = found(model, source, 1.0, use_cache=False, prompt=given)
    np.testing.assert_array_equal(cached, again)
    np.testing.assert_allclose(scores, others, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("transformer", 2),
        pytest.param("transformer", 0, marks=slow),
        pytest.param("additive", 0, marks=slow),
        pytest.param("additive", 2, marks=slow),
    ],
)
def test_the_attention_of_a_prompt_counts(name, shared):
    """Read token by token where a prompt has none, and else all at once as far as all of them go."""
    given = prompts(3, 3)
    if shared:
        given = np.concatenate([np.full((3, shared), 5), given[:, :1]], axis=1).astype("int32")
    check(MODELS[name](), sources(3), 3.0, given)


@pytest.mark.parametrize("name", ["general", pytest.param("transformer", marks=slow)])
def test_padding_needs_no_coverage(name):
    model, source = MODELS[name](), sources(4)
    tokens, scores = found(model, source, 2.0)
    wider, others = found(model, np.pad(source, ((0, 0), (0, 3))), 2.0)
    np.testing.assert_array_equal(tokens, wider)
    np.testing.assert_allclose(scores, others, rtol=1e-4, atol=1e-4)


def test_what_is_cut_is_ranked_with_it():
    """Where nothing ends, the open hypotheses are what is found."""
    model = small_model(seed=4, end_bias=-50.0, decoder_layers=2)
    assert not np.any(check(model, sources(2), 2.0) == END)


@pytest.mark.slow
def test_several_results_are_in_the_order_of_their_scores():
    """Those that have ended, then those that are cut."""
    model, source = transformer(), sources(4)
    tokens, scores = found(model, source, 3.0, num_results=3)
    for row, own, several in zip(source, tokens, scores, strict=True):
        ended = (own == END).any(axis=1)
        assert np.all(np.diff(ended.astype(int)) <= 0)
        assert np.all(np.diff(several[ended]) <= 0)
        assert np.all(np.diff(several[~ended]) <= 0)
        wanted, _ = search(model, row, 3, 3.0)
        assert tuple(own[0][: len(wanted)]) == wanted


@pytest.mark.slow
def test_of_the_attentions_one_is_built(monkeypatch):
    """The others stay fused, and without a penalty all of them."""
    from heed.layers import TransformerDecoderLayer

    asked, real = [], TransformerDecoderLayer.call

    def call(self, *args, return_attention_scores=False, **kwargs):
        asked.append((self.name, return_attention_scores))
        return real(self, *args, return_attention_scores=return_attention_scores, **kwargs)

    monkeypatch.setattr(TransformerDecoderLayer, "call", call)
    model = transformer()
    found(model, sources(3), 1.0)
    wanted = {name for name, yes in asked if yes}
    assert wanted == {model.decoder.blocks[1].name}
    assert len({name for name, _ in asked}) == 3
    asked.clear()
    found(model, sources(3), 0.0, use_cache=False)
    assert not any(yes for _, yes in asked)


@pytest.mark.parametrize(("layers", "chosen"), [(1, 0), (2, 0), (3, 1)])
def test_the_alignment_is_that_of_the_last_layer_but_one(layers, chosen):
    model, source = small_model(seed=4, decoder_layers=layers), sources(3)
    target = np.array([[1, 3, 4]] * 3)
    logits, scores = model({"source": source, "target": target}, return_attention_scores=True)
    memory = model.encode_source(source)
    again, alignment = model.decode_all(target, memory, return_alignment=True)
    np.testing.assert_allclose(again, logits, atol=1e-5)
    np.testing.assert_allclose(
        alignment, np.mean(np.asarray(scores["cross"][chosen]), axis=1), atol=1e-6
    )


@pytest.mark.usefixtures("compiled")
def test_the_graph_decodes_and_says_why():
    model = small_model(seed=4)
    assert explain_generate(model, method="greedy", coverage_penalty=1.0).implementation in (
        explain_generate(model).implementation
    )
    why = explain_generate(model, method="beam", coverage_penalty=1.0)
    assert why.implementation == "graph"
    assert (
        "a coverage penalty needs attention weights, which the engine never builds" in why.reasons
    )
    with traced() as seen:
        found(model, sources(2), 1.0)
    assert "HeedDecode" not in seen.native
    with pytest.raises(ValueError, match=r'"float32" where the engine .* coverage'):
        found(model, sources(2), 1.0, weights="int8")


@pytest.mark.parametrize("bad", [-0.1, float("nan"), "much"])
def test_a_bad_factor_is_named(bad):
    model = Transformer(small_config())  # nothing is built
    with pytest.raises((ValueError, TypeError), match="`coverage_penalty` must be"):
        found(model, sources(2), bad)


@pytest.mark.parametrize(
    "make",
    [
        lambda: recurrent("none"),
        small_language_model,
        lambda: Ensemble([transformer(), recurrent("none")]),
    ],
)
def test_models_without_attention_to_a_source_are_refused(make):
    model = make()
    source = None if model.__class__.__name__ == "LanguageModel" else sources(2)
    with pytest.raises(ValueError, match="model without attention"):
        found(model, source, 1.0, prompt=prompts(2, 3))
