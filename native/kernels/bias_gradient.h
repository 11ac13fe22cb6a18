// The gradient of a bias of the scores: that of the scores themselves, summed over the axes along which the bias
// broadcasts. A pass of its own, so that only who needs it pays for it, and nothing of size T x S is held but the
// result.
#pragma once

#include "backward.h"
#include "registry.h"

namespace heed {
namespace HEED_ISA {

// Adds the gradients of these queries to `target`, which has the strides of the bias.
template <class Stored, class Scores>
void bias_gradient_rows(const Attention& a, const Backward& pass, const uint8_t* finite, const BiasRows& owned,
                        typename Compute<Stored>::Type* target, char* memory) {
  typedef typename Compute<Stored>::Type Real;
  constexpr int kCount = Lanes<Real>::kCount;
  const auto s = BackwardScratch<Real>::in(memory, a);
  QueryPanel<Real>& p = s.panels[0];
  const int64_t length = least(kQueries, a.queries), blocks = (a.keys + kKeys - 1) / kKeys;
  const int width = static_cast<int>(a.width), value_width = static_cast<int>(a.value_width);
  const int64_t* stride = a.bias.stride;
  for (int64_t b = owned.batch; b < owned.batch_end; ++b)
    for (int64_t n = owned.head; n < owned.head_end; ++n)
      for (int64_t panel = owned.panel; panel < owned.panel_end; ++panel) {
        const int64_t begin = panel * length, group = n / (a.heads / a.groups);
        prepare_panel<Stored>(a, pass, b, n, {begin, static_cast<int>(least(length, a.queries - begin))}, p);
        const int columns = round_up(p.queries.length, kCount);
        Scores scores(a, b, group, memory + BackwardScratch<Real>::bytes(a));
        for (int64_t block = p.lo / kKeys; block * kKeys < p.hi; ++block) {
          const Span keys = block_keys(block, p.lo, p.hi);
          const Sight sight = look<Real>(a, b, n, p.queries, keys, columns, s.hidden);
          if (sight == Sight::kNone) continue;
          const bool guarded = a.rules > 0 && !finite[(b * a.groups + group) * blocks + block];
          const auto key = key_block<Stored, Real>(a.key, b, group, keys, width, guarded, s.key_copy);
          const auto value = key_block<Stored, Real>(a.value, b, group, keys, value_width, guarded, s.value_copy);
          block_gradients(a, s, scores, p, b, keys, key, value, guarded, sight);
          for (int x = 0; x < p.queries.length; ++x) {
            Real* to = target + b * stride[0] + n * stride[1] + (begin + x) * stride[2] + keys.begin * stride[3];
            for (int y = 0; y < keys.length; ++y)
              if (!p.broken[x])
                to[y * stride[3]] += s.weight_gradients[y * kQueries + x];
              else if (visible(a, b, n, begin + x, keys.begin + y))
                to[y * stride[3]] = static_cast<Real>(__builtin_nan(""));
          }
        }
      }
}

}  // namespace HEED_ISA
}  // namespace heed
