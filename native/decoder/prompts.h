// The prompts of targets: many tokens are read together, not one by one.
#pragma once

#include "step.h"
#include "token_rows.h"

namespace heed {
namespace HEED_ISA {

// Prompts go through the layers in tiles. Tiles depend only on the positions of a target, so results depend neither on
// other targets nor on threads.
class Prompts {
  // All rows of a tile are stored before any attends: where another tile follows, they must fill blocks of the cache.
  static_assert(TokenRows::kTile % kCacheBlock == 0, "a block of keys must not have queries of two tiles");

 public:
  Prompts(const PackedStack& stack, const HeedDecoding& decoding, const DecoderScratch& scratch, int64_t sources,
          Arena& arena)
      : stack_(stack),
        decoding_(decoding),
        s_(scratch),
        capacity_(decoding.prompt ? min(TokenRows::kRows, sources * decoding.length) : 0),
        rows_(stack, capacity_, max(decoding.length, decoding.source_length), arena),
        tiles_(arena.take<Tile>(capacity_)) {}

  // For each source of a range: writes its prompt, then padding, to its first row of `tokens`, and reads all of it but
  // the last token, where decoding continues. Sources that continue get a place. Returns the number of places.
  int read(SourceRange range, int32_t* tokens) const {
    const int64_t length = decoding_.length, results = results_of(decoding_);
    int open = 0, tiles = 0, rows = 0;
    for (int64_t b = range.begin; b < range.end; ++b) {
      int32_t* to = tokens + b * results * length;
      const int count = copy(b, to);
      if (count == length || (count > 0 && to[count - 1] == decoding_.end_token)) continue;
      const int32_t source = static_cast<int32_t>(b - range.begin);
      s_.source[open] = source, s_.position[open] = count;
      for (int k = 0; k < s_.beams; ++k) s_.token[open * s_.beams + k] = count > 0 ? to[count - 1] : first_token(b);
      ++open;
      for (int at = 0; at < count; at += TokenRows::kTile) {
        const int some = static_cast<int>(min(TokenRows::kTile, count - at));
        if (rows + some > capacity_) read_tiles(tiles, rows), tiles = rows = 0;
        tiles_[tiles++] = {source, rows, some};
        for (int position = at; position < at + some; ++position, ++rows)
          rows_.token[rows] = position > 0 ? to[position - 1] : first_token(b), rows_.position[rows] = position;
      }
    }
    if (rows > 0) read_tiles(tiles, rows);
    return open;
  }

 private:
  // Rows [row, row + count), of one target.
  struct Tile {
    int32_t source, row, count;
  };

  int32_t first_token(int64_t b) const {
    return decoding_.first_tokens ? decoding_.first_tokens[b] : decoding_.start_token;
  }

  // Writes the prompt of a target up to its end, then padding. Returns the number of its tokens.
  int copy(int64_t b, int32_t* to) const {
    const int32_t* from = decoding_.prompt + b * decoding_.length;
    int count = 0;
    for (bool going = decoding_.prompt; going && count < decoding_.length && from[count] != decoding_.pad_token;
         ++count)
      to[count] = from[count], going = to[count] != decoding_.end_token;
    for (int64_t j = count; j < decoding_.length; ++j) to[j] = decoding_.pad_token;
    return count;
  }

  // Fills the caches; with beams, those of the first one.
  void read_tiles(int tiles, int rows) const {
    count_rows(decoding_, rows);
    rows_.embed(rows, decoding_.positions);
    rows_.layers.decode(
        rows, [&](int i) { attend_self(i, tiles); },
        [&](int i) {
          rows_.layers.attend(stack_.layers[i].cross, tiles,
                              [&](int t) { return s_.of_source(i, tiles_[t].source, tiles_[t].row, tiles_[t].count); });
        });
  }

  void attend_self(int layer, int tiles) const {
    const PackedAttention& how = stack_.layers[layer].self;
    for (int t = 0; t < tiles; ++t)
      for (int r = tiles_[t].row; r < tiles_[t].row + tiles_[t].count; ++r) {
        const int position = rows_.position[r];
        const float* angles = angles_at(stack_, how, decoding_.rotation, decoding_.length, position);
        rows_.layers.cache_row(how, r, angles, cache_of(layer, tiles_[t]), position);
      }
    rows_.layers.attend(how, tiles, [&](int t) {
      const Tile& tile = tiles_[t];
      const int32_t* position = rows_.position + tile.row;
      const VisibleKeys visible{position[tile.count - 1] + 1, {0, position}, target_bias(decoding_), true};
      return SharedCache{tile.row, tile.count, cache_of(layer, tile), visible};
    });
  }

  Cache cache_of(int layer, const Tile& tile) const { return s_.self.at(int64_t{tile.source} * s_.beams, layer); }

  const PackedStack& stack_;
  const HeedDecoding& decoding_;
  const DecoderScratch& s_;
  const int64_t capacity_;  // rows
  const TokenRows rows_;
  Tile* const tiles_;
};

}  // namespace HEED_ISA
}  // namespace heed
