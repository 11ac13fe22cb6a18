// Sources, once each: the encoder, if there is one, and the keys and values of every decoder layer's cross-attention.
// Masked tokens are not computed.
#pragma once

#include "step.h"
#include "token_rows.h"

namespace heed {
namespace HEED_ISA {

class Sources {
 public:
  Sources(const PackedStack& stack, const HeedDecoding& decoding, const DecoderScratch& scratch, int64_t sources,
          Arena& arena)
      : stack_(stack),
        encoder_(stack.encoder ? *stack.encoder : stack),
        decoding_(decoding),
        s_(scratch),
        capacity_(stack.encoded_width
                      ? max(decoding.source_length, min(TokenRows::kRows, sources * decoding.source_length))
                      : 0),
        rows_(encoder_, stack.encoder ? capacity_ : 0, decoding.source_length, arena),
        cache_(encoder_, stack.encoder ? 1 : 0, decoding.source_length, arena, 1, HEED_CACHE_FLOAT32),
        encoded_(take_matrix(arena, stack.encoder ? 0 : capacity_, stack.encoded_width)),
        projected_(take_matrix(arena, capacity_, stack.kv_heads * (stack.head_dim + stack.value_dim))) {}

  // Encodes and projects the sources of a range of the batch.
  void read(SourceRange range) const {
    const int sources = static_cast<int>(range.end - range.begin);
    if (stack_.encoded_width == 0) return;
    for (int first = 0, end = 0; first < sources; first = end) {
      int rows = 0;
      for (; end < sources && (end == first || rows + count_visible(range.begin + end) <= capacity_); ++end) {
        s_.source_length[end] = gather(range.begin + end, rows);
        rows += s_.source_length[end];
      }
      project(first, end, rows, stack_.encoder ? encode(first, end, rows) : encoded_);
    }
  }

 private:
  bool is_visible(int64_t b, int64_t j) const {
    return !decoding_.source_mask || decoding_.source_mask[b * decoding_.source_length + j];
  }
  int count_visible(int64_t b) const {
    int count = 0;
    for (int64_t j = 0; j < decoding_.source_length; ++j) count += is_visible(b, j);
    return count;
  }

  // Copies the visible tokens of a source to the rows from `row` on. Returns their number.
  int gather(int64_t b, int row) const {
    int count = 0;
    for (int64_t j = 0; j < decoding_.source_length; ++j) {
      if (!is_visible(b, j)) continue;
      const int64_t from = b * decoding_.source_length + j;
      if (stack_.encoder)
        rows_.token[row + count] = decoding_.source[from], rows_.position[row + count] = static_cast<int32_t>(j);
      else
        for (int c = 0; c < stack_.encoded_width; ++c)
          encoded_[row + count][c] = decoding_.encoded[from * stack_.encoded_width + c];
      ++count;
    }
    return count;
  }

  Matrix encode(int first, int end, int rows) const {
    const Layers& layers = rows_.layers;
    rows_.embed(rows, decoding_.source_positions);
    for (int i = 0; i < encoder_.layer_count; ++i) {
      const PackedLayer& layer = encoder_.layers[i];
      layers.apply_attention(layer, layer.self_norm, layer.self, rows, [&] {
        for (int source = first, row = 0; source < end; row += s_.source_length[source++])
          attend(layer.self, row, s_.source_length[source]);
      });
      layers.apply_feed_forward(layer, rows);
    }
    return layers.result(rows);
  }

  // The tokens of one source, rows [row, row + count), attend to each other.
  void attend(const PackedAttention& how, int row, int count) const {
    const Cache cache = cache_.at(0, 0);
    const int32_t* position = rows_.position + row;
    for (int j = 0; j < count; ++j)
      rows_.layers.cache_row(how, row + j, angles_at(encoder_, how, decoding_.source_rotation, 0, position[j]), cache,
                             j);
    const RelativeBias bias{decoding_.source_relative_bias, 2 * decoding_.source_length, decoding_.source_length};
    constexpr int kTile = TokenRows::kTile;
    rows_.layers.attend(how, (count + kTile - 1) / kTile, [&](int tile) {
      const int at = tile * kTile, some = static_cast<int>(min(kTile, count - at));
      return SharedCache{row + at, some, cache, {count, {0, position + at, position}, bias}};
    });
  }

  // Writes the keys and values of sources [first, end), whose rows are `encoded`, for each layer of the decoder.
  void project(int first, int end, int rows, Matrix encoded) const {
    const int keys = stack_.kv_heads * stack_.head_dim;
    for (int i = 0; i < stack_.layer_count; ++i) {
      const PackedAttention& how = stack_.layers[i].cross;
      if (how.output.outputs == 0) continue;
      apply_dense(stack_.team, how.encoded, encoded, rows, projected_);
      for (int source = first, row = 0; source < end; ++source) {
        const Cache cache = s_.cross.at(source, i);
        for (int j = 0; j < s_.source_length[source]; ++j, ++row) {
          normalise_heads(how.key_norm, projected_[row], stack_.kv_heads, stack_.head_dim);
          write_cache(stack_, cache, j, projected_[row], projected_[row] + keys);
        }
      }
    }
  }

  const PackedStack &stack_, &encoder_;  // without an encoder both are the stack
  const HeedDecoding& decoding_;
  const DecoderScratch& s_;
  const int64_t capacity_;  // rows
  const TokenRows rows_;
  const Caches cache_;  // of one source and one layer
  const Matrix encoded_, projected_;
};

}  // namespace HEED_ISA
}  // namespace heed
