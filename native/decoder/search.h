// From scores to tokens, and the loop over steps.
#pragma once

#include "step.h"

namespace heed {
namespace HEED_ISA {

// Added to the scores of tokens that are never decoded.
inline constexpr float kForbidden = -1e30f;

// The best token of each row so far, a candidate for each lane: scores (rows, lanes) and tokens (rows, lanes).
struct Best {
  typedef Integers<float> I;
  float* scores;
  int32_t* tokens;

  Best(int64_t rows, Arena& arena)
      : scores(arena.take<float>(rows * kLanes<float>)), tokens(arena.take<int32_t>(rows * kLanes<float>)) {}

  void clear(int rows) const {
    for (int i = 0; i < rows * kLanes<float>; ++i) scores[i] = -kInfinity<float>, tokens[i] = 0;
  }
  HEED_INLINE void offer(int row, I token, Vector<float> score) const {
    float* best = scores + row * kLanes<float>;
    int32_t* of = tokens + row * kLanes<float>;
    const I higher = score > load(best), before = load_as<I>(of);
    store(best, higher ? score : load(best));
    store(of, higher ? token : before);
  }
  // The first of those with the highest score.
  int32_t of(int row) const {
    const float* score = scores + row * kLanes<float>;
    const int32_t* token = tokens + row * kLanes<float>;
    int best = 0;
    for (int lane = 1; lane < kLanes<float>; ++lane)
      if (score[lane] > score[best] || (score[lane] == score[best] && token[lane] < token[best])) best = lane;
    return token[best];
  }
};

HEED_INLINE Integers<float> columns_from(int first) {
  Integers<float> columns;
  for (int lane = 0; lane < kLanes<float>; ++lane) columns[lane] = first + lane;
  return columns;
}

// Tokens with the highest score. Scores are looked at while their panel is at hand and never kept.
class Greedy {
 public:
  Greedy(const PackedStack& stack, const HeedDecoding& decoding, int64_t rows, Arena& arena)
      : stack_(stack), decoding_(decoding), panel_{arena.take<float>(rows * kPanel), kPanel}, best_(rows, arena) {}

  void operator()(Rows hidden, int rows, const int32_t*, int64_t, int, int32_t* tokens) const {
    best_.clear(rows);
    dense_panels(
        stack_.logits, hidden, rows, panel_, [](int) { return 0; },
        [&](int first, int columns) {
          for (int c = 0; c < columns; c += kLanes<float>) {
            const Integers<float> token = columns_from(first + c);
            const Vector<float> bias = load(stack_.logits.bias + first + c), none = broadcast(-kInfinity<float>);
            for (int r = 0; r < rows; ++r) {
              Vector<float> score = load(panel_[r] + c) + bias;
              score = token == decoding_.pad_token || token == decoding_.start_token ? score + kForbidden : score;
              best_.offer(r, token, token < stack_.vocabulary ? score : none);
            }
          }
        });
    for (int r = 0; r < rows; ++r) tokens[r] = best_.of(r);
  }

 private:
  const PackedStack& stack_;
  const HeedDecoding& decoding_;
  const Rows panel_;
  const Best best_;
};

// Tokens that are drawn.
class Sample {
 public:
  Sample(const PackedStack& stack, const HeedDecoding& decoding, int64_t rows, Arena& arena)
      : stack_(stack),
        decoding_(decoding),
        logits_(DecoderScratch::take(arena, rows, stack.vocabulary)),
        mass_(arena.take<float>(stack.vocabulary)),
        order_(arena.take<int32_t>(stack.vocabulary)) {}

  void operator()(Rows hidden, int rows, const int32_t* row, int64_t first_row, int position, int32_t* tokens) const {
    dense(stack_.logits, hidden, rows, logits_);
    for (int r = 0; r < rows; ++r) {
      logits_[r][decoding_.pad_token] += kForbidden;
      logits_[r][decoding_.start_token] += kForbidden;
      const float uniform = decoding_.uniform[(first_row + row[r]) * decoding_.length + position];
      tokens[r] = draw_token(decoding_, uniform, stack_.vocabulary, logits_[r], mass_, order_);
    }
  }

 private:
  const PackedStack& stack_;
  const HeedDecoding& decoding_;
  const Rows logits_;
  float* const mass_;
  int32_t* const order_;
};

// Decodes rows until each has ended or is full. Those that have ended are not computed any more.
template <class Search>
void decode_rows_by(const PackedStack& stack, const HeedDecoding& decoding, RowRange range, int32_t* tokens,
                    Arena& arena) {
  const int64_t length = decoding.length;
  const int rows = static_cast<int>(range.end - range.begin);
  const DecoderScratch scratch(stack, decoding, rows, arena);
  const Search choose(stack, decoding, rows, arena);
  const Step step(stack, decoding, scratch);
  for (int64_t i = range.begin * length; i < range.end * length; ++i) tokens[i] = decoding.pad_token;
  for (int r = 0; r < rows; ++r) {
    scratch.row[r] = r, scratch.token[r] = decoding.start_token;
    step.read_source(range.begin + r, r);
  }
  for (int position = 0, active = rows; position < length && active > 0; ++position) {
    choose(step(active, position), active, scratch.row, range.begin, position, scratch.token);
    int open = 0;
    for (int r = 0; r < active; ++r) {
      const int32_t row = scratch.row[r], token = scratch.token[r];
      tokens[(range.begin + row) * length + position] = token;
      if (token != decoding.end_token) scratch.row[open] = row, scratch.token[open] = token, ++open;
    }
    active = open;
  }
}

inline void decode_rows(const PackedStack& stack, const HeedDecoding& decoding, RowRange range, int32_t* tokens,
                        char* memory) {
  Arena arena(memory);
  (decoding.search == HEED_GREEDY ? decode_rows_by<Greedy> : decode_rows_by<Sample>)(stack, decoding, range, tokens,
                                                                                     arena);
}

inline size_t decoding_bytes(const PackedStack& stack, const HeedDecoding& decoding, int64_t rows) {
  Arena arena(nullptr);
  DecoderScratch(stack, decoding, rows, arena);
  if (decoding.search == HEED_GREEDY)
    Greedy(stack, decoding, rows, arena);
  else
    Sample(stack, decoding, rows, arena);
  return arena.bytes();
}

static const DecoderKernels kDecoderKernels = {packed_numbers, row_numbers, pack_dense, decoding_bytes, decode_rows};

}  // namespace HEED_ISA
}  // namespace heed
