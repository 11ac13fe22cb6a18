// The gradient of a bias of the scores: that of the scores themselves, summed over the axes along which the bias
// broadcasts. A pass of its own, so that only who needs it pays for it, and nothing of size T x S is held but the
// result.
#pragma once

#include "backward.h"

namespace heed {
namespace HEED_ISA {

// Adds the gradients of these queries to pass.bias_gradient.
template <class Stored, class Products>
void bias_gradient(const HeedAttention& a, const HeedBackward& pass, const uint8_t* finite, const TileRange& range,
                   const int64_t* stride, char* memory) {
  typedef typename Compute<Stored>::Type Real;
  Arena arena(memory);
  BackwardScratch<Products> s(a, arena);
  QueryTile<Real>& p = s.tiles[0];
  const int head_dim = static_cast<int>(a.head_dim), value_dim = static_cast<int>(a.value_dim);
  for (int64_t b = range.batch; b < range.batch_end; ++b)
    for (int64_t n = range.head; n < range.head_end; ++n)
      for (int64_t tile = range.tile; tile < range.tile_end; ++tile) {
        const int64_t kv_head = n / (a.heads / a.kv_heads);
        prepare_tile<Stored>(a, pass, b, n, tile, p);
        Products products(a, b, kv_head, s.products);
        products.load_tile(0, p);
        for (int64_t at = p.lo / kKeyBlock; at * kKeyBlock < p.hi; ++at) {
          const Span keys = Products::kWhole ? block_keys(at, 0, a.key_length) : block_keys(at, p.lo, p.hi);
          const Block block{b, n, p.queries, keys};
          const BlockMask mask = classify_block(a, block, s.hidden);
          if (mask == BlockMask::kEmpty) continue;
          const bool has_nonfinite = block_has_nonfinite(a, finite, b, kv_head, at);
          const auto key = key_block<Stored, Real>(a.key, b, kv_head, keys, head_dim, has_nonfinite, s.key_copy);
          const auto value = key_block<Stored, Real>(a.value, b, kv_head, keys, value_dim, has_nonfinite, s.value_copy);
          block_gradients(a, s, products, 0, block, KeyBlock<Real>{keys, key, value, has_nonfinite}, mask);
          for (int x = 0; x < p.queries.length; ++x) {
            Real* to = static_cast<Real*>(pass.bias_gradient) + b * stride[0] + n * stride[1] +
                       (p.queries.begin + x) * stride[2] + keys.begin * stride[3];
            for (int y = 0; y < keys.length; ++y)
              if (!p.nonfinite[x])
                to[y * stride[3]] += s.weight_gradients[y * kQueryTile + x];
              else if (sees(mask, s.hidden, y, x))
                to[y * stride[3]] = kNaN<Real>;
          }
        }
      }
}

}  // namespace HEED_ISA
}  // namespace heed
