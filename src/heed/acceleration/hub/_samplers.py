"""The samplers of KerasHub as searches of the engine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from keras import ops, random

from heed.acceleration.hub.recognition import LeftToKerasError, class_name, require
from heed.number_checks import real
from heed.ops.core.description import MOST_BEAMS, Search

_MODULES = {
    "GreedySampler": "greedy_sampler",
    "TopKSampler": "top_k_sampler",
    "TopPSampler": "top_p_sampler",
    "RandomSampler": "random_sampler",
    "BeamSampler": "beam_sampler",
}


def make_search(sampler: Any, length: int, vocabulary: int, stops: tuple[int, ...]) -> Search:
    """Return the search of a sampler: `length` tokens at most, none of them special but the stops."""
    name = class_name(type(sampler)).rpartition(".")[2]
    if name not in _MODULES:
        raise LeftToKerasError(f"the engine has no {name}")
    require(sampler, f"samplers.{_MODULES[name]}.{name}")
    heat = _number(sampler, "temperature", 0)
    options: dict[str, Any] = {}
    if name == "BeamSampler":
        if heat != 1:
            raise LeftToKerasError("the engine's beam search has no temperature")
        if sampler.return_all_beams:
            raise LeftToKerasError("the sampler returns all beams")
        beams = _count(sampler, "num_beams", min(MOST_BEAMS, vocabulary))
        options = {"method": "beam", "beam_size": beams}
    elif name != "GreedySampler":
        numbers: dict[str, float] = {"temperature": heat, "top_p_of_all": True}
        if name == "TopKSampler" or (name == "TopPSampler" and sampler.k is not None):
            numbers["top_k"] = _count(sampler, "k", vocabulary)
        if name == "TopPSampler":
            share = _number(sampler, "p", -math.inf)
            # Without any share the most likely token remains; more than all is no cut.
            numbers |= {"top_p": share} if share < 1 else {}
            if share <= 0:
                numbers |= {"top_k": 1, "top_p": 0.0}
        options = {"method": "sample", "numbers": numbers}
    return Search(length, -1, -1, -1, stop_tokens=stops, **options)


def draw(sampler: Any, search: Search, rows: int) -> np.ndarray | None:
    """Return the random numbers of a search, (rows, L) in [0, 1), or None; they follow the sampler's seed."""
    if search.method != "sample":
        return None
    drawn = random.uniform((rows, search.length), dtype="float32", seed=sampler.seed_generator)
    # Some frameworks round the largest numbers up to 1.
    return np.minimum(ops.convert_to_numpy(drawn), np.nextafter(np.float32(1), np.float32(0)))


def _number(sampler: Any, name: str, least: float) -> float:
    value = real(getattr(sampler, name))
    if value is None or not least < value < math.inf:
        raise LeftToKerasError(f"the sampler has {name}={getattr(sampler, name)!r}")
    return float(value)


def _count(sampler: Any, name: str, most: int) -> int:
    value = getattr(sampler, name)
    if type(value) is not int or not 1 <= value <= most:
        raise LeftToKerasError(
            f"the sampler has {name}={value!r}, and the engine takes 1 to {most}"
        )
    return value
