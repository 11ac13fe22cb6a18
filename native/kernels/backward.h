// Backward pass: the queries of the heads of a key head, tile by tile, against the keys that they see.
//
// Scores are computed once more, and weights from the row statistics of the forward pass. Gradients of keys and values
// are summed in scratch of the compute type that one task owns, so the order of threads changes no result. Several
// tiles read the keys together: keys, values and the sums of their gradients do not fit the caches, and are read less
// often.
#pragma once

#include "decode.h"
#include "forward.h"
#include "program_backward.h"

namespace heed {
namespace HEED_ISA {

// A query tile, prepared. A weight is exp(score - row_max) / row_sum. Every use multiplies it by the output gradient of
// its row or `delta`, so these are divided by row_sum instead. Rows without keys, and rows that hold or see non-finite
// numbers, add nothing: their `row_max` is infinite and their weights 0. The gradients that the latter (`nonfinite`)
// reach are set to NaN.
template <class Real>
struct QueryTile {
  Real *query, *query_rows, *output_gradient, *output_gradient_rows, *query_gradient;
  Real row_max[kQueryTile], delta[kQueryTile];
  bool nonfinite[kQueryTile], any_nonfinite;
  bool any_idle;      // whether any row adds nothing
  int64_t n, lo, hi;  // head, and the keys that may be seen
  Span queries;
  Dropout dropout;
};

// The stride of rows of `width` features, in sums and copies.
template <class Real>
int gradient_row(int64_t width) {
  return round_up(width, kLanes<Real>);
}

template <class Products>
struct BackwardScratch {
  typedef typename Products::Real Real;
  QueryTile<Real> tiles[kTilesTogether];
  Real *weights, *weight_gradients, *slope, *kept, *factors, *key_copy, *value_copy;
  uint64_t* hidden;  // a word for each key
  char *products, *program;

