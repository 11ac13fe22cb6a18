// Draws a token from logits.
#include <algorithm>
#include <cmath>

#include "decoder/registry.h"
#include "refusal.h"

namespace heed {

void check_sampling(const HeedDecoding& d) {
  require(d.uniform || d.batch == 0, "`uniform` is missing");
  require(d.temperature > 0 && std::isfinite(d.temperature), "`temperature` must be a positive number");
  require(d.top_p >= 0 && d.top_p <= 1, "`top_p` must be in [0, 1]");
  require(d.min_p >= 0 && d.min_p <= 1, "`min_p` must be in [0, 1]");
}

int32_t draw_token(const HeedDecoding& decoding, float uniform, int vocabulary, const float* logits, float* mass,
                   int32_t* order) {
  const float temperature = static_cast<float>(decoding.temperature), share = static_cast<float>(decoding.top_p);
  const bool cut = decoding.top_k > 0 || decoding.top_p > 0;
  const int count = static_cast<int>(decoding.top_k > 0 ? std::min<int64_t>(decoding.top_k, vocabulary) : vocabulary);
  for (int i = 0; i < vocabulary; ++i) order[i] = i;
  // NaN counts as -inf: the order must be total.
  const auto likelier = [&](int32_t a, int32_t b) {
    const float x = std::isnan(logits[a]) ? -INFINITY : logits[a], y = std::isnan(logits[b]) ? -INFINITY : logits[b];
    return x > y || (x == y && a < b);
  };
  if (cut) std::partial_sort(order, order + count, order + vocabulary, likelier);
  float max_logit = -INFINITY, total = 0;
  for (int i = 0; i < count; ++i) max_logit = std::max(max_logit, logits[order[i]] / temperature);
  for (int i = 0; i < count; ++i) total += mass[i] = std::exp(logits[order[i]] / temperature - max_logit);
  if (decoding.top_p_of_all && count < vocabulary) {
    total = 0;
    for (int i = 0; i < vocabulary; ++i) total += std::exp(logits[i] / temperature - max_logit);
  }
  const float least = static_cast<float>(std::log(decoding.min_p));
  float before = 0, kept = 0;
  for (int i = 0; i < count; ++i) {
    const float own = mass[i] / total;
    const bool likely = decoding.min_p <= 0 || logits[order[i]] / temperature - max_logit >= least;
    if (likely && (!cut || share <= 0 || i == 0 || before < share)) kept += own;
    before += own;
    mass[i] = kept;  // now the cumulative distribution
  }
  // In (0, kept]: the first token to reach it has a mass above 0, whatever the rounding.
  const float threshold = (1 - uniform) * kept;
  const int choice = static_cast<int>(std::lower_bound(mass, mass + count, threshold) - mass);
  return order[std::min(choice, count - 1)];
}

float log_probability(int vocabulary, const float* logits, int32_t token) {
  const float max_logit = *std::max_element(logits, logits + vocabulary);
  float total = 0;
  for (int i = 0; i < vocabulary; ++i) total += std::exp(logits[i] - max_logit);
  return logits[token] - max_logit - std::log(total);
}

}  // namespace heed
