// Greedy and sampled decoding: from logits to tokens, and the loop over steps.
#pragma once

#include "prompts.h"
#include "sources.h"

namespace heed {
namespace HEED_ISA {

// Added to the logits of tokens that are never decoded.
inline constexpr float kForbidden = -1e30f;

inline bool is_stop(const HeedDecoding& decoding, int32_t token) {
  for (int64_t i = 0; i < decoding.stop_count; ++i)
    if (decoding.stop_tokens[i] == token) return true;
  return false;
}

// first, first + 1, ...
HEED_INLINE Integers<float> count_from(int first) {
  Integers<float> numbers;
  for (int lane = 0; lane < kLanes<float>; ++lane) numbers[lane] = first + lane;
  return numbers;
}

HEED_INLINE Vector<float> capped(const PackedStack& stack, Vector<float> logit) {
  const float cap = stack.logit_soft_cap;
  return cap > 0 ? cap * tanh<float>(logit / cap) : logit;
}

// Memory for the logits of some rows: the panels that are multiplied together or, of a team, which shares the panels,
// all.
inline Matrix take_logits(const PackedStack& stack, int64_t rows, Arena& arena) {
  const int64_t columns = stack.team ? row_numbers(stack.vocabulary) : columns_together(stack.logits);
  return {arena.take<float>(rows * columns), columns};
}

// Calls visit(row, first token, logits, count) for the logits of some rows, a panel of the vocabulary at a time, tokens
// in order; `count` is a multiple of the lanes. Logits of tokens that are never decoded are lowered, those beyond the
// vocabulary are -inf.
template <class Visit>
inline void visit_logits(const PackedStack& stack, const HeedDecoding& decoding, Matrix hidden, int rows, Matrix memory,
                         const Visit& visit) {
  const int together = columns_together(stack.logits);
  const auto column = [&](int first) { return stack.team ? first : first % together; };
  const auto visit_panels = [&](int begin, int end) {
    for (int first = begin; first < end; first += kPanel)
      for (int r = 0; r < rows; ++r) visit(r, first, memory[r] + column(first), panel_columns(stack.vocabulary, first));
  };
  apply_dense_panels(stack.team, stack.logits, hidden, rows, memory, column, [&](int first, int columns) {
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; c += kLanes<float>) {
        float* at = memory[r] + column(first) + c;
        const Integers<float> token = count_from(first + c);
        Vector<float> logit = capped(stack, load(at) + load(stack.logits.bias + first + c));
        logit = token == decoding.pad_token || token == decoding.start_token ? logit + kForbidden : logit;
        store(at, token < stack.vocabulary ? logit : broadcast(-kInfinity<float>));
      }
    if (!stack.team) visit_panels(first, first + columns);
  });
  if (stack.team) visit_panels(0, stack.vocabulary);
}

// The best token of each row so far, one candidate a lane: logits (rows, lanes) and tokens (rows, lanes).
struct BestToken {
  typedef Integers<float> I;
  float* logits;
  int32_t* tokens;

  BestToken(int64_t rows, Arena& arena)
      : logits(arena.take<float>(rows * kLanes<float>)), tokens(arena.take<int32_t>(rows * kLanes<float>)) {}

  void clear(int rows) const {
    for (int i = 0; i < rows * kLanes<float>; ++i) logits[i] = -kInfinity<float>, tokens[i] = 0;
  }
  HEED_INLINE void offer(int row, I token, Vector<float> logit) const {
    float* best = logits + row * kLanes<float>;
    int32_t* best_tokens = tokens + row * kLanes<float>;
    const I higher = logit > load(best), before = load_as<I>(best_tokens);
    store(best, higher ? logit : load(best));
    store(best_tokens, higher ? token : before);
  }
  // The first token with the largest logit.
  int32_t token(int row) const {
    const float* logit = logits + row * kLanes<float>;
    const int32_t* candidates = tokens + row * kLanes<float>;
    int best = 0;
    for (int lane = 1; lane < kLanes<float>; ++lane)
      if (logit[lane] > logit[best] || (logit[lane] == logit[best] && candidates[lane] < candidates[best])) best = lane;
    return candidates[best];
  }
};

// Chooses the tokens with the largest logits.
class Greedy {
 public:
  Greedy(const PackedStack& stack, const HeedDecoding& decoding, int64_t rows, Arena& arena)
      : stack_(stack), decoding_(decoding), panel_(take_logits(stack, rows, arena)), best_(rows, arena) {}

  void operator()(Matrix hidden, int rows, const DecoderScratch& s, int64_t, float*) const {
    best_.clear(rows);
    visit_logits(stack_, decoding_, hidden, rows, panel_, [&](int r, int first, const float* logits, int count) {
      for (int c = 0; c < count; c += kLanes<float>) best_.offer(r, count_from(first + c), load(logits + c));
    });
    for (int r = 0; r < rows; ++r) s.token[r] = best_.token(r);
  }

 private:
  const PackedStack& stack_;
  const HeedDecoding& decoding_;
  const Matrix panel_;
  const BestToken best_;
};

// Draws tokens.
class Sample {
 public:
  Sample(const PackedStack& stack, const HeedDecoding& decoding, int64_t rows, Arena& arena)
      : stack_(stack),
        decoding_(decoding),
        logits_(take_matrix(arena, rows, stack.vocabulary)),
        mass_(arena.take<float>(stack.vocabulary)),
        order_(arena.take<int32_t>(stack.vocabulary)) {}

  // Adds the log probability of each token to the score of its source, unless `scores` is null.
  void operator()(Matrix hidden, int rows, const DecoderScratch& s, int64_t first_source, float* scores) const {
    apply_dense(stack_.team, stack_.logits, hidden, rows, logits_, [&](Vector<float> v) { return capped(stack_, v); });
    for (int r = 0; r < rows; ++r) {
      if (decoding_.pad_token >= 0) logits_[r][decoding_.pad_token] += kForbidden;
      if (decoding_.start_token >= 0) logits_[r][decoding_.start_token] += kForbidden;
      const float uniform = decoding_.uniform[(first_source + s.source[r]) * decoding_.length + s.position[r]];
      s.token[r] = draw_token(decoding_, uniform, stack_.vocabulary, logits_[r], mass_, order_);
      if (scores) scores[s.source[r]] += log_probability(stack_.vocabulary, logits_[r], s.token[r]);
    }
  }

 private:
  const PackedStack& stack_;
  const HeedDecoding& decoding_;
  const Matrix logits_;
  float* const mass_;
  int32_t* const order_;
};

// Decodes one row for each source until it ends or is full. Rows that ended are not computed any more.
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
      if (decoding.on_token && !decoding.on_token(decoding.listener, range.begin + source, token)) continue;
      if (token == decoding.end_token || is_stop(decoding, token) || position + 1 == length) continue;
      s.source[still_open] = source, s.position[still_open] = position + 1, s.token[still_open++] = token;
    }
  }
}

}  // namespace HEED_ISA
}  // namespace heed