  BackwardScratch(const HeedAttention& a, Arena& arena) {
    const int h = gradient_row<Real>(a.head_dim), v = gradient_row<Real>(a.value_dim);
    for (QueryTile<Real>& tile : tiles) {
      tile.query = arena.take<Real>(kQueryTile * h);
      tile.query_rows = arena.take<Real>(kQueryTile * h);
      tile.query_gradient = arena.take<Real>(kQueryTile * h);
      tile.output_gradient = arena.take<Real>(kQueryTile * v);
      tile.output_gradient_rows = arena.take<Real>(kQueryTile * v);
    }
    weights = arena.take<Real>(kQueryTile * kKeyBlock);
    weight_gradients = arena.take<Real>(kQueryTile * kKeyBlock);
    slope = arena.take<Real>(kQueryTile * kKeyBlock);
    factors = arena.take<Real>(kQueryTile * kKeyBlock);
    kept = arena.take<Real>(a.program ? plan_of(a)->kept_count * kQueryTile * kKeyBlock : 0);
    hidden = arena.take<uint64_t>(kKeyBlock);
    key_copy = arena.take<Real>(kKeyBlock * h);
    value_copy = arena.take<Real>(kKeyBlock * v);
    products = arena.take<char>(static_cast<int64_t>(Products::bytes(a)));
    program = arena.take<char>(static_cast<int64_t>(program_bytes<Real>(a)));
  }
};

template <class Stored, class Real = typename Compute<Stored>::Type>
void prepare_tile(const HeedAttention& a, const HeedBackward& pass, int64_t b, int64_t n, int64_t tile,
                  QueryTile<Real>& p) {
  typedef Vector<Real> V;
  const Real scale = static_cast<Real>(a.scoring.scale);
  const int head_dim = static_cast<int>(a.head_dim), value_dim = static_cast<int>(a.value_dim);
  const int key_row = round_up(head_dim, kLanes<Real>), value_row = round_up(value_dim, kLanes<Real>);
  const Span queries = query_tile(a, tile);
  p.n = n;
  p.queries = queries;
  p.any_nonfinite = p.any_idle = false;
  key_range(a, b, queries, &p.lo, &p.hi);
  load_transposed<Stored, Real>(a.query, b, n, queries, head_dim, scale, p.query);
  load_rows<Stored, Real>(a.query, b, n, queries, head_dim, scale, p.query_rows, key_row);
  load_rows<Stored, Real>(pass.output_gradient, b, n, queries, value_dim, Real(1), p.output_gradient_rows, value_row);
  for (int c = 0; c < key_row * kQueryTile; ++c) p.query_gradient[c] = 0;
  if (a.dropout > 0) p.dropout.begin(a, b, n, queries);

  const int64_t first = (b * a.heads + n) * a.query_length + queries.begin;
  const Real* row_max = static_cast<const Real*>(pass.softmax) + first;
  const Real* row_sum = row_max + a.batch * a.heads * a.query_length;
  Real inverse_sum[kQueryTile] = {};  // 1 / row_sum, 0 for rows that add nothing
  for (int x = 0; x < kQueryTile; ++x) {
    p.row_max[x] = kInfinity<Real>, p.delta[x] = 0, p.nonfinite[x] = false;
    if (x >= queries.length) continue;
    const int64_t i = queries.begin + x;
    const Real from_lse = pass.lse_gradient ? static_cast<const Real*>(pass.lse_gradient)[first + x] : Real(0);
    const bool seen = row_sum[x] != 0;
    if (seen && a.rule_count > 0)
      p.nonfinite[x] = row_sum[x] != row_sum[x] || !is_finite(from_lse) ||
                       !row_is_finite<Stored>(a.query, b, i, n, a.head_dim) ||
                       !row_is_finite<Stored>(pass.output_gradient, b, i, n, a.value_dim);
    if (!seen || p.nonfinite[x]) {
      p.any_nonfinite |= p.nonfinite[x];
      p.any_idle = true;
      for (int c = 0; c < head_dim; ++c) p.query_rows[x * key_row + c] = 0;
      continue;
    }
    const Real total =
        row_dot(row<Stored>(pass.output, b, i, n), row<Stored>(pass.output_gradient, b, i, n), value_dim);
    p.row_max[x] = row_max[x];
    inverse_sum[x] = 1 / row_sum[x];
    p.delta[x] = (total - from_lse) * inverse_sum[x];
  }
  for (int x = 0; x < queries.length; ++x) {
    Real* rows = p.output_gradient_rows + x * value_row;
    for (int c = 0; c < value_row; c += kLanes<Real>)
      store(rows + c, inverse_sum[x] == 0 ? V{} : load(rows + c) * inverse_sum[x]);
  }
  const HeedTensor scaled{p.output_gradient_rows, 0, value_row, 0};
  load_transposed<Real>(scaled, 0, 0, {0, queries.length}, value_dim, Real(1), p.output_gradient);
}

// Turns scores into weights (times row_sum), and gradients of the weights into those of the scores before the soft cap.
// `unit` as in `VectorProducts`.
template <class Real>
inline void score_gradients(const QueryTile<Real>& p, int rows, int columns, Real unit, Real* scores, Real* gradients) {
  const Real log2e = unit * kLog2E<Real>;
  for (int y = 0; y < rows; ++y)
    for (int x = 0; x < columns; x += kLanes<Real>) {
      Real *score = scores + y * kQueryTile + x, *gradient = gradients + y * kQueryTile + x;
      const Vector<Real> weight = exp2((load(score) - load(p.row_max + x)) * log2e);
      store(gradient, weight * (load(gradient) - load(p.delta + x)));
      store(score, weight);
    }
}

template <class Real>
inline void multiply(Real* numbers, const Real* factors, int rows, int columns) {
  for (int y = 0; y < rows; ++y)
    for (int x = 0; x < columns; x += kLanes<Real>) {
      Real* at = numbers + y * kQueryTile + x;
      store(at, load(at) * load(factors + y * kQueryTile + x));
    }
}

// Keys and values of a block, in the compute type if the products need them.
template <class Real>
struct KeyBlock {
  Span keys;
  Strided<Real> key, value;
  bool has_nonfinite;
};

// The five products of the backward pass in vectors. Scores have the same bits as in the forward pass: where they are
// large, other roundings would give weights whose sum is far from 1.
template <class Stored>
class VectorGradients {
 public:
  typedef typename Compute<Stored>::Type Real;
  static constexpr int kKeyUnit = 1;     // keys come in whole units of these, masked ones included
  static constexpr bool kCopies = true;  // whether `KeyBlock` needs keys and values
  static constexpr bool kStrips = true;  // whether products skip what a mask hides, see `VisiblePairs`

