// The functions of heed.h: all checks of a call, once, and then the work.
#include "include/heed.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "attention.h"
#include "instruction_sets.h"
#include "thread_pool.h"

namespace heed {
namespace {

// A message with something in it. It stays until the thread's next one.
__attribute__((format(printf, 1, 2))) const char* say(const char* format, ...) {
  static thread_local char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return text;
}

// Whether there are rows, but no memory that holds them.
bool missing(const HeedTensor& tensor, const HeedAttention& a, int64_t positions, int64_t heads) {
  return !tensor.data && a.batch > 0 && positions > 0 && heads > 0;
}

const char* check_integers(const HeedAttention& a, const HeedIntegers& x, const char* name, Per per, bool required) {
  const int64_t length = per == Per::kQuery ? a.query_length : per == Per::kKey ? a.key_length : 1;
  if (!x.data) return required && a.batch > 0 && length > 0 ? say("`%s` of the mask is missing", name) : nullptr;
  if ((x.rows == 1 || x.rows == a.batch) && x.length == length) return nullptr;
  const char* shape = per == Per::kQuery ? "B, T" : per == Per::kKey ? "B, S" : "B,";
  return say("`%s` of the mask must have shape (%s). Received: shape (%lld, %lld)", name, shape,
             static_cast<long long>(x.rows), static_cast<long long>(x.length));
}

const char* check_scores(const HeedAttention& a, const HeedScores& x, const char* name) {
  const int64_t full[4] = {a.batch, a.heads, a.query_length, a.key_length};
  for (int axis = 0; axis < 4; ++axis)
    if (x.shape[axis] != full[axis] && (x.shape[axis] != 1 || x.stride[axis] != 0))
      return say("`%s` must broadcast to (B, N, T, S). Received: shape (%lld, %lld, %lld, %lld)", name,
                 static_cast<long long>(x.shape[0]), static_cast<long long>(x.shape[1]),
                 static_cast<long long>(x.shape[2]), static_cast<long long>(x.shape[3]));
  return nullptr;
}

const char* check_rule(const HeedAttention& a, const HeedMaskRule& rule) {
  const RuleNeeds* needs = kernels_for(a).rule_needs(rule.kind);
  if (!needs) return say("unknown kind of mask rule. Received: %d", static_cast<int>(rule.kind));
  if (const char* problem = needs->problem ? needs->problem(rule) : nullptr) return problem;
  if (const char* problem = check_integers(a, rule.align, "align", Per::kBatch, false)) return problem;
  const auto check_needed = [&](const HeedIntegers& x, const RuleNeeds::Integers& need) -> const char* {
    return need.per == Per::kNothing ? nullptr : check_integers(a, x, need.name, need.per, need.required);
  };
  if (const char* problem = check_needed(rule.first, needs->first)) return problem;
  if (const char* problem = check_needed(rule.second, needs->second)) return problem;
  if (!needs->dense) return nullptr;
  return rule.dense.data ? check_scores(a, rule.dense, "mask") : "the array of a dense mask is missing";
}

const char* check_score(const HeedAttention& a) {
  if (a.score == HEED_ADDITIVE) {
    if (a.heads != 1 || a.kv_heads != 1) return "additive attention has one head";
    if (a.scale != 1 || a.soft_cap != 0 || a.bias.data || a.alibi_slopes)
      return "additive attention has no scale but 1, no soft cap, bias of scores or slopes";
    return a.score_vector ? nullptr : "the score vector is missing";
  }
  if (a.score != HEED_DOT_PRODUCT) return "score must be dot-product or additive";
  if (!std::isfinite(a.scale)) return "scale must be finite";
  if (!(a.soft_cap >= 0) || !std::isfinite(a.soft_cap)) return "soft_cap must be 0 or a finite number above";
  // So far within the range of float that what they are multiplied with stays there too.
  constexpr double kMost = 1e30;
  if (a.dtype != HEED_FLOAT64) {
    if (std::abs(a.scale) > kMost) return "scale must be in [-1e30, 1e30], or in float64";
    if (a.soft_cap > 0 && (a.soft_cap < 1 / kMost || a.soft_cap > kMost))
      return "soft_cap must be 0, or in [1e-30, 1e30], or in float64";
  }
  if (a.bias.data)
    if (const char* problem = check_scores(a, a.bias, "bias")) return problem;
  return check_integers(a, a.alibi_align, "align", Per::kBatch, false);
}

const char* check(const HeedAttention& a) {
  if (a.dtype < HEED_FLOAT32 || a.dtype > HEED_FLOAT16) return "dtype must be float32, float64, bfloat16 or float16";
  for (int64_t n : {a.batch, a.heads, a.kv_heads, a.query_length, a.key_length, a.head_dim, a.value_dim})
    if (n < 0 || n > (int64_t{1} << 31)) return "sizes must be in [0, 2^31]";
  if (a.kv_heads == 0 ? a.heads != 0 : a.heads % a.kv_heads != 0) return "N must be a multiple of K";
  for (int64_t n : {a.head_dim, a.value_dim})
    if (n < 1 || n > 65536) return "features (H or U, and V) must be in [1, 65536]";
  const double pairs = static_cast<double>(a.batch) * static_cast<double>(a.heads) *
                       static_cast<double>(std::max(a.query_length, a.key_length)) *
                       static_cast<double>(std::max(a.head_dim, a.value_dim));
  if (pairs > 4e18) return "B * N * length * features must fit 63 bits";
  if (missing(a.query, a, a.query_length, a.heads)) return "`query` is missing";
  if (missing(a.key, a, a.key_length, a.kv_heads)) return "`key` is missing";
  if (missing(a.value, a, a.key_length, a.kv_heads)) return "`value` is missing";
  if (const char* problem = check_score(a)) return problem;
  if (!(a.dropout >= 0 && a.dropout < 1)) return "dropout must be in [0, 1)";
  if (a.rule_count < 0 || a.rule_count > HEED_MAX_RULES) return "a mask may have at most 8 mask rules";
  if (a.rule_count > 0 && !a.rules) return "the mask rules are missing";
  for (int r = 0; r < a.rule_count; ++r)
    if (const char* problem = check_rule(a, a.rules[r])) return problem;
  return nullptr;
}

bool has_rows(const HeedAttention& a) { return a.batch > 0 && a.heads > 0 && a.query_length > 0; }

const char* check_written(const HeedAttention& a, const HeedForward& results) {
  if (missing(results.output, a, a.query_length, a.heads)) return "`output` is missing";
  return !has_rows(a) || (results.lse && results.softmax) ? nullptr : "`lse` or `softmax` is missing";
}

const char* check_read(const HeedAttention& a, const HeedBackward& pass) {
  for (const HeedTensor* tensor : {&pass.output, &pass.output_gradient})
    if (missing(*tensor, a, a.query_length, a.heads)) return "`output` or `output_gradient` is missing";
  return !has_rows(a) || pass.softmax ? nullptr : "`softmax` is missing";
}

const char* check_written(const HeedAttention& a, const HeedBackward& pass) {
  if (missing(pass.query_gradient, a, a.query_length, a.heads) ||
      missing(pass.key_gradient, a, a.key_length, a.kv_heads) ||
      missing(pass.value_gradient, a, a.key_length, a.kv_heads))
    return "`query_gradient`, `key_gradient` or `value_gradient` is missing";
  if (a.score == HEED_ADDITIVE && !(pass.score_vector_gradient && pass.bias_gradient))
    return "`score_vector_gradient` or `bias_gradient` is missing";
  return check_read(a, pass);
}

const char* check_bias(const HeedAttention& a, const HeedBackward& pass) {
  if (!a.bias.data) return "there is no bias";
  const bool empty = std::count(a.bias.shape, a.bias.shape + 4, 0) > 0;
  return empty || pass.bias_gradient ? check_read(a, pass) : "`bias_gradient` is missing";
}

// No exception may leave the library; all that can be thrown says that memory is short. More threads than that would
// only cost memory: they live on, and each needs scratch.
template <class Results>
const char* run(const HeedAttention* a, const Results* results,
                const char* (*check_results)(const HeedAttention&, const Results&),
                const char* (*work)(const HeedAttention&, const Results&, int), int threads) {
  try {
    const char* problem = check(*a);
    if (!problem) problem = check_results(*a, *results);
    return problem ? problem : work(*a, *results, std::min(threads, 256));
  } catch (...) {
    return "out of memory";
  }
}

}  // namespace
}  // namespace heed

int heed_version() { return HEED_VERSION; }

const char* heed_check(const HeedAttention* a) { return heed::check(*a); }

const char* heed_forward(const HeedAttention* a, const HeedForward* results, int threads) {
  return heed::run(a, results, heed::check_written,
                   a->score == HEED_ADDITIVE ? heed::additive_forward : heed::dot_forward, threads);
}

const char* heed_backward(const HeedAttention* a, const HeedBackward* pass, int threads) {
  return heed::run(a, pass, heed::check_written,
                   a->score == HEED_ADDITIVE ? heed::additive_backward : heed::dot_backward, threads);
}

const char* heed_bias_gradient(const HeedAttention* a, const HeedBackward* pass, int threads) {
  return heed::run(a, pass, heed::check_bias, heed::dot_bias_gradient, threads);
}

int heed_available_threads() { return heed::available_threads(); }
