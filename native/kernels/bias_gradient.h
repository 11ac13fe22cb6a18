// Passes of their own over the gradients of the scores, so that other gradients do not pay for them.
//
// The gradient of a bias is that of the scores, summed over the axes along which the bias broadcasts; only the result
// may have T x S numbers. The gradients of captured arrays are computed here if the backward pass cannot, see
// `Kernels`.
#pragma once

#include "backward.h"

namespace heed {
namespace HEED_ISA {

// Calls visit(scratch, tile, block, mask) for each block of some tiles, after `block_gradients`.
template <class Stored, class Products, class Visit>
inline void visit_blocks(const HeedAttention& a, const HeedBackward& pass, const uint8_t* finite,
                         const TileRange& range, char* memory, const Visit& visit) {
  typedef typename Compute<Stored>::Type Real;
  Arena arena(memory);
  BackwardScratch<Products> s(a, arena);
  QueryTile<Real>& p = s.tiles[0];
  for (int64_t b = range.batch; b < range.batch_end; ++b)
    for (int64_t n = range.head; n < range.head_end; ++n)
      for (int64_t tile = range.tile; tile < range.tile_end; ++tile) {
        const int64_t kv_head = n / (a.heads / a.kv_heads);
        prepare_tile<Stored>(a, pass, b, n, tile, p);
        Products products(a, b, kv_head, s.products);
        products.load_tile(0, p);
        for (int64_t at = p.lo / kKeyBlock; at * kKeyBlock < p.hi; ++at) {
          const Span keys = block_keys(a, at, p.lo, p.hi, Products::kKeyUnit);
          const Block block{b, n, p.queries, keys, s.program};
          const BlockMask mask = classify_block(a, block, s.hidden);
          if (mask == BlockMask::kEmpty) {
            at = last_empty_block(a, block, at, p.hi);
            continue;
          }
          const bool has_nonfinite = block_has_nonfinite(a, finite, b, kv_head, at);
          const KeyBlock<Real> of_keys = load_keys<Stored>(a, s, products, b, kv_head, keys, has_nonfinite);
          const Strips<Real> strips(block, Products::kStrips ? mask : BlockMask::kFull, s.hidden,
                                    round_up(p.queries.length, kLanes<Real>));
          block_gradients(a, s, products, 0, block, of_keys, mask, strips);
          visit(s, p, block, mask);
        }
      }
}

// Adds the gradients of some tiles to pass.bias_gradient.
template <class Stored, class Products>
void bias_gradient(const HeedAttention& a, const HeedBackward& pass, const uint8_t* finite, const TileRange& range,
                   const int64_t* stride, char* memory) {
  typedef typename Compute<Stored>::Type Real;
  const auto add = [&](const auto& s, const QueryTile<Real>& p, const Block& block, BlockMask mask) {
    for (int x = 0; x < p.queries.length; ++x) {
      Real* to = static_cast<Real*>(pass.bias_gradient) + block.b * stride[0] + block.n * stride[1] +
                 (p.queries.begin + x) * stride[2] + block.keys.begin * stride[3];
      for (int y = 0; y < block.keys.length; ++y)
        if (!p.nonfinite[x])
          to[y * stride[3]] += s.weight_gradients[y * kQueryTile + x];
        else if (sees(mask, s.hidden, y, x))
          to[y * stride[3]] = kNaN<Real>;
    }
  };
  visit_blocks<Stored, Products>(a, pass, finite, range, memory, add);
}

// Adds the gradients of some tiles to those of captured arrays.
template <class Stored, class Products>
void capture_gradients(const HeedAttention& a, const HeedBackward& pass, const uint8_t* finite, const TileRange& range,
                       const CaptureSum* capture_sums, char* memory) {
  typedef typename Compute<Stored>::Type Real;
  const auto add = [&](const auto& s, const QueryTile<Real>& p, const Block& block, BlockMask mask) {
    derive_block(a, s, p, block, mask, capture_sums);
  };
  visit_blocks<Stored, Products>(a, pass, finite, range, memory, add);
}

}  // namespace HEED_ISA
}  // namespace heed
