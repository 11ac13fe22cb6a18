// Beam search (Wu et al. 2016, section 7, equation 14 without coverage), the same as that of heed.models in the graph.
//
// Each step extends the open hypotheses of a source by every token. An extension that ends and is among the best
// `beams` may become one of the `results` finished hypotheses, scored by its log probability divided by the length
// penalty; the best `beams` others stay open. A source is done when no open hypothesis can still beat the worst
// finished one: more results take more steps and find the same best hypothesis.
#pragma once

#include "search.h"

namespace heed {
namespace HEED_ISA {

// The score of a missing hypothesis.
inline constexpr float kNoScore = -1e30f;

// ((5 + n) / 6)^alpha
inline float length_penalty(const HeedDecoding& decoding, int64_t tokens) {
  return __builtin_powf((5.0f + static_cast<float>(tokens)) / 6.0f, static_cast<float>(decoding.length_penalty));
}

// The `count` best tokens of each row so far, best first, the earlier of equals first; and the online softmax of all
// logits: their maximum, and the sum of exp(logit - maximum).
struct TopTokens {
  int count;
  float *logits, *row_max, *row_sum;
  int32_t* tokens;

  TopTokens(int64_t rows, int most, Arena& arena)
      : count(most),
        logits(arena.take<float>(rows * most)),
        row_max(arena.take<float>(rows)),
        row_sum(arena.take<float>(rows)),
        tokens(arena.take<int32_t>(rows * most)) {}

  void clear(int rows) const {
    for (int i = 0; i < rows * count; ++i) logits[i] = -kInfinity<float>, tokens[i] = 0;
    for (int r = 0; r < rows; ++r) row_max[r] = -kInfinity<float>, row_sum[r] = 0;
  }

  void offer(int row, int first, const float* from, int columns) const {
    Vector<float> lane_max = broadcast(-kInfinity<float>), total{};
    for (int c = 0; c < columns; c += kLanes<float>) lane_max = larger(load(from + c), lane_max);
    float new_max = row_max[row];
    for (int lane = 0; lane < kLanes<float>; ++lane) new_max = lane_max[lane] > new_max ? lane_max[lane] : new_max;
    if (new_max > row_max[row]) {
      row_sum[row] *= exponential(broadcast(row_max[row] - new_max))[0];
      row_max[row] = new_max;
    }
    const float base = new_max > -kInfinity<float> ? new_max : 0;
    for (int c = 0; c < columns; c += kLanes<float>) total += exponential(load(from + c) - base);
    row_sum[row] += sum_of_lanes<float>(total);
    const float* worst = logits + (row + 1) * count - 1;
    for (int c = 0; c < columns; c += kLanes<float>)
      if (any(load(from + c) > *worst))
        for (int lane = 0; lane < kLanes<float>; ++lane) insert(row, first + c + lane, from[c + lane]);
  }

 private:
  void insert(int row, int32_t token, float logit) const {
    float* best = logits + row * count;
    int32_t* best_tokens = tokens + row * count;
    if (!(logit > best[count - 1])) return;
    int at = count - 1;
    for (; at > 0 && logit > best[at - 1]; --at) best[at] = best[at - 1], best_tokens[at] = best_tokens[at - 1];
    best[at] = logit, best_tokens[at] = token;
  }
};

class Beams {
 public:
  Beams(const PackedStack& stack, const HeedDecoding& decoding, int64_t sources, Arena& arena)
      : stack_(stack),
        decoding_(decoding),
        beams_(decoding.beams),
        results_(static_cast<int>(results_of(decoding))),
        candidate_count_(2 * decoding.beams),  // at most one extension of each beam ends, so enough do not
        s_(stack, decoding, sources, arena),
        sources_(stack, decoding, s_, sources, arena),
        prompts_(stack, decoding, s_, sources, arena),
        step_(stack, decoding, s_),
        panel_(take_logits(stack, sources * beams_, arena)),
        best_(sources * beams_, candidate_count_, arena),
        scores_(arena.take<float>(sources * beams_)),
        new_scores_(arena.take<float>(beams_)),
        finished_(arena.take<float>(sources * results_)),
        prompt_length_(arena.take<int32_t>(sources)),
        sequences_(arena.take<int32_t>(sources * beams_ * decoding.length)),
        grown_(arena.take<int32_t>(beams_ * decoding.length)),
        ancestors_(arena.take<uint8_t>(beams_ * decoding.length)),
        stopped_(arena.take<uint8_t>(sources * beams_)),
        new_stopped_(arena.take<uint8_t>(beams_)),
        candidates_(arena.take<Candidate>(candidate_count_)) {}

