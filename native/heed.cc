// The attention functions of heed.h: check a call once, then do the work.
#include "include/heed.h"

#include <algorithm>
#include <cinttypes>

#include "attention.h"
#include "kernels/registry.h"
#include "program.h"
#include "refusal.h"

namespace heed {
namespace {

// A tensor with rows needs memory.
void require_rows(const HeedTensor& tensor, const HeedAttention& a, int64_t length, int64_t heads, const char* name) {
  require(tensor.data || a.batch == 0 || length == 0 || heads == 0, "`%s` is missing", name);
}

void check_integers(const HeedAttention& a, const HeedIntegers& x, const RuleNeeds::Integers& need) {
  const int64_t length = need.per == Per::kQuery ? a.query_length : need.per == Per::kKey ? a.key_length : 1;
  require(x.data || !need.required || a.batch == 0 || length == 0, "`%s` of the mask is missing", need.name);
  require(!x.data || ((x.rows == 1 || x.rows == a.batch) && x.length == length),
          "`%s` of the mask must have shape (%s). Received: shape (%" PRId64 ", %" PRId64 ")", need.name,
          need.per == Per::kQuery ? "B, T"
          : need.per == Per::kKey ? "B, S"
                                  : "B,",
          x.rows, x.length);
}

void check_scores(const HeedAttention& a, const HeedScores& x, const char* name) {
  const int64_t full[4] = {a.batch, a.heads, a.query_length, a.key_length}, *shape = x.shape;
  for (int axis = 0; axis < 4; ++axis)
    require(shape[axis] == full[axis] || (shape[axis] == 1 && x.stride[axis] == 0),
            "`%s` must broadcast to (B, N, T, S). Received: shape (%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 ")",
            name, shape[0], shape[1], shape[2], shape[3]);
}

constexpr RuleNeeds::Integers kAlign = {"align", Per::kBatch, false};

void check_rule(const HeedAttention& a, const HeedMaskRule& rule) {
  const RuleNeeds* needs = kernels_for(a).rule_needs(rule.kind);
  require(needs && rule.kind >= 0, "unknown kind of mask rule. Received: %d", static_cast<int>(rule.kind));
  require(rule.left >= needs->least_left && rule.right >= needs->least_right, "%s. Received: %" PRId64 ", %" PRId64,
          needs->reach, rule.left, rule.right);
  check_integers(a, rule.align, kAlign);
  if (needs->first.per != Per::kNothing) check_integers(a, rule.first, needs->first);
  if (needs->second.per != Per::kNothing) check_integers(a, rule.second, needs->second);
  require(rule.dense.data || !needs->dense, "the array of a dense mask is missing");
  if (needs->dense) check_scores(a, rule.dense, "mask");
}

void check_additive(const HeedAttention& a) {
  require(a.heads == 1 && a.kv_heads == 1, "additive attention has one head");
  require(!a.bias.data && !a.alibi_slopes, "additive attention has no bias of scores or slopes");
  require(a.score_vector, "the score vector is missing");
}

void check_dot_product(const HeedAttention& a) {
  if (a.bias.data) check_scores(a, a.bias, "bias");
  check_integers(a, a.alibi_align, kAlign);
}

void check(const HeedAttention& a) {
  require(a.dtype >= HEED_FLOAT32 && a.dtype <= HEED_FLOAT16, "dtype must be float32, float64, bfloat16 or float16");
  for (int64_t n : {a.batch, a.heads, a.kv_heads, a.query_length, a.key_length, a.head_dim, a.value_dim})
    require(n >= 0 && n <= int64_t{1} << 31, "sizes must be in [0, 2^31]");
  require(a.kv_heads == 0 ? a.heads == 0 : a.heads % a.kv_heads == 0, "N must be a multiple of K");
  for (int64_t n : {a.head_dim, a.value_dim})
    require(n >= 1 && n <= 65536, "features (H or U, and V) must be in [1, 65536]");
  const double pairs = static_cast<double>(a.batch) * static_cast<double>(a.heads) *
                       static_cast<double>(std::max(a.query_length, a.key_length)) *
                       static_cast<double>(std::max(a.head_dim, a.value_dim));
  require(pairs <= 4e18, "B * N * length * features must fit 63 bits");
  require_rows(a.query, a, a.query_length, a.heads, "query");
  require_rows(a.key, a, a.key_length, a.kv_heads, "key");
  require_rows(a.value, a, a.key_length, a.kv_heads, "value");
  require(a.score == HEED_DOT_PRODUCT || a.score == HEED_ADDITIVE, "score must be dot-product or additive");
  if (const char* problem = kernels_for(a).problem_of_scoring(a)) refuse("%s", problem);
  (a.score == HEED_ADDITIVE ? check_additive : check_dot_product)(a);
  require(a.dropout >= 0 && a.dropout < 1, "dropout must be in [0, 1)");
  require(a.rule_count >= 0 && a.rule_count <= HEED_MAX_RULES, "a mask may have at most %d mask rules", HEED_MAX_RULES);
  require(a.rules || a.rule_count == 0, "the mask rules are missing");
  for (int r = 0; r < a.rule_count; ++r) check_rule(a, a.rules[r]);
  if (a.program) check_program(a);
}

bool has_rows(const HeedAttention& a) { return a.batch > 0 && a.heads > 0 && a.query_length > 0; }

void check_written(const HeedAttention& a, const HeedForward& results) {
  require_rows(results.output, a, a.query_length, a.heads, "output");
  require(!has_rows(a) || (results.lse && results.softmax), "`lse` or `softmax` is missing");
}

void check_read(const HeedAttention& a, const HeedBackward& pass) {
  require_rows(pass.output, a, a.query_length, a.heads, "output");
  require_rows(pass.output_gradient, a, a.query_length, a.heads, "output_gradient");
  require(!has_rows(a) || pass.softmax, "`softmax` is missing");
}

void check_written(const HeedAttention& a, const HeedBackward& pass) {
  check_read(a, pass);
  require_rows(pass.query_gradient, a, a.query_length, a.heads, "query_gradient");
  require_rows(pass.key_gradient, a, a.key_length, a.kv_heads, "key_gradient");
  require_rows(pass.value_gradient, a, a.key_length, a.kv_heads, "value_gradient");
  require(a.score != HEED_ADDITIVE || (pass.score_vector_gradient && pass.bias_gradient),
          "`score_vector_gradient` or `bias_gradient` is missing");
}

void check_bias(const HeedAttention& a, const HeedBackward& pass) {
  require(a.bias.data, "there is no bias");
  check_read(a, pass);
  const bool empty = std::count(a.bias.shape, a.bias.shape + 4, 0) > 0;
  require(empty || pass.bias_gradient, "`bias_gradient` is missing");
}

constexpr char kNoMemory[] = "out of memory for the scratch space of attention";

template <class Results>
const char* run(const HeedAttention& a, const Results& results,
                void (*check_results)(const HeedAttention&, const Results&),
                void (*work)(const HeedAttention&, const Results&, int), int threads) {
  return catch_refusal(kNoMemory, [&] {
    check(a);
    check_results(a, results);
    if (a.program)
      work(Planned(a).attention(), results, cap_threads(threads));
    else
      work(a, results, cap_threads(threads));
  });
}

}  // namespace
}  // namespace heed

int heed_version() { return HEED_VERSION; }

int64_t heed_softmax_size(const HeedAttention* a) {
  const int64_t scores = heed::keeps_scores(*a) ? a->batch * heed::score_columns(*a) * heed::score_rows(*a) : 0;
  return a->batch * a->heads * a->query_length * 2 + scores;
}

const char* heed_check(const HeedAttention* a) {
  return heed::catch_refusal(heed::kNoMemory, [&] { heed::check(*a); });
}

const char* heed_forward(const HeedAttention* a, const HeedForward* results, int threads) {
  const auto forward = a->score == HEED_ADDITIVE ? heed::additive_forward : heed::dot_forward;
  return heed::run(*a, *results, heed::check_written, forward, threads);
}

const char* heed_backward(const HeedAttention* a, const HeedBackward* pass, int threads) {
  const auto backward = a->score == HEED_ADDITIVE ? heed::additive_backward : heed::dot_backward;
  return heed::run(*a, *pass, heed::check_written, backward, threads);
}

const char* heed_bias_gradient(const HeedAttention* a, const HeedBackward* pass, int threads) {
  return heed::run(*a, *pass, heed::check_bias, heed::dot_bias_gradient, threads);
}
