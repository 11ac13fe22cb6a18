"""How translations are chosen: what is refused, and what reaches `generate`."""

import pytest

from heed.seq2seq import DecodingOptions, TaskError, Translator
from heed.seq2seq.translating import translator as translator_module


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"beam_size": 0}, "`beam_size` must be an integer >= 1"),
        ({"length_penalty": -1}, "`length_penalty` must be a finite number"),
        ({"coverage_penalty": -1, "beam_size": 2}, "`coverage_penalty` must be a finite number"),
        ({"coverage_penalty": 1}, "`coverage_penalty` is for a beam search: give a `beam_size`"),
        ({"temperature": 0}, "`temperature` must be a finite number with 1e-06 <= temperature"),
        ({"temperature": 1, "top_k": 0}, "`top_k` must be an integer >= 1"),
        ({"temperature": 1, "top_p": 1.5}, r"`top_p` must be in \(0, 1\]"),
        ({"temperature": 1, "min_p": 0}, r"`min_p` must be in \(0, 1\]"),
        ({"max_length": 0}, "`max_length` must be an integer >= 1"),
        ({"weights": "int3"}, "`weights` must be one of 'float32', 'bfloat16', 'int8', 'int4'"),
        ({"temperature": 1, "beam_size": 2}, "give one of them. Received: temperature=1.0"),
        ({"top_k": 3}, "`top_k` is for sampling: give a `temperature` too"),
        ({"seed": 3}, "`seed` is for sampling"),
        ({"n_best": 0, "beam_size": 4}, "`n_best` must be an integer >= 1"),
        ({"n_best": 3, "beam_size": 2}, "`n_best` must be at most `beam_size`.*beam_size=2"),
        ({"n_best": 2}, "`n_best` must be at most `beam_size`.*beam_size=1"),
    ],
)
def test_what_does_not_go(given, message):
    with pytest.raises(TaskError, match=message):
        DecodingOptions(**given)


def test_what_reaches_generate():
    assert DecodingOptions().arguments(0, 9) == {"max_length": 9, "weights": "float32"}
    search = {"beam_size": 3, "length_penalty": 1.0, "coverage_penalty": 0.2}
    beam = DecodingOptions(**search, max_length=5, weights="int8")
    assert beam.arguments(2, 9) == {"max_length": 5, "weights": "int8", "method": "beam", **search}
    sampling = {"temperature": 0.5, "top_k": 4, "top_p": 0.9, "min_p": None}
    drawn = DecodingOptions(**sampling, seed=7).arguments(2, 9)
    plain = {"max_length": 9, "weights": "float32", "method": "sample"}
    assert drawn == {**plain, **sampling, "seed": 9}, "each batch draws its own"
    assert DecodingOptions(temperature=1).arguments(3, 9)["seed"] is None
    several = DecodingOptions(temperature=1, n_best=3, scores=True).arguments(0, 9)
    assert (several["num_results"], several["return_scores"]) == (3, True)


def test_each_batch_of_a_translator_draws_its_own(finished_run, monkeypatch):
    asked, real = [], translator_module.generate
    monkeypatch.setattr(
        translator_module,
        "generate",
        lambda *args, **given: asked.append(given["seed"]) or real(*args, **given),
    )
    translator = Translator(finished_run, options=DecodingOptions(temperature=2, seed=5))
    translator(["1", "22"])
    translator(["1", "22"])
    assert asked == [5, 6]


def test_a_coverage_penalty_needs_attention_and_the_graph(finished_run, monkeypatch):
    options = DecodingOptions(beam_size=2, coverage_penalty=1.0, weights="int8")
    with pytest.raises(TaskError, match=r"'float32' .* a coverage penalty needs"):
        Translator(finished_run, options=options)
    real = translator_module.load_model

    def without_attention(*args):
        model, step = real(*args)
        model.aligns = False
        return model, step

    monkeypatch.setattr(translator_module, "load_model", without_attention)
    options = DecodingOptions(beam_size=2, coverage_penalty=1.0)
    with pytest.raises(TaskError, match=r"`coverage_penalty` must .* no attention"):
        Translator(finished_run, options=options)
