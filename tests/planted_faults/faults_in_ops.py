"""Faults in `heed.ops`."""

from __future__ import annotations

from tests.planted_faults.fault import Fault

_OPS, _TESTS = "src/heed/ops", "tests/ops"
_PORTABLE = f"{_OPS}/backends/tensorflow/portable"
_SHARED = f"{_OPS}/backends/shared"

FAULTS = (
    # What is refused, and what is left to another implementation
    Fault(
        "positions of another batch make the result larger",
        f"{_OPS}/_positions.py",
        "or (len(shape) == 2 and all(checks.differ(shape[0], n) for n in batch))",
        "or False",
        (f"{_TESTS}/test_checks.py::test_bad_input_is_named",),
    ),
    # Eager calls
    Fault(
        "masks of tensors are remembered",
        f"{_OPS}/arguments.py",
        "cached = (mask is None or mask.is_plain) and not",
        "cached = True and not",
        (f"{_TESTS}/test_dispatch_cost.py",),
    ),
    # Masks
    Fault(
        "a window skips keys by the first batch entry's alignment alone",
        f"{_OPS}/mask_rules.py",
        "return ops.min(x, initial=_INT32.max), ops.max(x, initial=_INT32.min)",
        "return ops.reshape(x, [-1])[0], ops.reshape(x, [-1])[0]",
        (f"{_TESTS}/test_mask.py::test_no_key_is_visible_outside_of_the_range_that_is_computed",),
    ),
    Fault(
        "a window skips keys by the largest alignment of the batch",
        f"{_OPS}/mask_rules.py",
        "lo = -FAR if self.left is None else queries.begin + least",
        "lo = -FAR if self.left is None else queries.begin + most",
        (f"{_TESTS}/test_mask.py",),
    ),
    Fault(
        "a window ends one key early",
        f"{_OPS}/mask_rules.py",
        "hi = FAR if self.right is None else queries.end + most + self.right",
        "hi = FAR if self.right is None else queries.end + most + self.right - 1",
        (f"{_TESTS}/test_mask.py::test_no_key_is_visible_outside_of_the_range_that_is_computed",),
    ),
    Fault(
        "a window begins one key late",
        f"{_OPS}/mask_rules.py",
        "lo = -FAR if self.left is None else queries.begin + least - self.left",
        "lo = -FAR if self.left is None else queries.begin + least - self.left + 1",
        (f"{_TESTS}/test_mask.py::test_no_key_is_visible_outside_of_the_range_that_is_computed",),
    ),
    Fault(
        "a prefix is skipped where only it is visible",
        f"{_OPS}/mask_rules.py",
        "return 0, maximum(_bounds(self.n)[1], queries.end + most)",
        "return 0, queries.end + most",
        (f"{_TESTS}/test_mask.py::test_no_key_is_visible_outside_of_the_range_that_is_computed",),
    ),
    Fault(
        "lengths of queries are not looked at",
        f"{_OPS}/mask_rules.py",
        "return allowed & (i < _at(self.query_lengths, entry))",
        "return allowed & (i < ops.max(self.query_lengths))",
        (f"{_TESTS}/test_mask.py",),
    ),
    Fault(
        "segments lose the last key of their range",
        f"{_OPS}/mask_rules.py",
        "ops.max(ops.where(near, position + 1, 0), initial=0)",
        "ops.max(ops.where(near, position, 0), initial=0)",
        (f"{_TESTS}/test_mask.py::test_no_key_is_visible_outside_of_the_range_that_is_computed",),
    ),
    Fault(
        "bottom_right counts from the wrong end",
        f"{_OPS}/mask_rules.py",
        'return 0 if align == "top_left" else key_length - query_length',
        'return 0 if align == "top_left" else query_length - key_length',
        (f"{_TESTS}/test_mask.py",),
    ),
    Fault(
        "ALiBi counts from position 0 whatever the mask's alignment is",
        f"{_SHARED}/block.py",
        "here = block.queries.positions[:, None] + as_column(offset(align, *self.lengths))",
        "here = block.queries.positions[:, None] + as_column(offset(0, *self.lengths))",
        (f"{_TESTS}/test_attention_semantics.py::test_alibi_counts_from_the_mask_align",),
    ),
    # The portable form
    Fault(
        "queries of an overlapping last block count twice in the gradients",
        f"{_PORTABLE}/_parts.py",
        "fresh = (queries.positions >= index * self.block)[:, None]",
        "fresh = (queries.positions >= 0)[:, None]",
        (f"{_TESTS}/test_attention_execution.py::test_derivatives_of_unknown_lengths",),
    ),
    Fault(
        "the log-sum-exp of a row that sees NaN is a number",
        f"{_SHARED}/block.py",
        "lse = rows.mark(row_max + ops.log(row_sum), -math.inf) if want_lse else None",
        "lse = rows._replace(nonfinite=None).mark(row_max + ops.log(row_sum), -math.inf) if want_lse else None",
        (f"{_TESTS}/test_attention_nan.py",),
    ),
    Fault(
        "NaN in the gradient of the log-sum-exp goes nowhere",
        f"{_SHARED}/block.py",
        "for x in (self.output_gradient, self.lse_gradient, self.softmax):",
        "for x in (self.output_gradient, self.softmax):",
        (f"{_TESTS}/test_attention_nan.py",),
    ),
    Fault(
        "the gradient of the log-sum-exp has the wrong sign",
        f"{_SHARED}/block.py",
        "delta = delta - safe(slice_axis(self.lse_gradient, 3, *queries))",
        "delta = delta + safe(slice_axis(self.lse_gradient, 3, *queries))",
        (f"{_TESTS}/test_attention.py::test_anything_agrees_with_the_reference",),
    ),
    Fault(
        "a masked NaN reaches the sums",
        f"{_SHARED}/operands.py",
        "safe = ops.where(finite, x, ops.zeros((), x.dtype))",
        "safe = x",
        (f"{_TESTS}/test_attention_semantics.py",),
    ),
    Fault(
        "a broken query reaches the keys of another head",
        f"{_SHARED}/block.py",
        'hits = ops.cast(ops.any(rows, axis=2)[..., 0], "float32")',
        'hits = ops.cast(ops.any(rows, axis=(1, 2), keepdims=True)[:, :, 0, :, 0], "float32")',
        (f"{_TESTS}/test_attention_nan.py",),
    ),
    Fault(
        "dropout is not undone in what remains",
        f"{_SHARED}/block.py",
        "return self.split_heads(ops.cast(keep, query.dtype) * number(1 / (1 - self.rate), query))",
        "return self.split_heads(ops.cast(keep, query.dtype))",
        (f"{_TESTS}/test_dropout.py",),
    ),
    Fault(
        "the gradient of the values forgets dropout",
        f"{_SHARED}/block.py",
        "found[2] = times(fold(dropped), fold(incoming.gradient), transpose_x=True)",
        "found[2] = times(fold(weights), fold(incoming.gradient), transpose_x=True)",
        (f"{_TESTS}/test_dropout.py",),
    ),
    Fault(
        "the soft cap has half its slope",
        f"{_OPS}/scores.py",
        "number(1 / self.soft_cap)",
        "number(0.5 / self.soft_cap)",
        (f"{_TESTS}/test_attention.py::test_anything_agrees_with_the_reference",),
    ),
    Fault(
        "the default scale is 1 / H",
        f"{_OPS}/scores.py",
        "scale = 1 / math.sqrt(width) if width else 1.0",
        "scale = 1 / width if width else 1.0",
        (f"{_TESTS}/test_attention.py::test_anything_agrees_with_the_reference",),
    ),
    Fault(
        "second derivatives forget the log-sum-exp",
        f"{_PORTABLE}/blockwise.py",
        "return [rows.output, rows.lse][: len(incoming)]",
        "return [rows.output, 0 * rows.output[..., :1]][: len(incoming)]",
        (f"{_TESTS}/test_attention_gradients.py::test_second_derivatives_of_the_log_sum_exp",),
    ),
    Fault(
        "small blocks of second derivatives repeat rows",
        f"{_PORTABLE}/blockwise.py",
        "rows = [tf.where(block.fresh, x, tf.zeros((), x.dtype)) for x in rows]",
        "pass",
        (f"{_TESTS}/test_attention_execution.py::test_derivatives_of_unknown_lengths",),
    ),
    # Rows
    Fault(
        "rows that do not count spoil the gradient of the portable cross-entropy",
        f"{_SHARED}/fused_ops.py",
        "x = fill(~counts[..., None], x, 0.0)",
        "pass",
        (f"{_TESTS}/test_row_ops.py",),
    ),
    # Dropout's numbers
    Fault(
        "the second word of a seed is lost",
        f"{_SHARED}/_dropout.py",
        "key = _mix(_mix(_low(words[0] + _word(_GOLDEN))) ^ words[1])",
        "key = _mix(_mix(_low(words[0] + _word(_GOLDEN))))",
        (f"{_TESTS}/test_dropout.py",),
    ),
    Fault(
        "all heads drop alike",
        f"{_SHARED}/_dropout.py",
        "head = _mix(entry[:, None, None] ^ _count(heads)[:, None])",
        "head = _mix(entry[:, None, None] ^ 0 * _count(heads)[:, None])",
        (f"{_TESTS}/test_dropout.py",),
    ),
    # Weights, statistics
    Fault(
        "weights of chosen heads take the key of another head",
        f"{_SHARED}/_weights.py",
        "kv_heads = [head // block.heads[1] for head in heads]",
        "kv_heads = [head % block.heads[0] for head in heads]",
        (f"{_TESTS}/test_attention_weights.py",),
    ),
    # Additive attention
    Fault(
        "the bias of additive attention counts twice",
        f"{_OPS}/scores.py",
        "(query if bias is None else query + bias), None",
        "(query if bias is None else query + 2 * bias), None",
        (f"{_TESTS}/test_additive.py",),
    ),
    # Positions
    Fault(
        "rotation turns the other way",
        f"{_OPS}/_positions.py",
        "rotated = [first * cosine - second * sine, first * sine + second * cosine]",
        "rotated = [first * cosine + second * sine, second * cosine - first * sine]",
        (f"{_TESTS}/test_positions.py",),
    ),
    Fault(
        "linear scaling multiplies positions",
        f"{_OPS}/_positions.py",
        "angles = (ops.cast(positions, compute) / scaling_factor)[..., None] * frequencies",
        "angles = (ops.cast(positions, compute) * scaling_factor)[..., None] * frequencies",
        (f"{_TESTS}/test_positions.py",),
    ),
    Fault(
        "the relative bias ignores where query 0 stands",
        f"{_OPS}/_positions.py",
        'query_positions = ops.arange(query_length, dtype="int32") + ops.cast(offset, "int32")',
        'query_positions = ops.arange(query_length, dtype="int32")',
        (f"{_TESTS}/test_positions.py",),
    ),
    Fault(
        "a far distance falls into the bucket before its own",
        f"{_OPS}/_positions.py",
        'ops.searchsorted(bounds, ops.reshape(distance, [-1]), side="right")',
        'ops.searchsorted(bounds, ops.reshape(distance, [-1]), side="left")',
        (f"{_TESTS}/test_positions.py",),
    ),
    Fault(
        "yarn forgets its factor of attention",
        f"{_OPS}/rotary_scaling.py",
        'multiplier = scaling["attention_factor"] or 0.1 * math.log(scaling["factor"]) + 1.0',
        'multiplier = scaling["attention_factor"] or 1.0',
        (f"{_TESTS}/test_positions.py",),
    ),
    # Functions of scores and masks
    Fault(
        "negative indices of a captured array are those of its first entry",
        f"{_OPS}/score_mod/_lowering.py",
        'where = builder.where(builder.emit("LT", where, zero), builder.add(where, size), where)',
        'where = builder.where(builder.emit("LT", where, zero), zero, where)',
        (f"{_TESTS}/score_mod/test_tracing.py::test_a_function_gives_what_it_gives_in_numpy",),
    ),
    Fault(
        "a number that a function captures is no part of what it is recognised by",
        f"{_OPS}/score_mod/_captures.py",
        "return (type(x), repr(x)), _as_is(x)",
        "return type(x), _as_is(x)",
        (f"{_TESTS}/score_mod/test_tracing.py::test_a_function_made_anew_is_recognised",),
    ),
    Fault(
        "random numbers of the trace are those of every pair",
        f"{_OPS}/score_mod/tracing.py",
        "if any(before.get(name) is not value",
        "if False and any(before.get(name) is not value",
        (f"{_TESTS}/score_mod/test_tracing.py::test_random_numbers_are_refused",),
    ),
    Fault(
        "a branch that was not taken gets the gradient",
        f"{_OPS}/score_mod/derivative.py",
        "(no, (zero, gradient.value))",
        "(no, (gradient.value, gradient.value))",
        (f"{_TESTS}/score_mod/test_program.py::test_the_derivative_is_that_of_finite_differences",),
    ),
    Fault(
        "with a cache, queries count from 0 for the function of the score",
        "src/heed/layers/_score_functions.py",
        "call(score, batch, head, query + first, key)",
        "call(score, batch, head, query, key)",
        ("tests/layers/test_score_functions.py::test_with_a_cache_queries_keep_their_positions",),
    ),
)
