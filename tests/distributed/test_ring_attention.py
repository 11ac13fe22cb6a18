"""Attention over a sequence split across workers equals that of one worker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import scale_ring
from heed.distributed import join_sequence, ring_attention, sequence_positions, split_sequence
from heed.ops import Mask, dot_product_attention
from heed.ops.backends.tensorflow.ring._routes import make_plan
from heed.ops.sequence_split import owner_of, stretches_of
from heed.ops.sizes import Span
from tests import reference, tolerances
from tests.distributed.ring_cases import CASES, RESULTS

DEFAULT = ("padded", "window")  # both of them causal, too
ROOT = Path(__file__).parents[2]


def run_cases(folder: Path, workers: int, implementation: str, names) -> dict[str, np.ndarray]:
    """Return the results of cases by "case/result", computed in a process of its own, as devices are fixed at start."""
    file = folder / f"{workers}-{implementation}.npz"
    command = [sys.executable, "-m", "tests.distributed.ring_cases", str(workers), implementation]
    done = subprocess.run(
        [*command, str(file), *names], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(np.load(file))


def assert_equals_reference(results: dict[str, np.ndarray], name: str, workers: int) -> None:
    case, dtype = CASES[name], CASES[name].dtype
    arrays = case.arrays(workers)
    options = {key: x for key, x in case.options.items() if key != "is_causal"}
    options["mask"] = case.dense_mask(workers)
    inputs = [arrays[key] for key in ("query", "key", "value")]
    forward = reference.dot_product_attention(*inputs, **options)
    backward = reference.dot_product_attention_backward(
        *inputs, arrays["d_output"], arrays["d_lse"], **options
    )
    found = {kind: results[f"{name}/{kind}"] for kind in RESULTS}
    tolerances.assert_values(found["output"], forward.out, dtype, "output")
    tolerances.assert_statistics(found["lse"], forward.lse, dtype, "lse")
    for kind in ("query", "key", "value"):
        tolerances.assert_gradients(found[kind], getattr(backward, kind), dtype, kind)


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory):
    return run_cases(tmp_path_factory.mktemp("ring"), 2, "auto", DEFAULT)


@pytest.mark.parametrize("name", DEFAULT)
def test_two_workers_equal_the_reference(two_workers, name):
    assert_equals_reference(two_workers, name, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "implementation", "names"),
    [
        (2, "auto", [*CASES]),
        (2, "portable", ["padded", "window", "prefix", "ALiBi", "bfloat16"]),
        (3, "auto", ["causal", "window", "everything", "window to both sides", "longer keys"]),
        (4, "auto", ["causal", "window"]),
    ],
)
def test_workers_equal_the_reference(tmp_path, workers, implementation, names):
    results = run_cases(tmp_path, workers, implementation, names)
    for name in names:
        assert_equals_reference(results, name, workers)


MASKS = {
    "window": Mask.window(3, 1),
    "bottom right": Mask.window(2, 0, "bottom_right"),
    "prefix": Mask.prefix(np.array([2, 7]), 1),
    "lengths": Mask.lengths([3, 9], [4, 8]),
    "segments": Mask.segments(np.arange(16).reshape(2, 8) // 3, np.arange(20).reshape(2, 10) // 4),
    "dense": Mask.dense(np.random.default_rng(0).random((2, 3, 8, 10)) < 0.5),
    "dilated": Mask.dilated(3, np.array([0, 2])),
}


@pytest.mark.parametrize("name", MASKS)
def test_mask_of_a_block(name):
    mask = MASKS[name]
    whole = mask.to_dense(8, 10).numpy()
    for queries in (Span(0, 4), Span(3, 5)):
        for keys in (Span(0, 3), Span(4, 6)):
            block = mask.at_block(queries, keys, 8, 10).to_dense(queries.length, keys.length)
            cut = whole[:, :, queries.begin : queries.end, keys.begin : keys.end]
            np.testing.assert_array_equal(block, cut)
            verdict = mask.classify_block(queries, keys, 8, 10)
            if verdict != "partial":
                assert (cut == (verdict == "full")).all()


def causal(queries, keys):
    return keys <= queries


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_causal_work_is_balanced(workers):
    plan = make_plan(workers, causal)
    pairs = [
        sum(
            (queries, keys) in plan.pairs
            for queries in stretches_of(w, workers)
            for keys in range(2 * workers)
        )
        for w in range(workers)
    ]
    assert pairs == [2 * workers + 1] * workers


@pytest.mark.parametrize(
    "sees",
    [
        causal,
        lambda i, j: True,
        lambda i, j: 0 <= i - j <= 1,
        lambda i, j: abs(i - j) <= 2,
        lambda i, j: i == j,
    ],
)
def test_keys_reach_the_workers_that_need_them_and_go_no_further(sees):
    workers = 5
    plan = make_plan(workers, sees)
    for stretch in range(2 * workers):
        needed = {owner_of(i, workers) for i in range(2 * workers) if sees(i, stretch)}
        route = plan.routes[stretch]
        reached = {plan.place(stretch, turn) for turn in range(route.steps + 1)}
        assert needed <= reached
        if route.steps:  # the last step is of use
            assert plan.place(stretch, route.steps) in needed
    moves = [move for turn in range(plan.turns) for move in plan.moves(turn)]
    assert all((move.sender - move.receiver) % workers in (1, workers - 1) for move in moves)


def count_moves(plan):
    return sum(len([*plan.moves(turn)]) for turn in range(plan.turns))


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_stretches_move_as_often_as_the_page_of_costs_says(workers):
    """Early stretches visit all other workers; under a causal mask the late one of worker r visits those below it."""
    plan = make_plan(workers, causal)
    assert count_moves(plan) == 3 * workers * (workers - 1) // 2
    assert len([*plan.returns()]) == (2 * workers - 1 if workers > 1 else 0)
    assert count_moves(make_plan(workers, lambda i, j: True)) == 2 * workers * (workers - 1)
    # A narrow window sees the next stretch alone, which another worker holds, but for the middle.
    assert count_moves(make_plan(workers, lambda i, j: 0 <= i - j <= 1)) == 2 * (workers - 1)


@pytest.mark.parametrize(("length", "workers", "axis"), [(8, 1, 0), (8, 2, 1), (12, 3, -1)])
def test_split_sequences_join(length, workers, axis):
    x = np.random.default_rng(0).normal(size=(length,) * 2)
    for kind in (np.asarray, tf.constant):
        parts = [split_sequence(kind(x), workers, r, axis=axis) for r in range(workers)]
        np.testing.assert_array_equal(join_sequence(parts, axis=axis), x)
    positions = [sequence_positions(length, workers, r) for r in range(workers)]
    np.testing.assert_array_equal(np.sort(np.concatenate(positions)), np.arange(length))


def test_a_sequence_is_padded_on_request():
    x = np.arange(6).reshape(1, 6)
    with pytest.raises(ValueError, match=r"multiple of twice .*6 tokens, 2 work"):
        split_sequence(x, 2, 0)
    parts = [split_sequence(x, 2, r, pad_value=-1) for r in range(2)]
    assert join_sequence(parts).tolist() == [[0, 1, 2, 3, 4, 5, -1, -1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((8, 0, 0), "`workers` must be an integer >= 1"),
        ((8, 2, 2), "`worker` must be below `workers`"),
        ((8, 2, -1), "`worker` must be"),
    ],
)
def test_workers_that_do_not_exist(arguments, message):
    with pytest.raises(ValueError, match=message):
        sequence_positions(*arguments)


def test_parts_that_do_not_join():
    for parts in ([], [np.zeros((1, 3))], [np.zeros((1, 2)), np.zeros((1, 4))]):
        with pytest.raises(ValueError, match=r"`parts` must be .* one even length"):
            join_sequence(parts)


def test_one_worker_gets_the_op_itself():
    x = np.random.default_rng(0).normal(size=(2, 7, 2, 4)).astype("float32")
    mask = Mask.lengths([3, 7])
    ring = ring_attention(x, x, x, mask=mask, is_causal=True, soft_cap=3.0)
    np.testing.assert_array_equal(
        ring, dot_product_attention(x, x, x, mask=mask, is_causal=True, soft_cap=3.0)
    )


def test_errors_of_one_worker():
    x = np.zeros((1, 4, 1, 2), "float32")
    with pytest.raises(ValueError, match=r"`query_ids` of .* must have shape"):
        ring_attention(x, x, x, mask=Mask.segments(np.zeros((1, 3), "int32")))


@pytest.mark.slow
def test_two_processes_train_as_one():
    setting = scale_ring.Setting(length=512, width=32, layers=2, steps=3)
    (one,) = scale_ring.measure(setting, 1)
    for result in scale_ring.measure(setting, 2):
        np.testing.assert_allclose(result.losses, one.losses, rtol=1e-5)


@pytest.mark.slow
def test_memory_of_each_of_two_workers():
    setting = scale_ring.Setting(steps=0)
    (one,) = scale_ring.measure(setting, 1)
    assert max(result.mib for result in scale_ring.measure(setting, 2)) <= 0.6 * one.mib