  void decode(SourceRange range, int32_t* tokens, float* scores) const {
    const int64_t length = decoding_.length, sources = range.end - range.begin;
    sources_.read(range);
    int open = prompts_.read(range, tokens);
    tokens += range.begin * results_ * length;
    // A source without a place has its prompt for a result.
    for (int64_t i = 0; i < sources * results_; ++i) finished_[i] = i % results_ == 0 ? 0 : kNoScore;
    for (int place = 0; place < open; ++place) start(s_.source[place], place, tokens);
    for (int still_open; open > 0; open = still_open) {
      for (int place = 0; beams_ > 1 && place < open; ++place)
        for (int64_t k = 0; k < beams_; ++k)
          s_.ancestors[(s_.source[place] * beams_ + k) * length + s_.position[place]] = static_cast<uint8_t>(k);
      best_.clear(open * beams_);
      visit_logits(stack_, decoding_, step_(open), open * beams_, panel_,
                   [&](int r, int first, const float* logits, int count) { best_.offer(r, first, logits, count); });
      still_open = 0;
      for (int place = 0; place < open; ++place) {
        const int32_t source = s_.source[place], position = s_.position[place];
        int32_t* to = tokens + source * results_ * length;
        if (grow(source, place, still_open, position, to)) continue;
        if (position + 1 == length || all_stopped(source)) {
          finish(source, position + 1, to);
          continue;
        }
        s_.source[still_open] = source, s_.position[still_open++] = position + 1;
      }
    }
    for (int64_t i = 0; i < sources * results_; ++i) {
      const bool found = is_real(finished_[i]);
      for (int64_t j = 0; !found && i % results_ > 0 && j < length; ++j) tokens[i * length + j] = decoding_.pad_token;
      if (scores) scores[range.begin * results_ + i] = found ? finished_[i] : -kInfinity<float>;
    }
  }

 private:
  struct Candidate {
    float score;
    int32_t beam, token;
  };

  static bool is_real(float score) { return score > kNoScore / 2; }

  // Finds the best extensions of the open hypotheses of a source, best first.
  void find_candidates(int place, int32_t source) const {
    int found = 0;
    for (int k = 0; k < beams_; ++k) {
      const int row = place * beams_ + k;
      const float log_sum = natural_log(best_.row_sum[row]);
      for (int i = 0; i < candidate_count_; ++i) {
        const int at_row = row * candidate_count_ + i;
        const float score = scores_[source * beams_ + k] + (best_.logits[at_row] - best_.row_max[row] - log_sum);
        int at = found < candidate_count_ ? found++ : candidate_count_;
        // NaN counts as the lowest score.
        for (; at > 0 && score > candidates_[at - 1].score; --at)
          if (at < candidate_count_) candidates_[at] = candidates_[at - 1];
        if (at < candidate_count_)
          candidates_[at] = {score == score ? score : -kInfinity<float>, k, best_.tokens[at_row]};
      }
    }
  }

  // All beams of a source begin with its prompt, whose keys are in the cache of the first. Only the first one counts,
  // or all beams would stay the same.
  void start(int32_t source, int place, const int32_t* tokens) const {
    const int64_t length = decoding_.length, first_row = int64_t{source} * beams_;
    prompt_length_[source] = s_.position[place];
    for (int n = 0; n < results_; ++n) finished_[source * results_ + n] = kNoScore;
    for (int64_t k = 0; k < beams_; ++k) {
      scores_[first_row + k] = k == 0 ? 0 : kNoScore, stopped_[first_row + k] = 0;
      for (int j = 0; j < s_.position[place]; ++j) {
        sequences_[(first_row + k) * length + j] = tokens[source * results_ * length + j];
        if (beams_ > 1) s_.ancestors[(first_row + k) * length + j] = 0;
      }
    }
  }

  bool all_stopped(int32_t source) const {
    for (int64_t k = 0; k < beams_; ++k)
      if (!stopped_[int64_t{source} * beams_ + k]) return false;
    return true;
  }

  // At the end, the best open hypotheses of `count` tokens take the places of missing results; the first place gets one
  // in any case.
  void finish(int32_t source, int64_t count, int32_t* tokens) const {
    const int64_t length = decoding_.length;
    const float full = length_penalty(decoding_, count - prompt_length_[source]);
    for (int n = 0, open = 0; n < results_; ++n) {
      float* finished = finished_ + source * results_ + n;
      if (is_real(*finished)) continue;
      const int64_t row = int64_t{source} * beams_ + open++;
      if (n > 0 && !is_real(scores_[row])) break;
      for (int64_t j = 0; j < length; ++j)
        tokens[n * length + j] = j < count ? sequences_[row * length + j] : decoding_.pad_token;
      *finished = is_real(scores_[row]) ? scores_[row] / full : kNoScore;
    }
  }

