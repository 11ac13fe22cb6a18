// What is done once for each source: it is encoded, if a stack for that is there, and each layer of the decoder
// projects it to the keys and values that all tokens of its targets attend to. Tokens that the mask hides are not
// computed.
#pragma once

#include "step.h"

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
        room_(stack.encoded_width ? most(decoding.source_length, least(kRows, sources * decoding.source_length)) : 0),
        layers_(encoder_, stack.encoder ? room_ : 0, arena),
        attention_scratch_(encoder_, least(kTile, room_), row_numbers(decoding.source_length), arena),
        attention_(encoder_, attention_scratch_),
        cache_(encoder_, stack.encoder ? 1 : 0, decoding.source_length, arena, 1),
        given_(take_rows(arena, stack.encoder ? 0 : room_, stack.encoded_width)),
        projected_(take_rows(arena, room_, stack.kv_heads * (stack.head_dim + stack.value_dim))),
        token_(arena.take<int32_t>(room_)),
        position_(arena.take<int32_t>(room_)) {}

  // Of the batch, [begin, end).
  void read(SourceRange range) const {
    const int sources = static_cast<int>(range.end - range.begin);
    if (stack_.encoded_width == 0) return;
    for (int first = 0, end = 0; first < sources; first = end) {
      int rows = 0;
      for (; end < sources && (end == first || rows + shown(range.begin + end) <= room_); ++end) {
        s_.source_length[end] = gather(range.begin + end, rows);
        rows += s_.source_length[end];
      }
      remember(first, end, rows, stack_.encoder ? encode(first, end, rows) : given_);
    }
  }

 private:
  static constexpr int64_t kRows = 256,
                           kTile = 64;  // rows that go through the layers, and queries of one source, at once

  bool is_shown(int64_t b, int64_t j) const {
    return !decoding_.source_mask || decoding_.source_mask[b * decoding_.source_length + j];
  }
  int shown(int64_t b) const {
    int count = 0;
    for (int64_t j = 0; j < decoding_.source_length; ++j) count += is_shown(b, j);
    return count;
  }

  // Puts what is shown of a source into the rows from `row` on. Returns how many these are.
  int gather(int64_t b, int row) const {
    int count = 0;
    for (int64_t j = 0; j < decoding_.source_length; ++j) {
      if (!is_shown(b, j)) continue;
      const int64_t from = b * decoding_.source_length + j;
      if (stack_.encoder)
        token_[row + count] = decoding_.source[from], position_[row + count] = static_cast<int32_t>(j);
      else
        for (int c = 0; c < stack_.encoded_width; ++c)
          given_[row + count][c] = decoding_.encoded[from * stack_.encoded_width + c];
      ++count;
    }
    return count;
  }

  Rows encode(int first, int end, int rows) const {
    for (int r = 0; r < rows; ++r)
      layers_.embed(r, token_[r], table_row(decoding_.source_positions, position_[r], encoder_.width));
    for (int i = 0; i < encoder_.layer_count; ++i) {
      const PackedLayer& layer = encoder_.layers[i];
      layers_.attention(layer, layer.self_norm, layer.self, rows, [&] {
        for (int source = first, row = 0; source < end; row += s_.source_length[source++])
          attend(layer.self, row, s_.source_length[source]);
      });
      layers_.feed_forward(layer, rows);
    }
    return layers_.result(rows);
  }

  // The tokens of one source, rows [row, row + count), to each other.
  void attend(const PackedAttention& how, int row, int count) const {
    const Cache cache = cache_.at(0, 0);
    for (int j = 0; j < count; ++j) {
      layers_.place(how, row + j, table_row(decoding_.source_rotation, position_[row + j], encoder_.head_dim));
      const float* projected = layers_.wide[row + j];
      write(encoder_, cache, j, projected + layers_.keys_at(), projected + layers_.values_at());
    }
    const RelativeBias bias{decoding_.source_relative_bias, 2 * decoding_.source_length, decoding_.source_length};
    for (int at = 0; at < count; at += kTile) {
      const Seen seen{count, {0, position_ + row + at, position_ + row}, bias, false};
      attention_.shared(how, layers_.wide.from(row + at), static_cast<int>(least(kTile, count - at)), cache, seen,
                        layers_.attended.from(row + at));
    }
  }

  // Keys and values of the sources [first, end), whose rows are `encoded`, for each layer of the decoder.
  void remember(int first, int end, int rows, Rows encoded) const {
    const int keys = stack_.kv_heads * stack_.head_dim;
    for (int i = 0; i < stack_.layer_count; ++i) {
      const PackedAttention& how = stack_.layers[i].cross;
      if (how.output.outputs == 0) continue;
      dense(how.encoded, encoded, rows, projected_);
      for (int source = first, row = 0; source < end; ++source) {
        const Cache cache = s_.cross.at(source, i);
        for (int j = 0; j < s_.source_length[source]; ++j, ++row) {
          normalise_heads(how.key_norm, projected_[row], stack_.kv_heads, stack_.head_dim);
          write(stack_, cache, j, projected_[row], projected_[row] + keys);
        }
      }
    }
  }

  const PackedStack &stack_, &encoder_;  // the stack itself where there is no encoder
  const HeedDecoding& decoding_;
  const DecoderScratch& s_;
  const int64_t room_;  // rows
  const Layers layers_;
  const AttentionScratch attention_scratch_;
  const Attention attention_;
  const Caches cache_;  // of one source and one layer
  const Rows given_, projected_;
  int32_t *const token_, *const position_;
};

}  // namespace HEED_ISA
}  // namespace heed
