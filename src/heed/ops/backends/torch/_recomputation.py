"""Where PyTorch keeps functions that compute again: `torch.utils.checkpoint`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import checkpoint

from heed.patching import Function, Patch, Replacement


def recomputation_patches(start: Callable[[], Any]) -> list[Patch]:
    def make_generator(original: Function) -> Function:
        @functools.wraps(original)
        def generate(fn: Function, *args: Any, **kwargs: Any) -> Iterator[None]:
            forward = start()

            def repeat(*args: Any, **kwargs: Any) -> Any:
                with forward.repeat():
                    return fn(*args, **kwargs)

            # Its caller computes while it waits.
            with forward.record():
                yield from original(repeat, *args, **kwargs)

        return generate

    def make_forward(original: Function) -> Function:
        @functools.wraps(original)
        def compute(ctx: Any, run_function: Function, *args: Any) -> Any:
            forward = start()
            context = forward.record

            def run(*args: Any) -> Any:
                with context():
                    return run_function(*args)

            outputs = original(ctx, run, *args)
            context = forward.repeat
            return outputs

        return compute

    # Not `checkpoint` itself, of which models keep copies, and which torch.compile knows by identity.
    return [
        Patch(
            checkpoint,
            "_checkpoint_without_reentrant_generator",
            Replacement(make_generator),
            package=torch,
            copies=True,
        ),
        Patch(checkpoint.CheckpointFunction, "forward", Replacement(make_forward), package=torch),
    ]