  // Inserts a hypothesis, `before` and the end token, among the finished ones, if it is good enough.
  void insert_finished(int32_t source, float score, const int32_t* before, int position, int32_t* tokens) const {
    const int64_t length = decoding_.length;
    float* finished = finished_ + source * results_;
    int at = results_ - 1;
    if (!(score > finished[at])) return;
    for (; at > 0 && score > finished[at - 1]; --at) {
      finished[at] = finished[at - 1];
      for (int64_t j = 0; j < length; ++j) tokens[at * length + j] = tokens[(at - 1) * length + j];
    }
    finished[at] = score, tokens += at * length;
    for (int j = 0; j < position; ++j) tokens[j] = before[j];
    tokens[position] = decoding_.end_token;
    for (int64_t j = position + 1; j < length; ++j) tokens[j] = decoding_.pad_token;
  }

  // Extends the hypotheses of a source, whose rows move from `place` to place `to`, and writes the best finished ones
  // to `tokens`. Returns whether the source is done.
  bool grow(int32_t source, int place, int to, int position, int32_t* tokens) const {
    const int64_t length = decoding_.length, first_row = int64_t{source} * beams_;
    int32_t* sequences = sequences_ + first_row * length;
    uint8_t* ancestors = s_.ancestors + first_row * length;
    find_candidates(place, source);
    int kept = 0;
    for (int i = 0; i < candidate_count_; ++i) {
      const Candidate& candidate = candidates_[i];
      const int32_t* before = sequences + candidate.beam * length;
      if (candidate.token != decoding_.end_token) {
        if (kept < beams_) {
          int32_t* grown = grown_ + kept * length;
          for (int j = 0; j < position; ++j) grown[j] = before[j];
          grown[position] = candidate.token;
          for (int j = 0; beams_ > 1 && j <= position; ++j)
            ancestors_[kept * length + j] = ancestors[candidate.beam * length + j];
          new_stopped_[kept] = stopped_[first_row + candidate.beam] || is_stop(decoding_, candidate.token);
          new_scores_[kept++] = candidate.score;
        }
        continue;
      }
      const float score = candidate.score / length_penalty(decoding_, position + 1 - prompt_length_[source]);
      if (i < beams_ && is_real(candidate.score)) insert_finished(source, score, before, position, tokens);
    }
    // A small vocabulary has too few extensions: missing hypotheses fill the beams.
    for (; kept < beams_; ++kept) {
      new_scores_[kept] = kNoScore, new_stopped_[kept] = 1;
      for (int j = 0; j <= position; ++j) grown_[kept * length + j] = max(decoding_.end_token, 0);
      for (int j = 0; beams_ > 1 && j <= position; ++j) ancestors_[kept * length + j] = static_cast<uint8_t>(kept);
    }
    for (int k = 0; k < beams_; ++k) {
      scores_[first_row + k] = new_scores_[k], stopped_[first_row + k] = new_stopped_[k];
      s_.token[to * beams_ + k] = grown_[k * length + position];
      for (int j = 0; j <= position; ++j) sequences[k * length + j] = grown_[k * length + j];
      for (int j = 0; beams_ > 1 && j <= position; ++j) ancestors[k * length + j] = ancestors_[k * length + j];
    }
    const float best = finished_[source * results_], worst = finished_[source * results_ + results_ - 1];
    if (!is_real(best)) return false;
    // One beam is greedy decoding: after an end only the second best is left open.
    const float attainable = new_scores_[0] / length_penalty(decoding_, length - prompt_length_[source]);
    return beams_ == 1 || !is_real(new_scores_[0]) || (is_real(worst) && attainable <= worst);
  }

  const PackedStack& stack_;
  const HeedDecoding& decoding_;
  const int beams_, results_, candidate_count_;
  const DecoderScratch s_;
  const Sources sources_;
  const Prompts prompts_;
  const Step step_;
  const Matrix panel_;
  const TopTokens best_;
  // Of each row of each source; of the rows of one source after a step; of each result, divided by the penalty.
  float *const scores_, *const new_scores_, *const finished_;
  int32_t *const prompt_length_, *const sequences_, *const grown_;
  uint8_t *const ancestors_, *const stopped_, *const new_stopped_;
  Candidate* const candidates_;
};

}  // namespace HEED_ISA
}  // namespace heed
