"""The learning rate of each step, and the checks of the options."""

import dataclasses
import json
import math
from itertools import pairwise

import numpy as np
import pytest

from heed.errors import TaskError
from heed.seq2seq import TextTask
from heed.seq2seq.options.training import SCHEDULES, TrainingOptions


def test_warm_up_then_the_schedule():
    options = {"learning_rate": 2.0, "warmup_steps": 10, "steps": 90}
    cosine, roots, constant = (
        rates(TrainingOptions(schedule=name, **options))
        for name in ("cosine", "inverse_sqrt", "constant")
    )
    for found in (cosine, roots, constant):
        assert found[:10] == pytest.approx([2.0 * (s + 1) / 10 for s in range(10)])
    assert (cosine[10], cosine[50]) == (2.0, pytest.approx(1.0))
    assert all(a > b for a, b in pairwise(cosine[10:]))
    assert 0 < cosine[-1] < 0.01
    assert roots[10:] == pytest.approx([2.0 * math.sqrt(10 / (s + 1)) for s in range(10, 90)])
    assert set(constant[10:]) == {2.0}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("warmup", "steps"), [(0, 1), (0, 5), (5, 5), (9, 5), (1, 1)])
def test_rates_are_positive_and_finite_at_the_edges(warmup, steps, schedule):
    options = {"learning_rate": 1e-3, "warmup_steps": warmup, "steps": steps, "schedule": schedule}
    for rate in rates(TrainingOptions(**options)):
        assert math.isfinite(rate)
        assert 0 < rate <= 1e-3


@pytest.mark.parametrize(
    ("steps", "warmup"), [(1, 0), (2, 0), (60, 20), (500, 166), (600, 200), (10_000, 1_000)]
)
def test_warm_up_follows_the_steps(steps, warmup):
    """Of own text too: with 1,000 steps of warm-up and 500 in all the highest rate would never be reached."""
    names = {field.name for field in dataclasses.fields(TrainingOptions)}
    own = {name: value for name, value in TextTask.recipe.items() if name in names}
    for recipe in ({}, own):
        options = TrainingOptions(**{**recipe, "steps": steps})
        assert options.warmup_steps == warmup
        assert max(rates(options)) == options.learning_rate
    assert TrainingOptions(steps=steps, warmup_steps=7).warmup_steps == 7


def rates(options):
    return [options.rate(step) for step in range(options.steps)]


def test_options_come_back():
    options = TrainingOptions(steps=7, seed=3, label_smoothing=0.1)
    assert TrainingOptions.from_dict(options.to_dict()) == options
    with pytest.raises(TaskError, match="Received: colour"):
        TrainingOptions.from_dict({"colour": 1})
    # Numbers of NumPy are like those of Python.
    options = TrainingOptions(steps=np.int64(9), seed=np.uint8(3), learning_rate=np.float32(0.5))
    assert options == TrainingOptions(steps=9, seed=3, learning_rate=0.5)
    assert json.loads(json.dumps(options.to_dict())) == options.to_dict()


BAD = {
    "steps": (0, 2.5, True, np.bool_(True)),
    "learning_rate": (True, 10**400, 0, math.inf, math.nan, "fast"),
    "seed": (-1, 2**31),
    "label_smoothing": (1.0, math.nan),
    "ema": (1.0, -0.1),
    "schedule": ("linear", ["cosine"]),
    **dict.fromkeys(("batch_size", "accumulate", "validate_sentences", "clip_norm"), (0,)),
    **dict.fromkeys(("warmup_steps", "patience"), (-1,)),
    "keep": (1,),
    "precision": ("float16",),
    "validate_with": ("ter",),
}


@pytest.mark.parametrize(("name", "bad"), [(name, x) for name, bad in BAD.items() for x in bad])
def test_bad_options(name, bad):
    with pytest.raises(TaskError, match=f"`{name}` must"):
        TrainingOptions(**{name: bad})
