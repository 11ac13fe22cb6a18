// What targets begin with: read by many rows at once, not token by token.
#pragma once

#include "step.h"

namespace heed {
namespace HEED_ISA {

// Prompts go through the layers in tiles, which are cut by the positions of a target alone: what is computed for a row
// depends neither on other targets nor on threads.
class Prompts {
 public:
  Prompts(const PackedStack& stack, const HeedDecoding& decoding, const DecoderScratch& scratch, int64_t sources,
          Arena& arena)
      : stack_(stack),
        decoding_(decoding),
        s_(scratch),
        room_(decoding.prompt ? least(kRows, sources * decoding.length) : 0),
        layers_(stack, room_, arena),
        attention_scratch_(stack, least(kTile, room_),
                           most(row_numbers(decoding.length), row_numbers(decoding.source_length)), arena),
        attention_(stack, attention_scratch_),
        tiles_(arena.take<Tile>(room_)),
        token_(arena.take<int32_t>(room_)),
        position_(arena.take<int32_t>(room_)) {}

  // Of the sources [begin, end) of the batch: writes what each target begins with, then padding, into the first row of
  // `tokens` that it has, and reads all but the last of it, which is where decoding goes on. Those that do go on get a
  // place; returns how many these are.
  int read(SourceRange range, int32_t* tokens) const {
    const int64_t length = decoding_.length, results = results_of(decoding_);
    int open = 0, tiles = 0, rows = 0;
    for (int64_t b = range.begin; b < range.end; ++b) {
      int32_t* to = tokens + b * results * length;
      const int count = copy(b, to);
      if (count == length || (count > 0 && to[count - 1] == decoding_.end_token)) continue;
      const int32_t source = static_cast<int32_t>(b - range.begin);
      s_.source[open] = source, s_.position[open] = count;
      for (int k = 0; k < s_.beams; ++k)
        s_.token[open * s_.beams + k] = count > 0 ? to[count - 1] : decoding_.start_token;
      ++open;
      for (int at = 0; at < count; at += kTile) {
        const int some = static_cast<int>(least(kTile, count - at));
        if (rows + some > room_) read_tiles(tiles, rows), tiles = rows = 0;
        tiles_[tiles++] = {source, rows, some};
        for (int position = at; position < at + some; ++position, ++rows)
          token_[rows] = position > 0 ? to[position - 1] : decoding_.start_token, position_[rows] = position;
      }
    }
    if (rows > 0) read_tiles(tiles, rows);
    return open;
  }

 private:
  static constexpr int64_t kRows = 256, kTile = 64;  // rows that go through the layers, and of one target, at once

  // So many rows of one target, from this one on.
  struct Tile {
    int32_t source, row, count;
  };

  // The prompt of a target up to its end, then padding. Returns how many tokens the prompt has.
  int copy(int64_t b, int32_t* to) const {
    const int32_t* from = decoding_.prompt + b * decoding_.length;
    int count = 0;
    for (bool going = decoding_.prompt; going && count < decoding_.length && from[count] != decoding_.pad_token;
         ++count)
      to[count] = from[count], going = to[count] != decoding_.end_token;
    for (int64_t j = count; j < decoding_.length; ++j) to[j] = decoding_.pad_token;
    return count;
  }

  // Through the layers, for the keys and values that they leave in the caches; of beams, in those of the first.
  void read_tiles(int tiles, int rows) const {
    for (int r = 0; r < rows; ++r)
      layers_.embed(r, token_[r], table_row(decoding_.positions, position_[r], stack_.width));
    layers_.decode(
        rows,
        [&](int i) {
          for (int t = 0; t < tiles; ++t) attend_self(i, tiles_[t]);
        },
        [&](int i) {
          for (int t = 0; t < tiles; ++t) attend_source(i, tiles_[t]);
        });
  }

  void attend_self(int layer, const Tile& tile) const {
    const PackedAttention& how = stack_.layers[layer].self;
    const Cache cache = s_.self.at(int64_t{tile.source} * s_.beams, layer);
    const int end = tile.row + tile.count;
    for (int r = tile.row; r < end; ++r) {
      layers_.place(how, r, table_row(decoding_.rotation, position_[r], stack_.head_dim));
      const float* projected = layers_.wide[r];
      write(stack_, cache, position_[r], projected + layers_.keys_at(), projected + layers_.values_at());
    }
    const RelativeBias bias{decoding_.relative_bias, decoding_.length, decoding_.length - 1};
    const Seen seen{position_[end - 1] + 1, {0, position_ + tile.row, nullptr}, bias, true};
    attention_.shared(how, layers_.wide.from(tile.row), tile.count, cache, seen, layers_.attended.from(tile.row));
  }

  void attend_source(int layer, const Tile& tile) const {
    const Seen seen{s_.source_length[tile.source], {0, nullptr, nullptr}, {}, false};
    attention_.shared(stack_.layers[layer].cross, layers_.wide.from(tile.row), tile.count,
                      s_.cross.at(tile.source, layer), seen, layers_.attended.from(tile.row));
  }

  const PackedStack& stack_;
  const HeedDecoding& decoding_;
  const DecoderScratch& s_;
  const int64_t room_;  // rows
  const Layers layers_;
  const AttentionScratch attention_scratch_;
  const Attention attention_;
  Tile* const tiles_;
  int32_t *const token_, *const position_;  // of each row
};

}  // namespace HEED_ISA
}  // namespace heed
