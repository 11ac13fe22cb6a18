"""The two ways of decoding: by the engine and in the graph, of the same request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from heed.decoding import _generation, engine

by_the_engine = pytest.mark.skipif(
    bool(engine.machine_reasons()), reason="the engine does not run here"
)


@contextmanager
def in_the_graph() -> Iterator[None]:
    """Let `generate` and `stream` decode in the graph inside the block."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine, "unsupported_reasons", lambda *_: ["a test asks for the graph"])
        yield


def request(
    model: Any, source: Any = None, prompt: Any = None, max_length: int = 6, **options: Any
) -> tuple[Any, ...]:
    """Return the arguments of `engine.decode` and `_generation._decode`, of a call of `generate`.

    They run op by op: no graph is traced.
    """
    method = options["method"]
    defaults = {"beam": {"beam_size": 3}, "sample": {"top_k": 4, "top_p": 0.9, "seed": 3}}
    options = {**defaults.get(method, {}), "return_scores": method != "greedy", **options}
    made = _generation.make_request(model, source, prompt, {"max_length": max_length, **options})
    return model, made.inputs, made.options


def by_both(*arguments: Any, **options: Any) -> tuple[np.ndarray, ...]:
    """Return the tokens of the engine and of the graph, several results of a source one after the other.

    Scores, if there are any, are alike.
    """
    call = model, _, used = request(*arguments, **options)
    assert engine.unsupported_reasons(model, used) == []
    (mine, of_mine), (graphs, of_graphs) = engine.decode(*call), _generation._decode(*call)
    if of_mine is not None:
        np.testing.assert_allclose(of_mine, of_graphs, atol=1e-4, rtol=1e-5)
    return tuple(np.asarray(x).reshape(-1, x.shape[-1]) for x in (mine, graphs))
