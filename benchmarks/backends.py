"""heed on PyTorch and JAX against their own attention, and KerasHub's GPT-2 there, stock and accelerated."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import keras
import numpy as np

import heed
from benchmarks.cases import Case
from benchmarks.gpu_device import TITLE
from benchmarks.peers import Peer, Prepared, find_in, frameworks
from benchmarks.results import Row
from benchmarks.suites import NARROW
from benchmarks.turns import SMALLER, alternate, bar, ratio
from heed import Mask, ops

_PART = 64 if SMALLER else 1  # of a length
_CALL_MICROSECONDS = 15.0
_attend = functools.partial(ops.dot_product_attention, layout=frameworks.LAYOUT)


def _compare(
    case: Case,
    peer: Callable[..., Any],
    rounds: int,
    least: float,
    *,
    title: str = "",
    mask: tuple[Mask, Any] | None = None,
) -> Row:
    """Return the row of heed and of a framework's function; `mask` is heed's, and the array with the same meaning."""
    causal = {"is_causal": case.causal}
    ours: dict[str, Any] = causal if mask is None else {"mask": mask[0]}
    theirs: dict[str, Any] = causal if mask is None else {"attn_mask": mask[1]}
    heed_side = frameworks.prepare(case, functools.partial(_attend, **ours))
    side = frameworks.prepare(case, functools.partial(peer, **theirs))
    name = f"{TITLE}: {title or case.name}"
    return ratio(name, heed_side.run, side.run, bar(least), rounds)


def measure_torch(rounds: int) -> Iterator[Row]:
    """Yield the times of `heed.ops` on PyTorch and of its `scaled_dot_product_attention`."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    narrow = heed.info()["instruction_set"] in NARROW
    shape = (2, 8, 2048 // _PART, 64)
    for case, least, narrow_least in (
        (Case(*shape), 1.2, 1.2),
        (Case(*shape, causal=True), 1.4, 1.5),
        (Case(*shape, backward=True), 1.35, 1.3),
        (Case(*shape, causal=True, backward=True), 1.6, 1.6),
        (Case(64, 8, 32, 64), 1.2, 1.2),
        (Case(4, 8, 1, 64, keys=2048), 1.1, 1.1),
    ):
        yield _compare(case, sdpa, rounds, narrow_least if narrow else least)
    case = Case(1, 8, 16384 // _PART, 64, causal=True, window=256)
    place = torch.arange(case.length)
    distance = place[:, None] - place
    visible = (distance >= 0) & (distance < 256)
    del distance
    title = f"{case.name}, its SDPA with a boolean mask"
    mask = (Mask.window(255, 0), visible)
    yield _compare(case, sdpa, rounds, 20.0, title=title, mask=mask)
    case = Case(*shape)
    half = torch.tensor([case.length // 2] * 2)
    visible = (torch.arange(case.length) < half[:, None])[:, None, None]
    title = f"padding to half {case.name}, its SDPA with a boolean mask"
    yield _compare(case, sdpa, rounds, 1.8, title=title, mask=(Mask.lengths(half), visible))


def measure_jax(rounds: int) -> Iterator[Row]:
    """Yield the times of causal `heed.ops` on JAX and of `jax.nn.dot_product_attention`, both jitted."""
    import jax

    for backward in (False, True):
        case = Case(1, 8, 4096 // _PART, 64, causal=True, backward=backward)
        yield _compare(case, jax.nn.dot_product_attention, rounds, 3.0)


def prepare(case: Case) -> Prepared:
    """Call heed on Keras' backend."""
    return frameworks.prepare(case, functools.partial(_attend, is_causal=case.causal))


def measure_memory(rounds: int) -> Iterator[Row | str]:
    """Yield the memory that heed adds on JAX."""
    del rounds
    from benchmarks.processes import Machine, measure_memory

    peer = Peer(
        "heed", "benchmarks.backends:prepare", is_heed=True, environment={"KERAS_BACKEND": "jax"}
    )
    for backward in (False, True):
        case = Case(1, 8, 32768 // _PART, 64, causal=True, backward=backward)
        found = measure_memory(case, {"heed": peer}, Machine().start)["heed"]
        if found.added_mib is None:
            yield f"memory of {case.name}: {found.problem}"
        else:
            yield Row(f"JAX: memory of {case.name}", found.added_mib, 400.0, True, unit="MiB")


def measure_call(rounds: int) -> Iterator[Row]:
    """Yield the cost of one call on PyTorch beyond the core, which runs alone on the same memory."""
    for backward in (False, True):
        x = [keras.random.normal((1, 8, 1, 8)).requires_grad_(backward) for _ in range(3)]
        alone, kept = _core_alone([t.detach() for t in x])
        ours, bare = alternate(functools.partial(_attend, *x), alone, rounds=20 * rounds)
        del kept
        name = f"PyTorch: one call beyond the core{', of tensors with gradients' * backward}"
        more = ours - bare
        yield Row(name, more * 1e6, _CALL_MICROSECONDS, at_most=True, unit="µs", seconds=more)


def _core_alone(x: list[Any]) -> tuple[Callable[[], Any], Any]:
    """Return a function that repeats the core's part of a call, and the results that it writes into."""
    library = find_in("load", "ops.core.library", "ops.backends.shared.core")()[0]
    forward, calls = library.heed_forward, []

    def note(*arguments: Any) -> Any:
        calls.append(arguments)
        return forward(*arguments)

    with mock.patch.object(library, "heed_forward", note):
        kept = _attend(*x, return_lse=True)  # the log-sum-exp keeps all that the core writes
    (arguments,) = calls
    return lambda: forward(*arguments), (kept, x)


def measure_gpt2(rounds: int) -> Iterator[Row]:
    """Yield the forward pass of one text."""
    from benchmarks.peers import gpt2

    heads, length = (2, 64) if SMALLER else (12, 1024)
    tokens = np.random.default_rng(0).integers(1, gpt2.VOCABULARY, (1, length)).astype("int32")
    inputs = {"token_ids": tokens, "padding_mask": np.ones_like(tokens)}
    ours, theirs = (gpt2.backbone_of(heads, 64 * heads, length) for _ in range(2))
    heed.accelerate(ours)
    heed_run, run = (functools.partial(model.predict_on_batch, inputs) for model in (ours, theirs))
    name = f"{TITLE}: KerasHub's GPT-2 of {gpt2.LAYERS} layers, forward at T={length}"
    yield ratio(f"{name}, accelerated against stock", heed_run, run, bar(1.3), rounds)


def measure_generate(rounds: int) -> Iterator[Row]:
    """Yield `generate` of a batch of 8 after prompts of 32 tokens."""
    from benchmarks.peers import gpt2

    heads, new = (2, 8) if SMALLER else (12, 480)
    case = Case(8, heads, new, 64, keys=32, kind="continue")
    heed_run, run = (make(case).run for make in (gpt2.accelerated, gpt2.stock))
    name = f"{TITLE}: KerasHub's GPT-2 of {gpt2.LAYERS} layers, `generate` of {new} tokens"
    rounds = max(2, rounds // 3)
    yield ratio(f"{name}, accelerated against stock", heed_run, run, bar(2.0), rounds)