  static size_t bytes(const HeedAttention& a) {
    return few_queries(a) ? sizeof(Real) * static_cast<size_t>(kKeyBlock * a.query_length) : 0;
  }
  VectorGradients(const HeedAttention& a, int64_t, int64_t, char* memory)
      : a_(a), rows_(reinterpret_cast<Real*>(memory)) {}

  Real unit() const { return 1; }

  // Called before the first use of a tile (the `at`-th of those together), and of a block of keys.
  void load_tile(int, const QueryTile<Real>&) {}
  void load_keys(const KeyBlock<Real>&) {}

  // Keys down, queries across.
  void scores(int, const QueryTile<Real>& p, const KeyBlock<Real>& block, const Strips<Real>& strips, Real* scores) {
    const Span keys = block.keys;
    const Strided<Real> key = block.key;
    const int width = static_cast<int>(a_.head_dim), columns = strips.columns();
    if (!few_queries(a_)) return product_in_strips(strips, key, keys.length, p.query, scores, width);
    dots(key.data, key.row, keys.length, width, p.query_rows, p.queries.length, rows_);
    for (int y = 0; y < keys.length; ++y)
      for (int x = 0; x < columns; ++x)
        scores[y * kQueryTile + x] = x < p.queries.length ? rows_[x * kKeyBlock + y] : Real(0);
  }
  // values . output_gradient
  void weight_gradients(int, const QueryTile<Real>& p, const KeyBlock<Real>& block, const Strips<Real>& strips,
                        Real* gradients) {
    product_in_strips(strips, block.value, block.keys.length, p.output_gradient, gradients,
                      static_cast<int>(a_.value_dim));
  }
  // Adds to all gradients; key_gradient and value_gradient begin at the first key of the block.
  void add(int, const QueryTile<Real>& p, const KeyBlock<Real>& block, const VisiblePairs<Real>& pairs, Real* weights,
           Real* score_gradients, Real* key_gradient, Real* value_gradient) {
    add_product_of_strips(pairs.strips, swap_axes(block.key), static_cast<int>(a_.head_dim), score_gradients,
                          p.query_gradient);
    add_product_of_bands(pairs.bands, weights, p.output_gradient_rows, value_gradient,
                         gradient_row<Real>(a_.value_dim));
    add_product_of_bands(pairs.bands, score_gradients, p.query_rows, key_gradient, gradient_row<Real>(a_.head_dim));
  }

