"""`tf.debugging.enable_check_numerics` stops at every infinity, and heed's arithmetic has some.

Hidden scores are -inf, and so is the log-sum-exp of a row without keys. What heed returns is checked by the next op.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

# There is no public way to exempt operations.
from tensorflow.python.eager import context

_F = TypeVar("_F", bound=Callable[..., Any])


def exempt(function: _F, in_graphs: Any = None) -> _F:
    """Return the function, or what stands for it in graphs. Its operations are not checked."""
    in_graphs = in_graphs or function

    @functools.wraps(in_graphs)  # with AutoGraph's mark that it is not to be converted
    def run(*args: Any, **kwargs: Any) -> Any:
        thread = context.context()._thread_local_data
        callbacks, called = thread.op_callbacks, function if thread.is_eager else in_graphs
        if not callbacks:  # nearly always
            return called(*args, **kwargs)
        thread.op_callbacks = [
            x for x in callbacks if "check_numerics" not in getattr(x, "__module__", "")
        ]
        try:
            return called(*args, **kwargs)
        finally:
            thread.op_callbacks = callbacks

    return cast(_F, run)
