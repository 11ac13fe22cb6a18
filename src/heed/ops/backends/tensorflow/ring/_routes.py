"""Which stretches of keys travel how far, planned from the mask.

Turn 0: each worker attends to its own keys. Then stretches move from neighbour to neighbour, one step in each turn, up
or down the ring of workers, whichever reaches all workers that need the stretch in fewer steps. Under a causal mask,
late stretches go down: only workers below hold later queries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

from heed.ops.sequence_split import owner_of, stretches_of


class Route(NamedTuple):
    """The way of a stretch of keys."""

    owner: int  # the worker where it begins
    direction: int  # 1 (up) or -1 (down)
    steps: int  # how often it moves on


class Move(NamedTuple):
    """A step of a stretch of keys from one worker to its neighbour."""

    stretch: int
    sender: int
    receiver: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """All routes, and which pairs of stretches are computed."""

    workers: int  # R
    # (stretch of queries, stretch of keys) with anything to attend to
    pairs: frozenset[tuple[int, int]]
    routes: tuple[Route, ...]  # of each stretch of keys

    @property
    def turns(self) -> int:
        """The number of turns, the first one included."""
        return 1 + max(route.steps for route in self.routes)

    def place(self, stretch: int, turn: int) -> int:
        """Return the worker that a stretch reaches in a turn."""
        route = self.routes[stretch]
        return (route.owner + route.direction * turn) % self.workers

    def moves(self, turn: int) -> Iterator[Move]:
        """Yield the moves before a turn, in an order that all workers share; none before turn 0."""
        for stretch, route in enumerate(self.routes):
            if 1 <= turn <= route.steps:
                yield Move(stretch, self.place(stretch, turn - 1), self.place(stretch, turn))

    def returns(self) -> Iterator[Move]:
        """Yield the ways home from the last worker of each route."""
        for stretch, route in enumerate(self.routes):
            if route.steps:
                yield Move(stretch, self.place(stretch, route.steps), route.owner)

    def queries_of(self, worker: int, stretch: int) -> list[int]:
        """Return which of a worker's two stretches of queries (0 or 1) attend to a stretch of keys."""
        own = stretches_of(worker, self.workers)
        return [half for half, queries in enumerate(own) if (queries, stretch) in self.pairs]


def make_plan(workers: int, sees: Callable[[int, int], bool]) -> Plan:
    """Plan from `sees(stretch of queries, stretch of keys)`."""
    count = range(2 * workers)
    pairs = frozenset((i, j) for i in count for j in count if sees(i, j))
    needed = [{owner_of(i, workers) for i in count if (i, j) in pairs} for j in count]
    routes = []
    for stretch in count:
        owner = owner_of(stretch, workers)
        steps = {
            direction: max((direction * (w - owner) % workers for w in needed[stretch]), default=0)
            for direction in (-1, 1)
        }
        direction = min(steps, key=lambda d: steps[d])  # down if both take as many
        routes.append(Route(owner, direction, steps[direction]))
    return Plan(workers, pairs, tuple(routes))