 private:
  const HeedAttention& a_;
  Real* rows_;
};

// One tile against one block of keys: writes the weights after dropout to `s.weights`, and the gradients of the scores
// before the soft cap to `s.weight_gradients`.
template <class Real, class Products>
inline void block_gradients(const HeedAttention& a, const BackwardScratch<Products>& s, Products& products, int tile,
                            const Block& block, const KeyBlock<Real>& of_keys, BlockMask mask,
                            const Strips<Real>& strips) {
  const QueryTile<Real>& p = s.tiles[tile];
  const Span keys = block.keys;
  const int columns = strips.columns();
  products.scores(tile, p, of_keys, strips, s.weights);
  for (int x = 0; p.any_idle && x < p.queries.length; ++x)
    for (int y = 0; p.row_max[x] == kInfinity<Real> && y < keys.length; ++y) s.weights[y * kQueryTile + x] = 0;
  const Real unit =
      apply_score_mods<Real>(a, block, columns, mask, s.hidden, products.unit(), s.weights, s.slope, s.kept);
  for (int x = 0; p.any_idle && a.program && x < p.queries.length; ++x)  // 1 / 0, say
    for (int y = 0; p.row_max[x] == kInfinity<Real> && y < keys.length; ++y) s.weights[y * kQueryTile + x] = 0;
  products.weight_gradients(tile, p, of_keys, strips, s.weight_gradients);
  if (a.dropout > 0) {
    for (int y = 0; y < keys.length; ++y) p.dropout.factors(keys.begin + y, columns, s.factors + y * kQueryTile);
    multiply(s.weight_gradients, s.factors, keys.length, columns);
  }
  score_gradients(p, keys.length, columns, unit, s.weights, s.weight_gradients);
  if (a.dropout > 0) multiply(s.weights, s.factors, keys.length, columns);
}

// Turns the gradients of the scores into those before the program, after `block_gradients`; `capture_sums` as in
// `Kernels`.
template <class Real, class Products>
inline void derive_block(const HeedAttention& a, const BackwardScratch<Products>& s, const QueryTile<Real>& p,
                         const Block& block, BlockMask mask, const CaptureSum* capture_sums) {
  const Plan* plan = plan_of(a);
  if (!plan || !plan->modifies) return;
  for (int x = 0; p.any_nonfinite && x < p.queries.length; ++x)
    for (int y = 0; p.nonfinite[x] && y < block.keys.length; ++y)
      if (sees(mask, s.hidden, y, x)) s.weight_gradients[y * kQueryTile + x] = kNaN<Real>;
  derive_scores<Real>(*plan, block, s.kept, capture_sums, s.weight_gradients);
}

// The same, and adds to the gradients of queries, keys and values. Returns the last block of keys that is done with it:
// this one, or empty ones after it.
template <class Real, class Products>
int64_t tile_against_keys(const HeedAttention& a, const BackwardScratch<Products>& s, Products& products, int tile,
                          int64_t b, const KeyBlock<Real>& of_keys, Real* key_gradient, Real* value_gradient,
                          const CaptureSum* capture_sums) {
  const QueryTile<Real>& p = s.tiles[tile];
  const Span keys = of_keys.keys;
  const int head_dim = static_cast<int>(a.head_dim), value_dim = static_cast<int>(a.value_dim);
  const int key_row = gradient_row<Real>(head_dim), value_row = gradient_row<Real>(value_dim);
  const int columns = round_up(p.queries.length, kLanes<Real>), rows = p.queries.length;
  const Block block{b, p.n, p.queries, keys, s.program};
  const BlockMask mask = classify_block(a, block, s.hidden);
  const int64_t at = keys.begin / kKeyBlock;
  if (mask == BlockMask::kEmpty) return last_empty_block(a, block, at, p.hi);
  const VisiblePairs<Real> pairs(block, Products::kStrips ? mask : BlockMask::kFull, s.hidden, columns);
  block_gradients(a, s, products, tile, block, of_keys, mask, pairs.strips);
  derive_block(a, s, p, block, mask, capture_sums);
  if (!is_plain(a.scoring)) multiply(s.weight_gradients, s.slope, keys.length, columns);
  products.add(tile, p, of_keys, pairs, s.weights, s.weight_gradients, key_gradient + keys.begin * key_row,
               value_gradient + keys.begin * value_row);
  for (int x = 0; p.any_nonfinite && x < rows; ++x)
    for (int y = 0; p.nonfinite[x] && y < keys.length; ++y)
      if (sees(mask, s.hidden, y, x)) {
        for (int c = 0; c < head_dim; ++c) key_gradient[(keys.begin + y) * key_row + c] = kNaN<Real>;
        for (int c = 0; c < value_dim; ++c) value_gradient[(keys.begin + y) * value_row + c] = kNaN<Real>;
      }
  return at;
}

template <class Stored, class Products, class Real = typename Products::Real>
inline KeyBlock<Real> load_keys(const HeedAttention& a, const BackwardScratch<Products>& s, Products& products,
                                int64_t b, int64_t kv_head, Span keys, bool has_nonfinite) {
  KeyBlock<Real> block{keys, {}, {}, has_nonfinite};
  if constexpr (Products::kCopies) {
    const int head_dim = static_cast<int>(a.head_dim), value_dim = static_cast<int>(a.value_dim);
    block.key = key_block<Stored, Real>(a.key, b, kv_head, keys, head_dim, has_nonfinite, s.key_copy);
    block.value = key_block<Stored, Real>(a.value, b, kv_head, keys, value_dim, has_nonfinite, s.value_copy);
  }
  products.load_keys(block);
  return block;
}

// See `Kernels`: the partial gradients are S rows of gradient_row(H) and gradient_row(V) numbers.
template <class Stored, class Products>
void backward(const HeedAttention& a, const HeedBackward& pass, const uint8_t* finite, int64_t b, int64_t kv_head,
              int64_t part, int64_t parts, void* key_gradient, void* value_gradient, const CaptureSum* capture_sums,
              char* memory) {
  typedef typename Compute<Stored>::Type Real;
  Arena arena(memory);
  BackwardScratch<Products> s(a, arena);
  Products products(a, b, kv_head, s.products);
  const int64_t queries_per_kv = a.heads / a.kv_heads, tiles = query_tiles(a);
  const int head_dim = static_cast<int>(a.head_dim), value_dim = static_cast<int>(a.value_dim);
  const auto head_of = [=](int64_t piece) { return kv_head * queries_per_kv + piece / tiles; };
  for (int64_t piece = part; piece < queries_per_kv * tiles; piece += parts * kTilesTogether) {
    int together = 0;
    int64_t lo = a.key_length, hi = 0, done[kTilesTogether];
    for (int64_t at = piece; at < queries_per_kv * tiles && together < kTilesTogether; at += parts, ++together) {
      if (const int64_t next = at + parts; next < queries_per_kv * tiles) {
        const Span queries = query_tile(a, next % tiles);
        fetch_ahead<Stored, false>(a.query, b, head_of(next), queries, head_dim);
        fetch_ahead<Stored, false>(pass.output_gradient, b, head_of(next), queries, value_dim);
        fetch_ahead<Stored, false>(pass.output, b, head_of(next), queries, value_dim);
      }
      QueryTile<Real>& p = s.tiles[together];
      prepare_tile<Stored>(a, pass, b, head_of(at), at % tiles, p);
      products.load_tile(together, p);
      done[together] = -1;
      if (p.lo < p.hi) lo = min(lo, p.lo), hi = max(hi, p.hi);
    }
    for (int64_t at = lo / kKeyBlock; at * kKeyBlock < hi; ++at) {
      const auto is_due = [&](int i) {
        return at > done[i] && block_keys(at, s.tiles[i].lo, s.tiles[i].hi).length > 0;
      };
      bool due = false;
      for (int i = 0; i < together; ++i) due |= is_due(i);
      if (!due) continue;
      const Span whole = block_keys(at, 0, a.key_length);
      const bool has_nonfinite = block_has_nonfinite(a, finite, b, kv_head, at);
      const KeyBlock<Real> block = load_keys<Stored>(a, s, products, b, kv_head, whole, has_nonfinite);
      for (int i = 0; i < together; ++i) {
        const QueryTile<Real>& p = s.tiles[i];
        if (!is_due(i)) continue;
        const Span keys = block_keys(a, at, p.lo, p.hi, Products::kKeyUnit);
        const ptrdiff_t skipped = keys.begin - whole.begin;
        const KeyBlock<Real> of_keys{keys,
                                     {block.key.data + skipped * block.key.row, block.key.row, 1},
                                     {block.value.data + skipped * block.value.row, block.value.row, 1},
                                     has_nonfinite};
        done[i] = tile_against_keys<Real>(a, s, products, i, b, of_keys, static_cast<Real*>(key_gradient),
                                          static_cast<Real*>(value_gradient), capture_sums);
      }
    }
    for (int i = 0; i < together; ++i) {
      const QueryTile<Real>& p = s.tiles[i];
      if (i + 1 < together)
        fetch_ahead<Stored, true>(pass.query_gradient, b, s.tiles[i + 1].n, s.tiles[i + 1].queries, head_dim);
      Real factors[kQueryTile] = {};
      for (int x = 0; x < p.queries.length; ++x)
        factors[x] = p.nonfinite[x] ? kNaN<Real> : static_cast<Real>(a.scoring.scale);
      store_transposed<Stored>(p.query_gradient, factors, pass.query_gradient, b, p.n, p.queries, head_dim);
    }
  }
}

// See `Kernels`.
template <class Stored>
void write_rows(const HeedTensor& to, int64_t b, int64_t kv_head, int64_t begin, int64_t end, int64_t width,
                int row_length, const char* sums, int64_t parts, int64_t distance) {
  typedef typename Compute<Stored>::Type Real;
  for (int64_t j = begin; j < end; ++j) {
    Stored* out = row<Stored>(to, b, j, kv_head);
    for (int64_t c = 0; c < width; c += kLanes<Real>) {
      Vector<Real> total{};
      for (int64_t part = 0; part < parts; ++part)
        total += load(reinterpret_cast<const Real*>(sums + part * distance) + j * row_length + c);
      store_some(out + c, static_cast<int>(width - c), total);
    }
  }
}

// See `Kernels`.
template <class Real>
void sum_parts(void* to, int64_t count, const char* sums, int64_t parts, int64_t distance) {
  write_rows<Real>({to, 0, 0, 0}, 0, 0, 0, 1, count, 0, sums, parts, distance);
}

}  // namespace HEED_ISA
}  // namespace heed
