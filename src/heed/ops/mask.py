"""`Mask`: which keys a query may attend to, as one value."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import optree
from keras import ops

from heed.number_checks import check_integer
from heed.ops import checks, mask_rules
from heed.ops._mask_plot import plot_mask
from heed.ops.score_mod.captures import flatten
from heed.ops.score_mod.tracing import trace_mask
from heed.ops.sizes import Size, Span


@keras.saving.register_keras_serializable(package="heed")
class Mask:
    """Which keys each query may attend to: True means "attend".

    A mask is a set of rules, joined with `&`; each of them has to allow a pair (query i, key j). Every rule except
    `dense` is a few numbers: it costs no memory, and blocks of the score matrix that it rules out are never computed.

    Positions: query i is at key position `i + a`. `align` gives `a`:

    - `"top_left"`: 0 (as Keras), query i and key i have the same position;
    - `"bottom_right"`: S - T, the last query and the last key have the same position;
    - an integer in [-2^29, 2^29], or an integer tensor of shape () or (B,): the key position of query 0, such as the
      number of tokens that a key/value cache holds.

    Wherever heed takes a `Mask`, it also takes a boolean array that broadcasts to (B, N, T, S).

    A mask can be passed to and returned from a `tf.function` and a `tf.data.Dataset`. Its arrays and tensors are values
    there, its plain numbers constants of the trace: another `Mask.lengths` of the same shape does not retrace.

    >>> print(Mask.causal().draw(3, 4))
    ■ · · ·
    ■ ■ · ·
    ■ ■ ■ ·
    >>> print(Mask.window(1, 0, "bottom_right").draw(3, 4))
    ■ ■ · ·
    · ■ ■ ·
    · · ■ ■
    >>> float(Mask.lengths([1, 3]).kept_fraction(4, 4))
    0.5
    """

    __array_ufunc__ = None  # makes `array & mask` call the mask

    def __init__(self, rules: Sequence[mask_rules.MaskRule] = ()):
        self.rules: tuple[mask_rules.MaskRule, ...] = tuple(rules)
        # Whether it holds no tensors.
        self.is_plain = all(rule.is_plain for rule in self.rules)

    @classmethod
    def causal(cls, align: Any = "top_left") -> Mask:
        """Let query i see key j if j <= i + a.

        Args:
            align: the key position of query 0, see `Mask`.
        """
        return cls([mask_rules.Window(None, 0, checks.check_align(align))])

    @classmethod
    def window(cls, left: int | None, right: int | None, align: Any = "top_left") -> Mask:
        """Let query i see key j if i + a - left <= j <= i + a + right.

        Args:
            left: how many keys a query sees before its own position, 0 or more; None for all.
            right: the same after its own position.
            align: the key position of query 0, see `Mask`.

        Keras' `sliding_window=W` is `Mask.window(W - 1, W - 1)`.
        """
        left, right = checks.check_reach("left", left), checks.check_reach("right", right)
        return cls([mask_rules.Window(left, right, checks.check_align(align))])

    @classmethod
    def lengths(cls, key_lengths: Any, query_lengths: Any = None) -> Mask:
        """Let queries see key j of batch entry b if j < key_lengths[b] (right padding is ignored).

        Args:
            key_lengths: (B,) integers >= 0; a length beyond S means all keys, 0 none.
            query_lengths: (B,) integers >= 0 or None. Queries from there on attend to nothing: their output is 0.

        Raises:
            ValueError: for a negative length. If values are only known when a graph runs, it means 0.
        """
        lengths = functools.partial(checks.check_ids, ranks=(1,), bounds=(0, None))
        queries = None if query_lengths is None else lengths("query_lengths", query_lengths)
        return cls([mask_rules.Lengths(lengths("key_lengths", key_lengths), queries)])

    @classmethod
    def segments(cls, query_ids: Any, key_ids: Any = None) -> Mask:
        """Let query i see key j if their segment numbers are equal (several texts packed into one row).

        Args:
            query_ids: (B, T) integers that int32 holds.
            key_ids: (B, S) of them; None for those of the queries.
        """
        ids = functools.partial(checks.check_ids, ranks=(2,), bounds=(-(2**31), 2**31 - 1))
        queries = ids("query_ids", query_ids)
        keys = queries if key_ids is None else ids("key_ids", key_ids)
        return cls([mask_rules.Segments(queries, keys)])

    @classmethod
    def prefix(cls, n: Any, align: Any = "top_left") -> Mask:
        """Let query i see key j if j < n or j <= i + a: a prefix seen by all, then causal.

        Args:
            n: length of the prefix, an integer >= 0 or (B,) of them; beyond S it means all keys.
            align: the key position of query 0, see `Mask`.
        """
        return cls([mask_rules.Prefix(checks.check_prefix(n), checks.check_align(align))])

    @classmethod
    def dilated(cls, step: int, align: Any = "top_left") -> Mask:
        """Let query i see key j if (i + a - j) mod step = 0: every step-th key, counted from its own.

        Args:
            step: an integer in [1, 2^29]; 1 means all keys.
            align: the key position of query 0, see `Mask`.

        Source: the strided pattern of Child et al., "Generating Long Sequences with Sparse Transformers", 2019; a
        dilated window, as in Beltagy et al., "Longformer", 2020, is `Mask.dilated(d) & Mask.window(d * w, d * w)`.

        >>> print((Mask.dilated(2) & Mask.causal()).draw(4, 4))
        ■ · · ·
        · ■ · ·
        ■ · ■ ·
        · ■ · ■
        """
        return cls([mask_rules.Dilated(checks.check_step(step), checks.check_align(align))])

    @classmethod
    def dense(cls, array: Any) -> Mask:
        """Let queries see the pairs of an array: True (or a non-zero integer) means "attend".

        Args:
            array: booleans or integers that broadcast to (B, N, T, S); for additive attention to (B, T, S).
        """
        return cls([mask_rules.Dense(checks.check_dense("array", array))])

    @classmethod
    def blocked(cls, array: Any) -> Mask:
        """Return the convention of many tutorials: True or 1 means "do not attend".

        Args:
            array: booleans, integers or floats that are 0 or 1, and broadcast to (B, N, T, S).
        """
        array = checks.check_mask_array("array", array)
        if checks.dtype_of(array) != "bool":
            array = checks.check_numbers("array", array)
        return cls([mask_rules.Dense(ops.equal(array, ops.zeros((), array.dtype)))])

    @classmethod
    def where(cls, function: Callable[..., Any]) -> Mask:
        """Let query i see key j if function(batch, head, query, key) is true.

        The function is traced once, and blocks of which its bounds say that they hold no pair are never computed.
        See [score functions](../score_mod.md).

        Args:
            function: of four integers, the indices of the pair, with Python's operators and `keras.ops`. It returns
                one boolean. Arrays that it captures are read with `keras.ops.take`; they get no gradient.

        Raises:
            TypeError, ValueError: for a function that cannot be traced, with its name and line.

        >>> print(Mask.where(lambda batch, head, query, key: (key <= query) & (query - key < 2)).draw(3, 4))
        ■ · · ·
        ■ ■ · ·
        · ■ ■ ·
        """
        program, captures = trace_mask(function)
        return cls([mask_rules.Where(program.to_text(), 1, 1, *flatten(program, captures))])

    def bind(self, batch: Size, heads: int) -> Mask:
        """Return the mask for so many batch entries and heads."""
        rules = [rule.bind(batch, heads) for rule in self.rules]
        same = all(new is rule for new, rule in zip(rules, self.rules, strict=True))
        return self if same else Mask(rules)

    def __and__(self, other: Any) -> Mask:
        try:
            return Mask(self.rules + as_mask(other, "other").rules)
        except TypeError as error:
            raise TypeError(f"Masks join with `&` as in `mask & other`: {error}") from None

    __rand__ = __and__

    def __len__(self) -> int:
        """Return the number of rules."""
        return len(self.rules)

    def __or__(self, other: Any) -> Mask:
        raise TypeError(
            "Masks only join with `&`: every rule has to allow a pair. For the union pass "
            "Mask.dense(one.to_dense(T, S) | other.to_dense(T, S))"
        )

    __ror__ = __or__

    def __invert__(self) -> Mask:
        raise TypeError(
            "A mask of rules cannot be inverted. Pass Mask.dense(~mask.to_dense(T, S)), or `Mask.blocked(array)` for "
            "an array in which 1 means ignore"
        )

    def __bool__(self) -> bool:
        raise TypeError(
            "A mask is neither true nor false. Test `mask is not None`, join masks with `&` (not `and`), and get "
            "their values from `mask.to_dense(T, S)` or `mask.kept_fraction(T, S)`"
        )

    def visible(
        self, queries: Span, keys: Span, query_length: Size, key_length: Size
    ) -> Any | None:
        """Return one block: booleans of rank 4 that broadcast to (B, N, t, s), or None for "everything"."""
        block = None
        for rule in self.rules:
            allowed = rule.visible(queries, keys, query_length, key_length)
            block = allowed if block is None else ops.logical_and(block, allowed)
        return block

    def at_block(self, queries: Span, keys: Span, query_length: Size, key_length: Size) -> Mask:
        """Return the mask over a block of (T, S) alone, whose queries and keys count from 0."""
        return Mask([rule.at_block(queries, keys, query_length, key_length) for rule in self.rules])

    def classify_block(
        self, queries: Span, keys: Span, query_length: Size, key_length: Size
    ) -> str:
        """Return what is known while tracing of a block: `EMPTY`, `FULL` or `PARTIAL`."""
        return mask_rules.classify_block(self.rules, queries, keys, query_length, key_length)

    def classify(self, queries: mask_rules.Blocks, keys: mask_rules.Blocks) -> mask_rules.Verdict:
        """Return whether some pair of each block may be allowed, and whether all are: booleans of rank 4.

        They broadcast to (B, N, blocks of queries, blocks of keys). Each `align` must be a position.
        """
        some = ops.ones_like(queries.first + keys.first, "bool")
        every = some
        for rule in self.rules:
            possible, certain = rule.classify(queries, keys)
            some, every = ops.logical_and(some, possible), ops.logical_and(every, certain)
        return some, every

    def as_band(self, query_length: Size, key_length: Size) -> mask_rules.Band | None:
        """Return the mask as one window and one pair of lengths, if it is nothing else."""
        band: mask_rules.Band | None = mask_rules.Band()
        for rule in self.rules:
            band = None if band is None else rule.narrow(band, query_length, key_length)
        return band

    def map_dense(self, change: Callable[[Any], Any]) -> Mask:
        """Return the mask with `change` applied to the array of each dense rule."""
        return Mask([rule.map_dense(change) for rule in self.rules])

    @property
    def alignment(self) -> Any:
        """The `align` of the first rule that has one, else 0."""
        return next((rule.align for rule in self.rules if hasattr(rule, "align")), 0)

    @property
    def is_aligned(self) -> bool:
        """Whether a rule says where the queries are among the keys."""
        return any(hasattr(rule, "align") for rule in self.rules)

    def to_dense(
        self, query_length: int, key_length: int, *, batch_size: int = 1, num_heads: int = 1
    ) -> Any:
        """Return the mask as booleans of shape (B or 1, N or 1, T, S).

        Args:
            query_length, key_length: T and S.
            batch_size, num_heads: B and N, for functions of `Mask.where` that depend on them.

        >>> Mask.causal().to_dense(2, 2).numpy().tolist()
        [[[[True, False], [True, True]]]]
        """
        query_length = checks.check_size("query_length", query_length)
        key_length = checks.check_size("key_length", key_length)
        whole = Span(0, query_length), Span(0, key_length)
        allowed = self.bind(batch_size, num_heads).visible(*whole, query_length, key_length)
        full = ops.ones((1, 1, query_length, key_length), "bool")
        return full if allowed is None else ops.logical_and(allowed, full)

    def kept_fraction(self, query_length: int, key_length: int) -> Any:
        """Return the fraction of pairs that the mask keeps: a float32 scalar in [0, 1]."""
        return ops.mean(ops.cast(self.to_dense(query_length, key_length), "float32"))

    def draw(self, query_length: int, key_length: int, *, batch: int = 0, head: int = 0) -> str:
        """Return the mask of one batch entry and head as text: one line per query, "■" for "attend"."""
        picture = self._picture(query_length, key_length, batch, head)
        return "\n".join(" ".join("■" if seen else "·" for seen in row) for row in picture)

    def plot(self, query_length: int, key_length: int, *, batch: int = 0, head: int = 0) -> Any:
        """Return the mask of one batch entry and head as a matplotlib figure: one row per query, dark for "attend".

        Args:
            query_length, key_length: T and S.
            batch, head: which one to plot, if the mask differs between them.

        Raises:
            ImportError: without matplotlib.

        >>> figure = Mask.window(2, 0).plot(8, 8)  # figure.savefig("window.png") or "window.svg"
        >>> figure.axes[0].get_title(loc="left")
        'keeps 32.8 % of 8 x 8'
        """
        allowed = self._picture(query_length, key_length, batch, head)
        share = 100 * float(np.mean(allowed)) if allowed.size else 0.0
        return plot_mask(allowed, f"keeps {share:.3g} % of {query_length} x {key_length}")

    def _picture(self, query_length: int, key_length: int, batch: int, head: int) -> Any:
        batch, head = check_integer("batch", batch), check_integer("head", head)
        sizes = {"batch_size": batch + 1, "num_heads": head + 1}
        allowed = np.asarray(self.to_dense(query_length, key_length, **sizes))
        return allowed[min(batch, len(allowed) - 1), min(head, allowed.shape[1] - 1)]

    def get_config(self) -> dict[str, Any]:
        """Return the rules as plain values, with which Keras saves a Functional model that holds a mask.

        Raises:
            TypeError: for a mask of symbolic tensors, which have no values yet.
        """
        return {"rules": [rule.to_config() for rule in self.rules]}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Mask:
        """Return the mask of a configuration from `get_config`."""
        return cls([mask_rules.from_config(rule) for rule in config["rules"]])

    # Equal plain rules make equal masks, for which a tf.function does not retrace.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mask) and self.rules == other.rules

    def __hash__(self) -> int:
        return hash(self.rules)

    def __repr__(self) -> str:
        return " & ".join(map(repr, self.rules)) or "Mask()"


def as_mask(value: Any, name: str = "mask") -> Mask:
    """Return a `Mask` as it is; anything else as `Mask.dense`, or an error about `name`."""
    if isinstance(value, Mask):
        return value
    return Mask([mask_rules.Dense(checks.check_dense(name, value))])


def _to_keras(mask: Any) -> Any:
    return mask_rules.take_apart(mask.rules)


def _from_keras(outlines: Any, tensors: Any) -> Any:
    return Mask(mask_rules.put_together(outlines, tensors))


# Keras sees a mask as a structure of tensors, which can be an input of a model.
_kind: Any = Mask
optree.register_pytree_node(_kind, _to_keras, _from_keras, namespace="keras")
