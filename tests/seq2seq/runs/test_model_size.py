"""Sizes are estimated before a model is built: a model that does not fit is refused at once."""

import pytest

from heed.models import RecurrentTranslatorConfig, TransformerConfig
from heed.seq2seq import RunFolder, TaskError, start_run, train
from heed.seq2seq.runs import _model_size
from heed.seq2seq.runs._model_size import check_model, count_parameters
from heed.seq2seq.runs.trained_model import build_model, load_model
from tests.seq2seq import tiny

TRANSFORMER = {
    "width": 32,
    "num_heads": 2,
    "feed_forward_width": 48,
    "encoder_layers": 1,
    "decoder_layers": 1,
}


@pytest.mark.parametrize(
    "config",
    [
        TransformerConfig(40, 50, **TRANSFORMER, position="learned", tie_embeddings=False),
        TransformerConfig(
            50, 50, **{**TRANSFORMER, "decoder_layers": 2}, share_embeddings=True, gated=True,
            key_dim=6, value_dim=10, num_key_value_heads=1,
        ),
        RecurrentTranslatorConfig(40, 50, width=32, encoder_layers=2, decoder_layers=2, attention="location"),
        RecurrentTranslatorConfig(40, 50, width=32, cell="gru", decoder_layers=2, attention="general",
                                  tie_embeddings=False),
        RecurrentTranslatorConfig(40, 50, width=32, attention="none"),
    ],
    ids=["learned", "shared", "location", "general", "none"],
)  # fmt: skip
def test_the_estimate_is_that_of_the_matrices(config):
    kind = "transformer" if isinstance(config, TransformerConfig) else "recurrent"
    weights = build_model(kind, config, 0).weights
    matrices = [x for x in weights if x.path.endswith(("kernel", "embeddings"))]
    assert count_parameters(config) == sum(x.numpy().size for x in matrices)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"width": 100_000_000, "num_heads": 4}, "width=100000000"),
        ({"encoder_layers": 10**9}, "encoder_layers=1000000000"),
        ({"feed_forward_width": 2 * 10**9}, "feed_forward_width=2000000000"),
        ({"position": "learned", "max_length": 2 * 10**9}, "max_length=2000000000"),
        ({"architecture": "recurrent", "width": 10**8}, "width=100000000"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_it_is_built(tmp_path, options, named):
    with pytest.raises(TaskError, match=r"memory of this machine, .* GB") as caught:
        start_run(tmp_path / "run", tiny.numbers("en"), **options)
    assert named in str(caught.value)
    assert "parameters, which need" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_batch_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(TaskError, match=r"\(--batch-size, --batch-tokens\)"):
        start_run(tmp_path / "run", tiny.numbers("en"), batch_size=2 * 10**9)
    assert list(tmp_path.iterdir()) == []


def test_a_forged_config_is_refused_in_every_use(finished_run):
    for name, value in (("width", 10**8), ("decoder_layers", 10**9)):
        model = {**finished_run.config["model"], name: value}
        run = RunFolder(finished_run.path, {**finished_run.config, "model": model})
        for use in (train, load_model):
            with pytest.raises(TaskError, match=rf"must fit into .*{name}={value}"):
                use(run)


def test_the_bound_is_the_memory_of_the_machine(monkeypatch):
    config = TransformerConfig(16, 16, **TRANSFORMER)
    layers, weights = 2 * 2**20, 4 * count_parameters(config)
    monkeypatch.setattr(_model_size, "memory_size", lambda: layers + 3 * weights + 5)
    check_model(config, 3, batch_bytes=5)
    for numbers, more in ((3, 6), (4, 0)):
        with pytest.raises(TaskError, match="must fit into the memory"):
            check_model(config, numbers, more)
