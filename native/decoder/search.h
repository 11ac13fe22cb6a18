// From scores to tokens, and the loop over steps.
#pragma once

#include "prompts.h"
#include "sources.h"

namespace heed {
namespace HEED_ISA {

// Added to the scores of tokens that are never decoded.
inline constexpr float kForbidden = -1e30f;

// first, first + 1, ...
HEED_INLINE Integers<float> columns_from(int first) {
  Integers<float> columns;
  for (int lane = 0; lane < kLanes<float>; ++lane) columns[lane] = first + lane;
  return columns;
}

// The scores of all tokens for some rows, a panel at a time: look(row, first token, their scores, how many) is called
// for each, tokens in order, the number of them a multiple of the lanes. Scores are never kept. Those of tokens that
// are never decoded are lowered, those beyond the vocabulary -inf.
template <class Look>
inline void look_at_scores(const PackedStack& stack, const HeedDecoding& decoding, Rows hidden, int rows, Rows panel,
                           const Look& look) {
  dense_panels(
      stack.logits, hidden, rows, panel, [](int) { return 0; },
      [&](int first, int columns) {
        for (int r = 0; r < rows; ++r) {
          for (int c = 0; c < columns; c += kLanes<float>) {
            const Integers<float> token = columns_from(first + c);
            Vector<float> score = load(panel[r] + c) + load(stack.logits.bias + first + c);
            score = token == decoding.pad_token || token == decoding.start_token ? score + kForbidden : score;
            store(panel[r] + c, token < stack.vocabulary ? score : broadcast(-kInfinity<float>));
          }
          look(r, first, panel[r], columns);
        }
      });
}

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

// Tokens with the highest score.
class Greedy {
 public:
  Greedy(const PackedStack& stack, const HeedDecoding& decoding, int64_t rows, Arena& arena)
      : stack_(stack), decoding_(decoding), panel_{arena.take<float>(rows * kPanel), kPanel}, best_(rows, arena) {}

  void operator()(Rows hidden, int rows, const DecoderScratch& s, int64_t, float*) const {
    best_.clear(rows);
    look_at_scores(stack_, decoding_, hidden, rows, panel_, [&](int r, int first, const float* scores, int count) {
      for (int c = 0; c < count; c += kLanes<float>) best_.offer(r, columns_from(first + c), load(scores + c));
    });
    for (int r = 0; r < rows; ++r) s.token[r] = best_.of(r);
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
        logits_(take_rows(arena, rows, stack.vocabulary)),
        mass_(arena.take<float>(stack.vocabulary)),
        order_(arena.take<int32_t>(stack.vocabulary)) {}

  // `scores`, of each source, grow by the log probability of its token; null: they are not wanted.
  void operator()(Rows hidden, int rows, const DecoderScratch& s, int64_t first_source, float* scores) const {
    dense(stack_.logits, hidden, rows, logits_);
    for (int r = 0; r < rows; ++r) {
      logits_[r][decoding_.pad_token] += kForbidden;
      logits_[r][decoding_.start_token] += kForbidden;
      const float uniform = decoding_.uniform[(first_source + s.source[r]) * decoding_.length + s.position[r]];
      s.token[r] = draw_token(decoding_, uniform, stack_.vocabulary, logits_[r], mass_, order_);
      if (scores) scores[s.source[r]] += log_probability(stack_.vocabulary, logits_[r], s.token[r]);
    }
  }

 private:
  const PackedStack& stack_;
  const HeedDecoding& decoding_;
  const Rows logits_;
  float* const mass_;
  int32_t* const order_;
};

// Decodes one row for each source until each has ended or is full. Those that have ended are not computed any more.
template <class Choose>
void decode_rows(const PackedStack& stack, const HeedDecoding& decoding, SourceRange range, int32_t* tokens,
                 float* scores, Arena& arena) {
  const int64_t length = decoding.length;
  const int rows = static_cast<int>(range.end - range.begin);
  const DecoderScratch s(stack, decoding, rows, arena);
  const Sources sources(stack, decoding, s, rows, arena);
  const Prompts prompts(stack, decoding, s, rows, arena);
  const Choose choose(stack, decoding, rows, arena);
  const Step step(stack, decoding, s);
  sources.read(range);
  if (scores) scores += range.begin;
  for (int r = 0; scores && r < rows; ++r) scores[r] = 0;
  for (int open = prompts.read(range, tokens), still_open; open > 0; open = still_open) {
    choose(step(open), open, s, range.begin, scores);
    still_open = 0;
    for (int r = 0; r < open; ++r) {
      const int32_t source = s.source[r], position = s.position[r], token = s.token[r];
      tokens[(range.begin + source) * length + position] = token;
      if (token == decoding.end_token || position + 1 == length) continue;
      s.source[still_open] = source, s.position[still_open] = position + 1, s.token[still_open++] = token;
    }
  }
}

}  // namespace HEED_ISA
}  // namespace heed
