"""The processors that Ray gives to an actor."""

from __future__ import annotations

import sys


def count_assigned_threads() -> int | None:
    """Return the processors that Ray has given to this actor, 1 or more; None outside Ray."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    if context.get_actor_id() is None:
        return None
    return max(1, int(context.get_assigned_resources().get("CPU", 1)))
