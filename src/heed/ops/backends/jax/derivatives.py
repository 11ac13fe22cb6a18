"""Second derivatives of what has a first derivative of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax


def second_derivatives(
    attend: Callable[[list[Any]], Any], trained: list[Any], incoming: Any, cotangents: Sequence[Any]
) -> Any:
    """Return the gradients of sum(cotangents * gradients of the trained operands): theirs, and those of `incoming`.

    Args:
        attend: the portable form, as a function of the trained operands.
        trained: the operands.
        incoming: gradients of the results of `attend`.
        cotangents: of the gradients of the operands.
    """

    def first(trained: list[Any], incoming: Any) -> tuple[Any, ...]:
        return tuple(jax.vjp(attend, trained)[1](incoming)[0])

    return jax.vjp(first, trained, incoming)[1](tuple(cotangents))
