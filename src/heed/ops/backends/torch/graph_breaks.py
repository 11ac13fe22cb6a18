"""What `torch.compile` leaves to Python."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch

_F = TypeVar("_F", bound=Callable[..., Any])
# Newer than the oldest PyTorch that heed runs on.
_find_compiler: Any = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: True)
_SAYS_WHY = "reason" in inspect.signature(torch.compiler.disable).parameters


def may_be_compiled() -> bool:
    """Return whether `torch.compile` may take over functions that are called here."""
    return _find_compiler() is not None


def in_python(function: _F, what: str) -> _F:
    """Return a function that `torch.compile` leaves to Python, and `torch.compile(fullgraph=True)` refuses.

    Args:
        function: called by what is compiled.
        what: the subject of the reason that PyTorch gives for the refusal.
    """
    reason = f"heed leaves {what} to Python, so compile without fullgraph=True"
    options: Any = {"reason": reason} if _SAYS_WHY else {}
    disabled: Any = torch.compiler.disable(function, **options)
    return disabled
