"""How an attention travels to the core: the one table for all backends.

A call is a `Form`, numbers that all calls of one kind share, and operands, tensors that the form names by their places
among them. Adapters get the form as bytes and read it in `native/adapters/shared/call.h`; on PyTorch
`heed.ops.core.attention` fills the struct of `native/include/heed.h` from it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras import ops

from heed.ops.checks import dtype_of
from heed.ops.core._program import CoreProgram
from heed.ops.layouts import LAYOUTS
from heed.ops.mask import Mask
from heed.ops.mask_rules import RULES, Where, WireRule, of_rank_4, offset
from heed.ops.options import SCORING
from heed.ops.score_mod.captures import to_floats
from heed.ops.score_mod.operations import Type
from heed.ops.score_mod.rewriting import join, of_keep, of_score
from heed.ops.scores import CoreScore, FunctionScore, from_core
from heed.ops.sizes import size
from heed.ops.spec import AttentionSpec, Tensors

# Places of operands: there is none; a plain number stands beside it.
NONE, NUMBER = -1, -2
_LAYOUTS = tuple(LAYOUTS)
# The operands that a form names itself, in their order.
_NAMES = Tensors._fields[3:]
_REALS = 1 + len(SCORING)
_ALIBI = -1  # a kind that is no rule: its align is that of ALiBi


class Header(NamedTuple):
    """The fields of `Header` in `call.h` after its reals: the dropout, and the numbers of the score.

    They are places of operands, but for the first three, and the numbers of rules and of integers of the program.
    """

    score: int
    layout: int
    threads: int
    score_vector: int
    bias: int
    slopes: int
    seed: int
    rules: int
    program: int = 0


class Rule(NamedTuple):
    """`Rule` in `call.h`: a `WireRule`. The last four are places; `align` and `first` are numbers without one."""

    kind: int
    left: int
    right: int
    align: int
    first: int
    align_in: int
    first_in: int
    second_in: int
    dense_in: int

    @property
    def is_alibi(self) -> bool:
        """Whether it is no rule of the mask, but holds the align of ALiBi."""
        return self.kind == _ALIBI


class Form(NamedTuple):
    """What calls of one kind share. `reals` are the first fields of `Header` in `call.h`."""

    reals: tuple[float, ...]
    header: Header
    rules: tuple[Rule, ...]
    words: tuple[int, ...] = ()  # of the program, see `CoreProgram.to_words`

    @property
    def program(self) -> CoreProgram | None:
        """The functions of score and mask; None without any."""
        return CoreProgram.from_words(self.words) if self.words else None

    @property
    def captured_places(self) -> list[int]:
        """The places of the captured arrays that get gradients."""
        return [] if self.program is None else self.program.trained_places()

    @property
    def trained(self) -> dict[str, int]:
        """The operands with gradients besides query, key and value that are no captured arrays, and their places."""
        places = {name: getattr(self.header, name) for name in ("bias", "score_vector")}
        return {name: place for name, place in places.items() if place != NONE}

    @property
    def trained_places(self) -> list[int]:
        """The places of all operands with gradients besides query, key and value."""
        return [*self.trained.values(), *self.captured_places]

    def in_places(self, found: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        """Return what there is for each trained operand in its place among all of them, and None for the others."""
        places = dict(zip(self.trained_places, found, strict=True))
        return [places.get(place) for place in range(len(others))]

    @property
    def dropout(self) -> float:
        """The rate with which weights are dropped."""
        return self.reals[0]

    @property
    def score(self) -> CoreScore:
        """The score, without functions."""
        return CoreScore(self.header.score, self.reals[1:])

    @property
    def is_additive(self) -> bool:
        """Whether the attention is additive."""
        return self.score.is_additive

    @property
    def layout(self) -> str:
        """The layout of query, key, value and output."""
        return _LAYOUTS[self.header.layout]

    @property
    def integers(self) -> list[int]:
        """All but the reals, flat."""
        return [*self.header, *itertools.chain(*self.rules), *self.words]

    @classmethod
    def of(cls, reals: Sequence[float], integers: Sequence[int]) -> Form:
        """Return the form of its numbers."""
        count, width = len(Header._fields), len(Rule._fields)
        header = Header(*integers[:count])
        end = count + width * header.rules
        rules = tuple(Rule(*integers[row : row + width]) for row in range(count, end, width))
        return cls(tuple(reals), header, rules, tuple(integers[end:]))

    def pack(self) -> bytes:
        """Return the form as bytes."""
        integers = self.integers
        return struct.pack(f"={_REALS}d{len(integers)}q", *self.reals, *integers)

    @staticmethod
    @functools.lru_cache(maxsize=1024)
    def unpack(packed: bytes) -> Form:
        """Return the form of these bytes."""
        numbers = struct.unpack(f"={_REALS}d{len(packed) // 8 - _REALS}q", packed)
        return Form.of(numbers[:_REALS], numbers[_REALS:])


def write(spec: AttentionSpec, tensors: Tensors, threads: int = 0) -> tuple[Form, list[Any]]:
    """Return the form of a call, and the operands that its mask adds to those of `operands`."""
    names = [name for name in _NAMES if getattr(tensors, name) is not None]
    added: list[Any] = []

    def add(x: Any) -> int:
        added.append(x)
        return len(names) + len(added) - 1

    def number(x: Any) -> tuple[Any, int]:
        """Return a number and its place."""
        if x is None:
            return 0, NONE
        if not hasattr(x, "shape"):
            return x, NUMBER
        return 0, add(x if dtype_of(x) == "int32" else ops.cast(x, "int32"))

    axis = spec.length_axis
    lengths = size(tensors.query, axis), size(tensors.key, axis)

    def rule(wire: WireRule) -> Rule:
        align = offset(wire.align, *lengths)
        align, align_in = number(None if isinstance(align, int) and align == 0 else align)
        first, first_in = number(wire.first)
        second_in = number(wire.second)[1]
        dense_in = NONE if wire.dense is None else add(of_rank_4(wire.dense))
        places = align_in, first_in, second_in, dense_in
        return Rule(wire.kind, wire.left, wire.right, align, first, *places)

    mask = Mask() if spec.mask is None else spec.mask
    wires = [rule.to_wire() for rule in mask.rules if rule.program is None]
    if spec.has_slopes:
        wires.append(WireRule(_ALIBI, align=mask.alignment))
    rules = tuple(map(rule, wires))
    words: tuple[int, ...] = ()
    if found := functions(spec):
        program = join(tuple(x.program for x in found))
        captures = [y for x in found for y in x.captured()]
        dtypes = {Type.FLOAT: spec.dtype, Type.INT: "int32", Type.BOOL: "bool"}
        typed = zip(captures, program.captures, strict=True)
        places = tuple(add(ops.cast(x, dtypes[kind])) for x, kind in typed)
        words = CoreProgram(program, places).to_words()
    score = spec.score.to_core()
    header = Header(
        score=score.kind,
        layout=_LAYOUTS.index(spec.layout),
        threads=threads,
        rules=len(rules),
        program=len(words),
        **{name: names.index(name) if name in names else NONE for name in _NAMES},
    )
    return Form((spec.dropout, *score.numbers), header, rules, words), added


def trained_operands(spec: AttentionSpec) -> tuple[bool, ...]:
    """Return which operands of the score the core gives gradients for."""
    if not spec.score.operands:
        return ()
    program = join(tuple(x.program for x in functions(spec)))
    trained = CoreProgram(program, tuple(range(len(program.captures)))).trained
    return trained[: len(spec.score.operands)]


def with_trained(spec: AttentionSpec, trained: Sequence[Any]) -> AttentionSpec:
    """Return a spec that `read` made, with other tensors in place of the captured arrays that get gradients."""
    if not trained:
        return spec
    given = iter(trained)
    places = zip(spec.score.operands, trained_operands(spec), strict=True)
    operands = tuple(next(given) if is_trained else x for x, is_trained in places)
    return dataclasses.replace(spec, score=spec.score.with_operands(operands))


def differentiable(
    form: Form, inputs: Sequence[Any], others: Sequence[Any]
) -> tuple[list[Any], Callable[[Sequence[Any]], tuple[AttentionSpec, Tensors]]]:
    """Return the operands with gradients, and the attention that `write` made this of as a function of them.

    Args:
        form: of a call.
        inputs: query, key and value.
        others: the operands.
    """
    query, key, value = inputs
    spec, tensors = read(form, query, key, value, others)
    names = ("query", "key", "value", *form.trained)

    def attention(trained: Sequence[Any]) -> tuple[AttentionSpec, Tensors]:
        named = tensors._replace(**dict(zip(names, trained, strict=False)))
        return with_trained(spec, trained[len(names) :]), named

    return [*inputs, *(others[place] for place in form.trained_places)], attention


def functions(spec: AttentionSpec) -> list[Any]:
    """Return the score and the rules of the mask that are functions."""
    every: list[Any] = [spec.score, *(() if spec.mask is None else spec.mask.rules)]
    return [x for x in every if x.program is not None]


def operands(tensors: Tensors, of_mask: Sequence[Any]) -> list[Any]:
    """Return all operands of a call but query, key and value, in order."""
    return [*[x for x in tensors[3:] if x is not None], *of_mask]


def read(
    form: Form, query: Any, key: Any, value: Any, others: Sequence[Any]
) -> tuple[AttentionSpec, Tensors]:
    """Return the attention that `write` made this of."""

    def operand(place: int, number: Any = None) -> Any:
        return number if place == NUMBER else None if place == NONE else others[place]

    def rule(x: Rule) -> Any:
        align = operand(x.align_in, x.align)
        wire = WireRule(
            *x[:3],
            align=0 if align is None else align,
            first=operand(x.first_in, x.first),
            second=operand(x.second_in),
            dense=operand(x.dense_in),
        )
        return RULES[x.kind].from_wire(wire)

    rules = [rule(x) for x in form.rules if not x.is_alibi]
    header = form.header
    dtype = "float64" if "float64" in str(query.dtype) else "float32"
    score = from_core(form.score)
    if form.program is not None:
        program = form.program.program
        captures = [others[place] for place in form.program.places]
        if program.score >= 0:
            floats = to_floats(captures, program.captures, dtype)
            score = FunctionScore(score, of_score(program).to_text(), dtype, floats)
        if program.keep >= 0:
            heads = LAYOUTS[form.layout].heads_axis
            number = 1 if heads is None else query.shape[heads]
            where = Where(of_keep(program).to_text(), 1, 1, *captures)
            rules.append(where.bind(size(query, 0), number))
    named = {name: operand(getattr(header, name)) for name in _NAMES}
    tensors = Tensors(query, key, value, **named)
    spec = AttentionSpec.of(
        query,
        key,
        value,
        form.layout,
        score=score,
        mask=Mask(rules) if rules else None,
        dtype=dtype,
        has_bias=tensors.bias is not None,
        has_slopes=tensors.slopes is not None,
        dropout=form.dropout,
    )
    return spec, tensors
