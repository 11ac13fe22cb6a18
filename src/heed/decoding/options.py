"""The options of decoding, each declared once.

A field is an argument of `generate` and `stream`, a field of `heed.seq2seq.DecodingOptions` and an option of the
command line. A new option is a field here, its use in the graph (`_sampling.py` or `_beam.py`), and in the engine a
field of `HeedDecoding` and its use. `methods` are those that read it; `loop` says whether the loop over the tokens
does.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

from heed.config import (
    COUNT,
    FLAG,
    NOT_NEGATIVE,
    REQUIRED,
    SHARE,
    Config,
    Range,
    one_of,
    option,
    optional,
)
from heed.number_checks import check_integer, check_real
from heed.weights import CACHES, WEIGHTS

METHODS = ("greedy", "beam", "sample")
_MOST_PENALTY = 1e30  # a log probability divided by more is lost in float32
_LENGTH = Range("an integer from 1 to 2**20", functools.partial(check_integer, least=1, most=2**20))
_ROWS = Range("an integer from 1 to 65536", functools.partial(check_integer, least=1, most=2**16))
_COVERAGE = Range("in [0, 1e6)", functools.partial(check_real, least=0, most=1e6))
# Beyond, logits leave float32.
HEAT = Range("in [1e-6, 1e6)", functools.partial(check_real, least=1e-6, most=1e6))
_SEED = Range("an integer below 2**31", functools.partial(check_integer, least=-(2**63)))


def _option(
    default: Any,
    values: Range,
    help: str,
    *methods: str,
    details: str = "",
    loop: bool = True,
    text: bool = True,
    server: bool = False,
) -> Any:
    # `text`: whether it is an option of each command that translates; `server`: of `heed serve`.
    methods = methods or METHODS
    return option(
        default,
        values,
        help,
        methods=methods,
        details=details,
        loop=loop,
        text=text,
        server=server,
    )


@dataclasses.dataclass(frozen=True)
class DecodingConfig(Config):
    """The options that `generate` and a translator share."""

    # fmt: off
    beam_size: int = _option(4, _ROWS, "hypotheses of a beam search", "beam")
    length_penalty: float = _option(
        0.6, NOT_NEGATIVE, "of a beam search: higher favours longer outputs", "beam", server=True,
        details="The exponent of the penalty; the penalty of `max_length` tokens must be below 1e30.")
    coverage_penalty: float = _option(
        0.0, _COVERAGE, "of a beam search: higher favours attending to all of the source", "beam",
        details="The factor of the coverage. `p` is the cross-attention of the last decoder layer but one (or of the "
        "only one), the mean of its heads; of a recurrent model its only attention; of an ensemble the mean of its "
        "models'. Above 0 the graph decodes: the engine never builds attention weights.")
    temperature: float | None = _option(
        1.0, HEAT, "of samples: below 1 sharpens, above 1 flattens", "sample")
    top_k: int | None = _option(
        None, optional(COUNT), "sample among this many of the most likely tokens", "sample")
    top_p: float | None = _option(
        None, optional(SHARE), "sample among the most likely tokens with this total probability", "sample",
        details="The fewest of them that hold it.")
    min_p: float | None = _option(
        None, optional(SHARE), "least share of the likeliest token's probability", "sample")
    seed: int | None = _option(
        None, optional(_SEED), "of the samples", "sample", loop=False,
        details="It repeats the draws (XLA has its own draws); None gives new ones.")
    max_length: int | None = _option(None, optional(COUNT), "most tokens of an output", server=True)
    weights: str = _option(
        "float32", one_of(WEIGHTS), "storage of weights", server=True,
        details='The format of the weights of dense layers: "float32"; or, in the engine only, "bfloat16", half the '
        'memory, multiplied in float32; "int8", about a quarter, or "int4", about an eighth: whole numbers times a '
        "factor for each 32 inputs of an output, multiplied with activations that are rounded to 8 bits in blocks of "
        "32. The weights of the model stay as they are.")
    # fmt: on


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerateOptions(DecodingConfig):
    """The options of `generate`."""

    # fmt: off
    max_length: int = _option(
        REQUIRED, _LENGTH, "the most tokens of a target, prompt and end included")
    method: str = _option("greedy", one_of(METHODS), "how tokens are chosen")
    use_cache: bool = _option(
        True, FLAG, "whether to keep keys and values",
        details="False reads the whole target again in each step: the same result, slower.")
    cache: str = _option(
        "float32", one_of(CACHES), "storage of keys and values",
        details='The format of the keys and values that the decoder keeps of its own tokens: "float32"; or, in the '
        'engine only, "bfloat16", half the memory, rounded to 8 bits, or "int8", about a quarter: whole numbers in '
        "[-127, 127] times a factor, of keys one for each feature of 32 positions, of values one for each token and "
        'head. "int8" is not for a beam search, nor for the scores of a greedy one, which is a beam of one.')
    num_results: int | None = _option(
        None, optional(_ROWS), "N, the number of targets for each source",
        details="Of a beam search at most `beam_size`: its best ones, best first, cut ones after those that have "
        'ended; of "sample" so many draws, in their order; of "greedy" at most 1. None: one, without an axis for it.')
    return_scores: bool = _option(False, FLAG, "whether to return scores as well")
    # fmt: on

    def __post_init__(self) -> None:
        super().__post_init__()
        growth = math.log(max(1.0, (5 + self.max_length) / 6))
        self._require(
            self.length_penalty * growth <= math.log(_MOST_PENALTY),
            f"leave ((5 + max_length) / 6)**length_penalty below {_MOST_PENALTY:g}",
            "length_penalty",
            "max_length",
        )
        results = self.num_results or 1
        if self.method == "greedy":
            self._require(
                results == 1, 'be 1 where `method` is "greedy", which finds one', "num_results"
            )
        if self.method == "beam":
            self._require(
                results <= self.beam_size, "be at most `beam_size`", "num_results", "beam_size"
            )

    def of_loop(self) -> dict[str, Any]:
        """Return the options that the loop of the method reads, by name."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.metadata["loop"] and self.method in field.metadata["methods"]
        }


def options_of(*methods: str) -> list[str]:
    """Return the options of `generate` that one of these methods reads."""
    return [
        field.name
        for field in dataclasses.fields(GenerateOptions)
        if set(methods) & set(field.metadata["methods"])
    ]


def sampling_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return those of the options that only sampling has, as `draw` takes them."""
    fields = GenerateOptions.__dataclass_fields__
    return {
        name: value
        for name, value in options.items()
        if fields[name].metadata["methods"] == ("sample",)
    }
