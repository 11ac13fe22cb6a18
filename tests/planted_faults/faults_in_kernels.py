"""Faults in the native library."""

from __future__ import annotations

from tests.planted_faults.fault import Fault

_KERNELS = "native/kernels"
_ATTENTION, _ADDITIVE, _FUZZ, _ROWS, _DECODER = (
    f"tests/native/test_{name}.py" for name in ("attention", "additive", "fuzz", "rows", "decoder")
)
_PROGRAMS = "tests/native/test_program.py"
_STEPS = "tests/native/test_adapters_tensorflow_decoding_steps.py"
_ENGINE = "tests/decoding/test_engine.py"

FAULTS = (
    # Steps of decoding
    Fault(
        "a product forgets the blocks of k before the last",
        f"{_KERNELS}/few_rows.h",
        "sum[r][v] = load(sums + r * kProductColumns + v * kLanes<Real>);",
        "sum[r][v] = V{};",
        (_STEPS,),
    ),
    Fault(
        "a group of a product takes the weights of the first",
        f"{_KERNELS}/few_rows.h",
        " + group * width * p.columns;",
        ";",
        (_STEPS,),
    ),
    # Rows
    Fault(
        "the gradient of the label is made of what took its place",
        f"{_KERNELS}/cross_entropy.h",
        "    store_some(gradient + label, 1, of_label);",
        "    store_some(gradient + label, 1, gradient_of(load_some(logits + label, 1)) - incoming * (1 - smoothing));",
        (_ROWS,),
    ),
    Fault(
        "RMS normalisation takes the mean of its gradient away",
        f"{_KERNELS}/normalization.h",
        "    if (!n.rms) of_gradient =",
        "    of_gradient =",
        (_ROWS,),
    ),
    Fault(
        "a part of the rows forgets what it had of the scale's gradient",
        f"{_KERNELS}/normalization.h",
        "store(scale_sums + column, load(scale_sums + column) + g * h);",
        "store(scale_sums + column, g * h);",
        (_ROWS,),
    ),
    Fault(
        "dropout of rows counts columns anew in each stretch of them",
        f"{_KERNELS}/dropout.h",
        "columns[c] = Dropout::column_of(from + c);",
        "columns[c] = Dropout::column_of(c);",
        (_ROWS,),
    ),
    # The decoder engine
    Fault(
        "a beam keeps its own keys when it goes on from another",
        "native/decoder/beam.h",
        "ancestors_[kept * length + j] = ancestors[candidate.beam * length + j];",
        "ancestors_[kept * length + j] = ancestors[kept * length + j];",
        (_DECODER,),
    ),
    Fault(
        "the engine's soft-cap comes after the bias",
        "native/decoder/cache.h",
        "    if (const float cap = static_cast<float>(how.options.soft_cap); cap > 0)\n"
        "      for (int j = begin; j < keys.end; j += kLanes<float>)",
        "    if (const float* bias = visible.bias.row(head, visible.positions.of_query(row)))\n"
        "      for (int j = own.begin; j < own.end; ++j) scores[j] += bias[visible.positions.of_key(j)];\n"
        "    if (const float cap = static_cast<float>(how.options.soft_cap); cap > 0)\n"
        "      for (int j = begin; j < keys.end; j += kLanes<float>)",
        (_DECODER,),
    ),
    Fault(
        "a window of the engine ends a key late",
        "native/decoder/cache.h",
        "query - positions.of_key(range.begin) >= window",
        "query - positions.of_key(range.begin) > window",
        (_DECODER,),
    ),
    Fault(
        "sinks do not count",
        "native/decoder/cache.h",
        "row_sum = sinks ? 1.0f : 0.0f",
        "row_sum = 0.0f",
        (_DECODER,),
    ),
    Fault(
        "the other half of a gated part is activated too",
        "native/decoder/parts.h",
        "function(gate) * (up + offset)",
        "function(gate) * function(up + offset)",
        (_DECODER,),
    ),
    Fault(
        "a root mean square is taken about the mean",
        "native/decoder/parts.h",
        "c < width && !norm.root_mean_square;",
        "c < width;",
        (_DECODER,),
    ),
    Fault(
        "the keys of sources are not normalised",
        "native/decoder/sources.h",
        "          normalise_heads(how.key_norm, projected_[row], stack_.kv_heads, stack_.head_dim);\n",
        "",
        (_DECODER,),
    ),
    Fault(
        "tokens of a prompt see those after them",
        "native/decoder/prompts.h",
        "target_bias(decoding_), true};",
        "target_bias(decoding_), false};",
        (_DECODER,),
    ),
    Fault(
        "all tiles of a prompt stand where its first one does",
        "native/decoder/prompts.h",
        "rows_.position[rows] = position;",
        "rows_.position[rows] = position - at;",
        (_DECODER,),
    ),
    Fault(
        "beams look for their prompt in caches of their own",
        "native/decoder/beam.h",
        "s_.ancestors[(first_row + k) * length + j] = 0;",
        "s_.ancestors[(first_row + k) * length + j] = static_cast<uint8_t>(k);",
        (_DECODER,),
    ),
    Fault(
        "later queries of a long source stand where its first ones do",
        "native/decoder/sources.h",
        "position + at, position}",
        "position, position}",
        (_DECODER,),
    ),
    Fault(
        "what a mask hides of a source is encoded",
        "native/decoder/sources.h",
        "if (!is_visible(b, j)) continue;",
        "if (j < 0) continue;",
        (_DECODER,),
    ),
    Fault(
        "nothing makes up for weights that are stored with an offset",
        "native/decoder/packs/block_products.h",
        "HEED_BYTES::begin(kOffset == 0 ? 0 : -kOffset *",
        "HEED_BYTES::begin(kOffset == 0 ? 0 : (1 - kOffset) *",
        (_DECODER,),
    ),
    Fault(
        "products of pairs of bytes take weights without their sign",
        "native/simd/avx2.h",
        "_mm256_maddubs_epi16(_mm256_abs_epi8(w), signed_x)",
        "_mm256_maddubs_epi16(_mm256_abs_epi8(w), (__m256i)x)",
        (_DECODER,),
    ),
    Fault(
        "weights of 16 bits meet the inputs in another order",
        "native/decoder/packs/blocks.h",
        "store(to, (x & 0xffff00000000ffffu)",
        "store(to, x); return; store(to, (x & 0xffff00000000ffffu)",
        (_DECODER,),
    ),
    Fault(
        "sums of 16-bit products begin again with every piece of the weights",
        "native/decoder/packs/block_products.h",
        "const V before = b == 0 ?",
        "const V before = b == range.begin ?",
        (_DECODER,),
    ),
    Fault(
        "rows of whole numbers have the factors of the first one",
        "native/decoder/packs/block_products.h",
        "const Row& row = reinterpret_cast<const Row*>(x.room(r))[b];",
        "const Row& row = reinterpret_cast<const Row*>(x.room(0))[b];",
        (_DECODER,),
    ),
    Fault(
        "a team computes one panel of each of its ranges",
        "native/decoder/dense.h",
        "static_cast<int>((index + 1) * r.count / r.ranges)",
        "static_cast<int>(index * r.count / r.ranges + 1)",
        (_DECODER,),
    ),
    Fault(
        "sums of a panel's second part begin anew",
        "native/decoder/packs/float32.h",
        "chunk, y, k > 0, weights",
        "chunk, y, false, weights",
        (_DECODER,),
    ),
    Fault(
        "sums of weights in place begin anew with each piece of the inputs",
        "native/decoder/packs/in_place.h",
        "store(to, k > 0 ? load(to) + sum : sum);",
        "store(to, sum);",
        (_DECODER,),
    ),
    Fault(
        "one row leaves out the last part of its inputs",
        "native/decoder/packs/float32.h",
        "for (int p = 1; p < kParts; ++p) total",
        "for (int p = 1; p + 1 < kParts; ++p) total",
        (_DECODER,),
    ),
    Fault(
        "two rows of a product are computed as one",
        "native/kernels/product.h",
        "if (rows == 2) thin(Constant<2>{}",
        "if (rows == 2) thin(Constant<1>{}",
        (_DECODER,),
    ),
    Fault(
        "packed weights stay when the variables change",
        "src/heed/decoding/engine/packed.py",
        "if self._packed is None or self._packed.number != number:",
        "if self._packed is None:",
        (_ENGINE,),
    ),
    # Masks
    Fault(
        "a window ends one key early",
        f"{_KERNELS}/rules.h",
        "*hi = min(*hi, queries.begin + queries.length + align + rule.right);",
        "*hi = min(*hi, queries.begin + queries.length + align + rule.right - 1);",
        (_ATTENTION,),
    ),
    Fault(
        "a window begins one key late",
        f"{_KERNELS}/rules.h",
        "*lo = max(*lo, queries.begin + align - rule.left);",
        "*lo = max(*lo, queries.begin + align - rule.left + 1);",
        (_ATTENTION,),
    ),
    Fault(
        "keys are skipped by the first batch entry's alignment alone",
        f"{_KERNELS}/rules.h",
        "const int64_t align = align_of(rule.align, b);\n    if (rule.left < HEED_NO_LIMIT)",
        "const int64_t align = align_of(rule.align, 0);\n    if (rule.left < HEED_NO_LIMIT)",
        (_ATTENTION,),
    ),
    Fault(
        "a block is taken as visible whole when its last key is not",
        f"{_KERNELS}/rules.h",
        "return full_if(max(first.first, last.first) <= block.queries.begin &&",
        "return full_if(first.first <= block.queries.begin &&",
        (_ATTENTION,),
    ),
    Fault(
        "keys of several segments are seen by queries of one",
        f"{_KERNELS}/rules.h",
        "return full_if(query_least == query_most && key_least == key_most);",
        "return full_if(query_least == query_most);",
        (_ATTENTION,),
    ),
    Fault(
        "lengths of queries are not looked at inside a block",
        f"{_KERNELS}/rules.h",
        "rule.second.data ? *row_of(rule.second, b) : kNoEnd;",
        "kNoEnd;",
        (_ATTENTION,),
    ),
    Fault(
        "dilation takes the remainder of negative differences as C does",
        f"{_KERNELS}/rules.h",
        "return x % d < 0 ? x % d + d : x % d;",
        "return x % d;",
        (f"{_ATTENTION}::test_dilation",),
    ),
    Fault(
        "a dilated mask skips blocks of one key too many",
        f"{_KERNELS}/rules.h",
        "return rest + count > d ? 0 : rest;",
        "return rest + count > d + 1 ? 0 : rest;",
        (f"{_ATTENTION}::test_dilation",),
    ),
    Fault(
        "the last queries of a tile see what is hidden from them",
        "native/simd/portable.h",
        "n >= 64 ? ~uint64_t{0}",
        "n >= 64 ? ~uint64_t{0} >> 1",
        (_ATTENTION, "tests/native/test_kernels.py"),
    ),
    Fault(
        "decoding takes the mask of the first head for all",
        f"{_KERNELS}/decode.h",
        "const bool alike = queries_per_kv == 1 || !mask_differs_by_head(a);",
        "const bool alike = true;",
        (_ATTENTION, _FUZZ),
    ),
    Fault(
        "decoding hides keys from the first query alone",
        f"{_KERNELS}/decode.h",
        "scores[y] = hidden[y] >> x & 1 ?",
        "scores[y] = hidden[y] & 1 ?",
        (_ATTENTION, _FUZZ),
    ),
    Fault(
        "ALiBi forgets the alignment",
        f"{_KERNELS}/scores.h",
        "const int64_t distance = queries.begin - keys.begin + align_of(a.alibi_align, block.b);",
        "const int64_t distance = queries.begin - keys.begin;",
        (
            _ATTENTION,
            "tests/ops/test_attention_semantics.py::test_alibi_counts_from_the_mask_align",
        ),
    ),
    # Scores
    Fault(
        "the slope of the soft cap is that of tanh alone",
        f"{_KERNELS}/scores.h",
        "if (slope) *slope = 1 - t * t;",
        "if (slope) *slope = 1 - t;",
        (_ATTENTION,),
    ),
    # Forward
    Fault(
        "sums are not made relative to a higher score",
        f"{_KERNELS}/forward.h",
        "store(row_sum + v * kLanes<Real>, load(row_sum + v * kLanes<Real>) * shrink);",
        "store(row_sum + v * kLanes<Real>, load(row_sum + v * kLanes<Real>));",
        (_ATTENTION,),
    ),
    Fault(
        "the log-sum-exp of a row without keys is 0",
        f"{_KERNELS}/forward.h",
        "static_cast<Real*>(results.lse)[at] = row_sum == 0 ? -kInfinity<Real> : lse;",
        "static_cast<Real*>(results.lse)[at] = row_sum == 0 ? Real(0) : lse;",
        (_ATTENTION,),
    ),
    Fault(
        "a masked NaN reaches the sums of its block",
        f"{_KERNELS}/block.h",
        "store(copy + j * stride + c, !has_nonfinite ? x : x - x == 0 ? x : V",
        "store(copy + j * stride + c, has_nonfinite ? x : x - x == 0 ? x : V",
        (_ATTENTION, "tests/ops/test_attention_semantics.py"),
    ),
    Fault(
        "a strip of queries takes the keys that the tile's first queries see",
        f"{_KERNELS}/strips.h",
        "block.queries.length - strip->query)) << strip->query;",
        "block.queries.length - strip->query));",
        (_ATTENTION,),
    ),
    Fault(
        "a band of keys takes the queries that see its last key",
        f"{_KERNELS}/strips.h",
        "seen |= ~hidden[y];",
        "seen = ~hidden[y];",
        (_ATTENTION,),
    ),
    # Decoding
    Fault(
        "splits of the keys are added up as they are",
        f"{_KERNELS}/decode.h",
        "row_sum += of_split(i, first.row_sum)[r] * shrink[i];",
        "row_sum += of_split(i, first.row_sum)[r];",
        (f"{_ATTENTION}::test_few_queries_against_many_keys",),
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
        "the gradient of the log-sum-exp has the wrong sign",
        f"{_KERNELS}/backward.h",
        "p.delta[x] = (total - from_lse) * inverse_sum[x];",
        "p.delta[x] = (total + from_lse) * inverse_sum[x];",
        (_ATTENTION,),
    ),
    Fault(
        "the gradient of the values forgets dropout",
        f"{_KERNELS}/backward.h",
        "if (a.dropout > 0) multiply(s.weights, s.factors, keys.length, columns);",
        "",
        (_ATTENTION, "tests/ops/test_dropout.py"),
    ),
    Fault(
        "the gradient of the query lacks the scale",
        f"{_KERNELS}/backward.h",
        "p.nonfinite[x] ? kNaN<Real> : static_cast<Real>(a.scoring.scale);",
        "p.nonfinite[x] ? kNaN<Real> : Real(1);",
        (_ATTENTION,),
    ),
    Fault(
        "tiles together go over the keys of the first one alone",
        f"{_KERNELS}/backward.h",
        "if (p.lo < p.hi) lo = min(lo, p.lo), hi = max(hi, p.hi);",
        "if (p.lo < p.hi && together == 0) lo = p.lo, hi = p.hi;",
        (_ATTENTION,),
    ),
    Fault(
        "the gradient of a bias takes each batch entry's rows from the first",
        f"{_KERNELS}/bias_gradient.h",
        "static_cast<Real*>(pass.bias_gradient) + block.b * stride[0] + block.n * stride[1]",
        "static_cast<Real*>(pass.bias_gradient) + block.n * stride[1]",
        (
            _ATTENTION,
            "tests/ops/test_attention_gradients.py::test_the_gradient_of_a_bias_that_broadcasts",
        ),
    ),
    # Programs of scores
    Fault(
        "a captured table by distance is read in the wrong direction",
        f"{_KERNELS}/program.h",
        "store(to, shuffle<Real>(x, x, Reversed<kLanes<Real>>{}));",
        "store(to, x);",
        (f"{_PROGRAMS}::test_gradients_of_captured_arrays",),
    ),
    Fault(
        "all values that the backward pass keeps lie in one block",
        f"{_KERNELS}/program.h",
        "return kept + number * (kKeyBlock * kQueryTile);",
        "return kept;",
        (f"{_PROGRAMS}::test_random_programs",),
    ),
    Fault(
        "a hidden pair adds what its derivative gives, NaN or not",
        f"{_KERNELS}/program_backward.h",
        "store(to, is_zero ? V{} : load(to) == 0 ? V{} : load_as<V>(from));",
        "store(to, is_zero ? V{} : load_as<V>(from));",
        (f"{_PROGRAMS}::test_what_is_not_a_number",),
    ),
    Fault(
        "the gradient of a captured bias is that of the last batch entry",
        f"{_KERNELS}/program_backward.h",
        "if (count == kLanes<Real>) return store(to, load(to) + x);",
        "if (count == kLanes<Real>) return store(to, x);",
        ("tests/ops/score_mod/test_native.py::test_a_bias_as_a_function_is_the_bias",),
    ),
    Fault(
        "a window as a function ends a key late",
        f"{_KERNELS}/program.h",
        "line.by_query < 0 ? from(x + 1)",
        "line.by_query < 0 ? from(x)",
        (f"{_PROGRAMS}::test_a_window_as_a_function_is_the_rule",),
    ),
    # AMX
    Fault(
        "AMX gives keys gradients without the scale",
        f"{_KERNELS}/tiles.h",
        "narrow(score_gradients, keys, columns_of(p), static_cast<float>(a_.scoring.scale));",
        "narrow(score_gradients, keys, columns_of(p), 1.0f);",
        (_ATTENTION, _FUZZ),
    ),
    Fault(
        "AMX takes values from the start of their block",
        f"{_KERNELS}/tiles.h",
        "return keys.begin % kKeyBlock / kTileDepth * kTileBytes;",
        "return keys.begin * 0;",
        (_ATTENTION, _FUZZ),
    ),
    Fault(
        "AMX leaves scores unscaled before what happens to them",
        f"{_KERNELS}/forward.h",
        "apply_score_mods<Real>(a, block, columns, mask, s.hidden, products.unit(),",
        "apply_score_mods<Real>(a, block, columns, mask, s.hidden, Real(1),",
        (_ATTENTION, _FUZZ),
    ),
    # Additive attention
    Fault(
        "additive: the scores of all blocks of keys are kept in one place",
        f"{_KERNELS}/additive_forward.h",
        "+ queries.begin) * rows + at * columns;",
        "+ queries.begin) * rows;",
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
)
