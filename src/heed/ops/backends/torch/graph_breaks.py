"""What `torch.compile` leaves to Python."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch

_F = TypeVar("_F", bound=Callable[..., Any])
_SAYS_WHY = "reason" in inspect.signature(torch.compiler.disable).parameters


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
