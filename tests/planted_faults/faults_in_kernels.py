"""Faults in the native library."""

from __future__ import annotations

from tests.planted_faults.fault import Fault

_KERNELS = "native/kernels"
_CORE, _ADDITIVE, _FUZZ = (
    "tests/native/test_core.py",
    "tests/native/test_additive.py",
    "tests/native/test_fuzz.py",
)

FAULTS = (
    # Masks
    Fault(
        "a window ends one key early",
        f"{_KERNELS}/rules.h",
        "*hi = least(*hi, queries.begin + queries.length + align + rule.right);",
        "*hi = least(*hi, queries.begin + queries.length + align + rule.right - 1);",
        (_CORE,),
    ),
    Fault(
        "a window begins one key late",
        f"{_KERNELS}/rules.h",
        "*lo = most(*lo, queries.begin + align - rule.left);",
        "*lo = most(*lo, queries.begin + align - rule.left + 1);",
        (_CORE,),
    ),
    Fault(
        "keys are skipped by the first batch entry's alignment alone",
        f"{_KERNELS}/rules.h",
        "const int64_t align = align_of(rule.align, b);\n    if (rule.left < HEED_NO_LIMIT)",
        "const int64_t align = align_of(rule.align, 0);\n    if (rule.left < HEED_NO_LIMIT)",
        (_CORE,),
    ),
    Fault(
        "a block is taken as visible whole when its last key is not",
        f"{_KERNELS}/rules.h",
        "return full_if(most(first.first, last.first) <= block.queries.begin &&",
        "return full_if(first.first <= block.queries.begin &&",
        (_CORE,),
    ),
    Fault(
        "keys of several segments are seen by queries of one",
        f"{_KERNELS}/rules.h",
        "return full_if(query_least == query_most && key_least == key_most);",
        "return full_if(query_least == query_most);",
        (_CORE,),
    ),
    Fault(
        "lengths of queries are not looked at inside a block",
        f"{_KERNELS}/rules.h",
        "rule.second.data ? *row_of(rule.second, b) : kNoEnd;",
        "kNoEnd;",
        (_CORE,),
    ),
    Fault(
        "dilation takes the remainder of negative differences as C does",
        f"{_KERNELS}/rules.h",
        "return x % d < 0 ? x % d + d : x % d;",
        "return x % d;",
        (f"{_CORE}::test_dilation",),
    ),
    Fault(
        "a dilated mask skips blocks of one key too many",
        f"{_KERNELS}/rules.h",
        "return rest + count > d ? 0 : rest;",
        "return rest + count > d + 1 ? 0 : rest;",
        (f"{_CORE}::test_dilation",),
    ),
    Fault(
        "a dense mask is turned by rows alone",
        f"{_KERNELS}/rules.h",
        "words[r + half] ^= exchanged;",
        "words[r + half] = exchanged;",
        ("tests/native/test_paths.py",),
    ),
    Fault(
        "the last queries of a tile see what is hidden from them",
        f"{_KERNELS}/rules.h",
        "n >= 64 ? ~uint64_t{0}",
        "n >= 64 ? ~uint64_t{0} >> 1",
        (_CORE, "tests/native/test_paths.py"),
    ),
    Fault(
        "decoding reads blocks that a mask rules out",
        f"{_KERNELS}/decode.h",
        "if (ruled_out(a, {b, 0, queries, keys})) continue;",
        "",
        (f"{_FUZZ}::test_decoding_skips_blocks_that_dilation_rules_out",),
    ),
    Fault(
        "ALiBi forgets the alignment",
        f"{_KERNELS}/scores.h",
        "const Real d = static_cast<Real>(queries.begin + x + align - keys.begin - y);",
        "const Real d = static_cast<Real>(queries.begin + x - keys.begin - y);",
        (_CORE, "tests/ops/test_semantics.py::test_alibi_counts_from_the_mask_align"),
    ),
    # Scores
    Fault(
        "a bias that hides a key is added",
        f"{_KERNELS}/scores.h",
        "(bias <= static_cast<Real>(HEED_MASK_VALUE) ? broadcast(-kInfinity<Real>) : bias)",
        "bias",
        (_CORE, "tests/native/test_paths.py", "tests/ops/test_semantics.py"),
    ),
    Fault(
        "the slope of the soft cap is that of tanh alone",
        f"{_KERNELS}/scores.h",
        "if (slope) store(slope + y * kQueryTile + x, 1 - t * t);",
        "if (slope) store(slope + y * kQueryTile + x, 1 - t);",
        (_CORE,),
    ),
    Fault(
        "the high word of a seed is lost",
        f"{_KERNELS}/scores.h",
        "const uint32_t key = mixed(mixed(a.seed[0] + 0x9E3779B9u) ^ a.seed[1]);",
        "const uint32_t key = mixed(mixed(a.seed[0] + 0x9E3779B9u));",
        (_CORE, "tests/ops/test_not_a_number.py"),
    ),
    # Forward
    Fault(
        "sums are not made relative to a higher score",
        f"{_KERNELS}/forward.h",
        "store(row_sum + v * kLanes<Real>, load(row_sum + v * kLanes<Real>) * shrink);",
        "store(row_sum + v * kLanes<Real>, load(row_sum + v * kLanes<Real>));",
        (_CORE,),
    ),
    Fault(
        "the log-sum-exp of a row that sees NaN is a number",
        f"{_KERNELS}/forward.h",
        "if (nonfinite) row_sum = lse = kNaN<Real>;",
        "if (nonfinite) row_sum = kNaN<Real>;",
        (_CORE, "tests/ops/test_not_a_number.py"),
    ),
    Fault(
        "the log-sum-exp of a row without keys is 0",
        f"{_KERNELS}/forward.h",
        "static_cast<Real*>(results.lse)[at] = row_sum == 0 ? -kInfinity<Real> : lse;",
        "static_cast<Real*>(results.lse)[at] = row_sum == 0 ? Real(0) : lse;",
        (_CORE,),
    ),
    Fault(
        "a masked NaN reaches the sums of its block",
        f"{_KERNELS}/block.h",
        "store(copy + j * stride + c, !has_nonfinite ? x : x - x == 0 ? x : V",
        "store(copy + j * stride + c, has_nonfinite ? x : x - x == 0 ? x : V",
        (_CORE, "tests/ops/test_semantics.py"),
    ),
    Fault(
        "a key of infinity is not noticed where all its scores are minus infinity",
        f"{_KERNELS}/forward.h",
        "watch.see(load(s.scores + y * kQueryTile));",
        "",
        ("tests/native/test_paths.py",),
    ),
    Fault(
        "a value that is not finite is not noticed behind a mask",
        f"{_KERNELS}/forward.h",
        "for (int c = 0; row_width == 0 && c < value_rows; ++c) watch.see",
        "for (int c = 0; row_width == 0 && c < 0; ++c) watch.see",
        ("tests/native/test_paths.py",),
    ),
    # Decoding
    Fault(
        "decoding does not notice a key of infinity whose scores are all minus infinity",
        f"{_KERNELS}/decode.h",
        "watch.see(load(s.weights + y));",
        "",
        ("tests/native/test_paths.py",),
    ),
    Fault(
        "splits of the keys are added up as they are",
        f"{_KERNELS}/decode.h",
        "row_sum += of_split(i, first.row_sum)[r] * shrink[i];",
        "row_sum += of_split(i, first.row_sum)[r];",
        (f"{_CORE}::test_few_queries_against_many_keys",),
    ),
    Fault(
        "a NaN key in a later split is not seen",
        f"{_KERNELS}/decode.h",
        "nonfinite |= of_split(i, first.nonfinite)[r];",
        "nonfinite |= i == 0 && of_split(i, first.nonfinite)[r];",
        (_CORE, "tests/ops/test_semantics.py"),
    ),
    Fault(
        "decoding begins at the first block whatever the window",
        f"{_KERNELS}/decode.h",
        "const Span keys = block_keys(at, lo, hi);",
        "const Span keys = block_keys(at, 0, hi);",
        (f"{_FUZZ}::test_decoding_reads_the_keys_of_its_window_alone",),
    ),
    # Backward
    Fault(
        "NaN in the gradient of the log-sum-exp goes nowhere",
        f"{_KERNELS}/backward.h",
        "p.nonfinite[x] = row_sum[x] != row_sum[x] || !is_finite(from_lse) ||",
        "p.nonfinite[x] = row_sum[x] != row_sum[x] ||",
        (_CORE, "tests/ops/test_not_a_number.py"),
    ),
    Fault(
        "the gradient of the log-sum-exp has the wrong sign",
        f"{_KERNELS}/backward.h",
        "p.delta[x] = (total - from_lse) * inverse_sum[x];",
        "p.delta[x] = (total + from_lse) * inverse_sum[x];",
        (_CORE,),
    ),
    Fault(
        "the gradient of the values forgets dropout",
        f"{_KERNELS}/backward.h",
        "if (a.dropout > 0) multiply(s.weights, s.factors, keys.length, columns);",
        "",
        (_CORE, "tests/ops/test_gradients.py"),
    ),
    Fault(
        "the gradient of the query lacks the scale",
        f"{_KERNELS}/backward.h",
        "p.nonfinite[x] ? kNaN<Real> : static_cast<Real>(a.scale);",
        "p.nonfinite[x] ? kNaN<Real> : Real(1);",
        (_CORE,),
    ),
    Fault(
        "tiles together go over the keys of the first one alone",
        f"{_KERNELS}/backward.h",
        "if (p.lo < p.hi) lo = least(lo, p.lo), hi = most(hi, p.hi);",
        "if (p.lo < p.hi && together == 0) lo = p.lo, hi = p.hi;",
        (_CORE,),
    ),
    Fault(
        "the gradient of a bias takes each batch entry's rows from the first",
        f"{_KERNELS}/bias_gradient.h",
        "static_cast<Real*>(pass.bias_gradient) + b * stride[0] + n * stride[1]",
        "static_cast<Real*>(pass.bias_gradient) + n * stride[1]",
        (_CORE, "tests/ops/test_gradients.py::test_the_gradient_of_a_bias_that_broadcasts"),
    ),
    # AMX
    Fault(
        "AMX reads keys past the last one",
        f"{_KERNELS}/amx.h",
        "if (y < keys.length && c < width) words =",
        "if (c < width) words =",
        (_CORE, _FUZZ),
    ),
    Fault(
        "AMX packs values past the last one",
        f"{_KERNELS}/amx.h",
        "if (const int y = j + 2 * r + i; y < keys.length) {",
        "if (const int y = j + 2 * r + i; y <= keys.length) {",
        (_CORE, _FUZZ),
    ),
    # Additive attention
    Fault(
        "additive: a NaN key in a later split is not seen",
        f"{_KERNELS}/additive_forward.h",
        "store(nonfinite, larger(load(nonfinite), load(more.nonfinite + x)));",
        "",
        (_ADDITIVE, "tests/ops/test_additive_attention.py"),
    ),
    Fault(
        "additive: a query prepared for small keys is used for usual ones",
        f"{_KERNELS}/additive_forward.h",
        "if (range != prepared_for) prepare(",
        "if (prepared_for == Range::kAny) prepare(",
        (_ADDITIVE,),
    ),
    Fault(
        "additive: splits of the keys are joined without their largest scores",
        f"{_KERNELS}/additive_forward.h",
        "store(row_sum, load(row_sum) * first_factor + load(more.running->row_sum + x) * second_factor);",
        "store(row_sum, load(row_sum) + load(more.running->row_sum + x));",
        (_ADDITIVE,),
    ),
    Fault(
        "additive: the slope of tanh is 1 - t",
        f"{_KERNELS}/additive.h",
        "const V slope0 = 1 - t0 * t0, slope1 = 1 - t1 * t1;",
        "const V slope0 = 1 - t0, slope1 = 1 - t1;",
        (_ADDITIVE,),
    ),
    # Threads
    Fault(
        "denormals count where one thread works alone",
        "native/thread_pool.cc",
        "if (threads <= 1) {\n    const FlushDenormals mode;",
        "if (threads <= 1) {",
        (_CORE, "tests/native/test_tensorflow.py::test_values_that_are_not_numbers_or_denormal"),
    ),
    Fault(
        "how the backward pass is split depends on the number of threads",
        "native/attention.cc",
        "parts_within_memory(std::min(ceil_div(16, all_kv_heads), pieces)",
        "parts_within_memory(std::min(ceil_div(threads, all_kv_heads), pieces)",
        (f"{_CORE}::test_threads_and_repeats_do_not_change_a_bit",),
    ),
)
