"""Repeats what a forward pass drew and chose when its framework computes a part of it again.

Frameworks save memory by computing parts of a model again in the backward pass: `keras.RematScope` and `keras.remat`,
`tf.recompute_grad`, `torch.utils.checkpoint`, `jax.checkpoint`. The second computation must have the same dropout and
run on the same implementation as the first, or the gradient is that of two different functions. But by then a seed
generator has moved on, and the `with` blocks of the forward pass have ended.

Each backend names the functions of its framework where a forward pass leaves behind what runs later. They are patched
for good when this module is imported.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from itertools import cycle
from types import MappingProxyType
from typing import Any, NamedTuple

import keras

from heed.ops.backends import constant_while_tracing, current
from heed.patching import set_here

# Makes the context of a second computation.
Restore = Callable[[], AbstractContextManager[Any]]

# PyTorch and JAX trace what they compile together with its recomputation.
_RUNS_PROGRAMS = keras.config.backend() == "tensorflow"
# The seed generators that traced programs draw from, which run without Python.
_in_programs: weakref.WeakSet[Any] = weakref.WeakSet()
_keepers: list[Callable[[], Restore]] = []


def keep(remember: Callable[[], Restore]) -> Callable[[], Restore]:
    """Register a setting that second computations share with the first.

    Args:
        remember: called before each forward pass that may run again; returns what restores the setting.

    Returns: `remember`, so that it is a decorator too.
    """
    _keepers.append(remember)
    return remember


class ForwardPass:
    """A computation that may run again.

    Args:
        outside: makes a context in which tensors belong to the caller of the computation, where it has its own.
        outside_programs: makes a context outside of traced programs, where such programs may run in the computation;
            the seed generators that they draw from are set back for each repetition. Default: none run.
    """

    def __init__(
        self, outside: Restore = contextlib.nullcontext, outside_programs: Restore | None = None
    ) -> None:
        self.outside = outside
        self._outside_programs = outside_programs
        self._states = {x: _state(x) for x in _in_programs} if outside_programs else {}
        self._restores = [remember() for remember in _keepers]
        self._drawn: dict[Hashable, list[Any]] = {}

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        """Yield the context of the first computation."""
        now = _stage.get() or _Stage()
        with set_here(_stage, now._replace(recorded=(*now.recorded, self))):
            yield

    @contextlib.contextmanager
    def repeat(self) -> Iterator[None]:
        """Yield the context of each further computation."""
        with contextlib.ExitStack() as stack:
            for restore in self._restores:
                stack.enter_context(restore())
            # Endlessly: a gradient may compute twice.
            drawn = {x: cycle(draws) for x, draws in self._drawn.items() if x not in self._states}
            stack.enter_context(set_here(_stage, _Stage(repeated=drawn)))
            for generator, state in self._states.items():
                stack.callback(generator.state.assign, _state(generator))
                generator.state.assign(state)
            yield

    def remember_state(self, generator: Any) -> None:
        """Remember the state of a generator before its first draw in a program."""
        if self._outside_programs and generator not in self._states:
            with self._outside_programs():
                self._states[generator] = _state(generator)

    def remember(self, source: Hashable, drawn: Any) -> None:
        """Remember a draw."""
        self._drawn.setdefault(source, []).append(drawn)


class _Stage(NamedTuple):
    recorded: tuple[ForwardPass, ...] = ()
    # The draws of the forward pass that is computed again, in their order, by their source.
    repeated: Mapping[Hashable, Iterator[Any]] = MappingProxyType({})


_stage: ContextVar[_Stage | None] = ContextVar("heed_recomputation", default=None)


@constant_while_tracing
def _may_repeat() -> bool:
    return _stage.get() is not None


def draw(source: Hashable, make: Callable[[], Any]) -> Any:
    """Return a random draw that a second computation repeats.

    Args:
        source: what it is drawn from.
        make: draws.
    """
    if not _may_repeat():
        return make()
    stage = _stage.get() or _Stage()
    if source in stage.repeated:
        drawn = next(stage.repeated[source])
    else:
        with stage.recorded[0].outside() if stage.recorded else contextlib.nullcontext():
            drawn = make()
    for forward in stage.recorded:
        forward.remember(source, drawn)
    return drawn


def next_seed(generator: Any) -> Any:
    """Return the next seed of a `keras.random.SeedGenerator`, which a second computation repeats."""
    if _RUNS_PROGRAMS and current().is_tracing():
        _in_programs.add(generator)
        for forward in (_stage.get() or _Stage()).recorded if _may_repeat() else ():
            forward.remember_state(generator)
    return draw(generator, generator.next)


def _state(generator: Any) -> Any:
    """Return a copy of the state of a seed generator."""
    return generator.state.value * 1


def _install() -> None:
    for patch in current().recomputation_patches(ForwardPass):
        if problem := patch.find_problem():
            warnings.warn(
                f"Layers that are computed again in the backward pass (gradient checkpoints) get other dropout masks: "
                f"heed does not know this version of the backend. {problem}",
                stacklevel=2,
            )
        else:
            patch.install()


_install()
