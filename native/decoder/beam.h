// Beam search (Wu et al. 2016, section 7, equation 14 without coverage), as heed.models has it in the graph.
//
// In each step the open hypotheses of a source grow by every token. An extension that ends, and is among the best
// `beams`, may become one of the `results` that are finished, its log probability divided by the penalty of its length;
// the best `beams` others stay open. A source is done when no open hypothesis can still get a higher score than the
// worst of these: a search for more goes on longer, and finds the same best one.
#pragma once

#include "search.h"

namespace heed {
namespace HEED_ISA {

// What no real hypothesis has.
inline constexpr float kNoScore = -1e30f;

// ((5 + n) / 6)^alpha
inline float length_penalty(const HeedDecoding& decoding, int64_t tokens) {
  return __builtin_powf((5.0f + static_cast<float>(tokens)) / 6.0f, static_cast<float>(decoding.length_penalty));
}

// The `count` best tokens of each row so far, best first, the earlier of equals first; and what their log probabilities
// are relative to: the highest score and the sum of exp(score - that one).
struct BestOfRow {
  int count;
  float *scores, *row_max, *row_sum;
  int32_t* tokens;

  BestOfRow(int64_t rows, int most, Arena& arena)
      : count(most),
        scores(arena.take<float>(rows * most)),
        row_max(arena.take<float>(rows)),
        row_sum(arena.take<float>(rows)),
        tokens(arena.take<int32_t>(rows * most)) {}

  void clear(int rows) const {
    for (int i = 0; i < rows * count; ++i) scores[i] = -kInfinity<float>, tokens[i] = 0;
    for (int r = 0; r < rows; ++r) row_max[r] = -kInfinity<float>, row_sum[r] = 0;
  }

  void offer(int row, int first, const float* from, int columns) const {
    Vector<float> highest = broadcast(-kInfinity<float>), total{};
    for (int c = 0; c < columns; c += kLanes<float>) highest = larger(load(from + c), highest);
    float most_of = row_max[row];
    for (int lane = 0; lane < kLanes<float>; ++lane) most_of = highest[lane] > most_of ? highest[lane] : most_of;
    if (most_of > row_max[row]) {
      row_sum[row] *= exponential(broadcast(row_max[row] - most_of))[0];
      row_max[row] = most_of;
    }
    const float base = most_of > -kInfinity<float> ? most_of : 0;
    for (int c = 0; c < columns; c += kLanes<float>) total += exponential(load(from + c) - base);
    row_sum[row] += sum_of_lanes<float>(total);
    const float* worst = scores + (row + 1) * count - 1;
    for (int c = 0; c < columns; c += kLanes<float>)
      if (any(load(from + c) > *worst))
        for (int lane = 0; lane < kLanes<float>; ++lane) insert(row, first + c + lane, from[c + lane]);
  }

 private:
  void insert(int row, int32_t token, float score) const {
    float* best = scores + row * count;
    int32_t* of = tokens + row * count;
    if (!(score > best[count - 1])) return;
    int at = count - 1;
    for (; at > 0 && score > best[at - 1]; --at) best[at] = best[at - 1], of[at] = of[at - 1];
    best[at] = score, of[at] = token;
  }
};

class Beams {
 public:
  Beams(const PackedStack& stack, const HeedDecoding& decoding, int64_t sources, Arena& arena)
      : stack_(stack),
        decoding_(decoding),
        beams_(decoding.beams),
        results_(static_cast<int>(results_of(decoding))),
        most_(2 * decoding.beams),  // at most one extension of each ends: among these there are enough that do not
        s_(stack, decoding, sources, arena),
        sources_(stack, decoding, s_, sources, arena),
        prompts_(stack, decoding, s_, sources, arena),
        step_(stack, decoding, s_),
        panel_{arena.take<float>(sources * beams_ * kPanel), kPanel},
        best_(sources * beams_, most_, arena),
        scores_(arena.take<float>(sources * beams_)),
        new_scores_(arena.take<float>(beams_)),
        finished_(arena.take<float>(sources * results_)),
        prompt_length_(arena.take<int32_t>(sources)),
        sequences_(arena.take<int32_t>(sources * beams_ * decoding.length)),
        grown_(arena.take<int32_t>(beams_ * decoding.length)),
        ancestors_(arena.take<uint8_t>(beams_ * decoding.length)),
        candidates_(arena.take<Candidate>(most_)) {}

  void decode(SourceRange range, int32_t* tokens, float* scores) const {
    const int64_t length = decoding_.length, sources = range.end - range.begin;
    sources_.read(range);
    int open = prompts_.read(range, tokens);
    tokens += range.begin * results_ * length;
    // What nobody goes on with is given by its prompt alone.
    for (int64_t i = 0; i < sources * results_; ++i) finished_[i] = i % results_ == 0 ? 0 : kNoScore;
    for (int place = 0; place < open; ++place) start(s_.source[place], place, tokens);
    for (int still_open; open > 0; open = still_open) {
      for (int place = 0; beams_ > 1 && place < open; ++place)
        for (int64_t k = 0; k < beams_; ++k)
          s_.ancestors[(s_.source[place] * beams_ + k) * length + s_.position[place]] = static_cast<uint8_t>(k);
      best_.clear(open * beams_);
      look_at_scores(stack_, decoding_, step_(open), open * beams_, panel_,
                     [&](int r, int first, const float* scores, int count) { best_.offer(r, first, scores, count); });
      still_open = 0;
      for (int place = 0; place < open; ++place) {
        const int32_t source = s_.source[place], position = s_.position[place];
        int32_t* to = tokens + source * results_ * length;
        if (grow(source, place, still_open, position, to)) continue;
        if (position + 1 == length) {
          finish(source, to);
          continue;
        }
        s_.source[still_open] = source, s_.position[still_open++] = position + 1;
      }
    }
    for (int64_t i = 0; i < sources * results_; ++i) {
      const bool found = real(finished_[i]);
      for (int64_t j = 0; !found && i % results_ > 0 && j < length; ++j) tokens[i * length + j] = decoding_.pad_token;
      if (scores) scores[range.begin * results_ + i] = found ? finished_[i] : -kInfinity<float>;
    }
  }

 private:
  struct Candidate {
    float score;
    int32_t beam, token;
  };

  static bool real(float score) { return score > kNoScore / 2; }

  // The best extensions of the open hypotheses of a source, best first.
  void find_candidates(int place, int32_t source) const {
    int found = 0;
    for (int k = 0; k < beams_; ++k) {
      const int row = place * beams_ + k;
      const float log_sum = natural_log(best_.row_sum[row]);
      for (int i = 0; i < most_; ++i) {
        const int at_row = row * most_ + i;
        const float score = scores_[source * beams_ + k] + (best_.scores[at_row] - best_.row_max[row] - log_sum);
        int at = found < most_ ? found++ : most_;
        // Not a number counts as the lowest score.
        for (; at > 0 && score > candidates_[at - 1].score; --at)
          if (at < most_) candidates_[at] = candidates_[at - 1];
        if (at < most_) candidates_[at] = {score == score ? score : -kInfinity<float>, k, best_.tokens[at_row]};
      }
    }
  }

  // All beams of a source begin with its prompt, whose keys the first of them has. Only that one counts at first, or
  // all would stay alike.
  void start(int32_t source, int place, const int32_t* tokens) const {
    const int64_t length = decoding_.length, first_row = int64_t{source} * beams_;
    prompt_length_[source] = s_.position[place];
    for (int n = 0; n < results_; ++n) finished_[source * results_ + n] = kNoScore;
    for (int64_t k = 0; k < beams_; ++k) {
      scores_[first_row + k] = k == 0 ? 0 : kNoScore;
      for (int j = 0; j < s_.position[place]; ++j) {
        sequences_[(first_row + k) * length + j] = tokens[source * results_ * length + j];
        if (beams_ > 1) s_.ancestors[(first_row + k) * length + j] = 0;
      }
    }
  }

  // One that is full gives the best open hypotheses in the places of those that have not ended; the very first place
  // gets one whatever its score.
  void finish(int32_t source, int32_t* tokens) const {
    const int64_t length = decoding_.length;
    const float full = length_penalty(decoding_, length - prompt_length_[source]);
    for (int n = 0, open = 0; n < results_; ++n) {
      float* finished = finished_ + source * results_ + n;
      if (real(*finished)) continue;
      const int64_t row = int64_t{source} * beams_ + open++;
      if (n > 0 && !real(scores_[row])) break;
      for (int64_t j = 0; j < length; ++j) tokens[n * length + j] = sequences_[row * length + j];
      *finished = real(scores_[row]) ? scores_[row] / full : kNoScore;
    }
  }

  // Puts a sequence, of which the last token ends it, in its place among those that are finished, if it has one there.
  void keep(int32_t source, float score, const int32_t* before, int position, int32_t* tokens) const {
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

  // Keeps the best extensions of a source, whose rows are at `place` and go to place `to`, and in `tokens` the best
  // that are finished. Returns whether the source is done.
  bool grow(int32_t source, int place, int to, int position, int32_t* tokens) const {
    const int64_t length = decoding_.length, first_row = int64_t{source} * beams_;
    int32_t* sequences = sequences_ + first_row * length;
    uint8_t* ancestors = s_.ancestors + first_row * length;
    find_candidates(place, source);
    int kept = 0;
    for (int i = 0; i < most_; ++i) {
      const Candidate& candidate = candidates_[i];
      const int32_t* before = sequences + candidate.beam * length;
      if (candidate.token != decoding_.end_token) {
        if (kept < beams_) {
          int32_t* grown = grown_ + kept * length;
          for (int j = 0; j < position; ++j) grown[j] = before[j];
          grown[position] = candidate.token;
          for (int j = 0; beams_ > 1 && j <= position; ++j)
            ancestors_[kept * length + j] = ancestors[candidate.beam * length + j];
          new_scores_[kept++] = candidate.score;
        }
        continue;
      }
      const float score = candidate.score / length_penalty(decoding_, position + 1 - prompt_length_[source]);
      if (i < beams_ && real(candidate.score)) keep(source, score, before, position, tokens);
    }
    // Where the vocabulary has nothing else a hypothesis that is none goes on.
    for (; kept < beams_; ++kept) {
      new_scores_[kept] = kNoScore;
      for (int j = 0; j <= position; ++j) grown_[kept * length + j] = decoding_.end_token;
      for (int j = 0; beams_ > 1 && j <= position; ++j) ancestors_[kept * length + j] = static_cast<uint8_t>(kept);
    }
    for (int k = 0; k < beams_; ++k) {
      scores_[first_row + k] = new_scores_[k];
      s_.token[to * beams_ + k] = grown_[k * length + position];
      for (int j = 0; j <= position; ++j) sequences[k * length + j] = grown_[k * length + j];
      for (int j = 0; beams_ > 1 && j <= position; ++j) ancestors[k * length + j] = ancestors_[k * length + j];
    }
    const float best = finished_[source * results_], worst = finished_[source * results_ + results_ - 1];
    if (!real(best)) return false;
    // One beam is greedy decoding: what is left open after an end is only the second best.
    const float attainable = new_scores_[0] / length_penalty(decoding_, length - prompt_length_[source]);
    return beams_ == 1 || !real(new_scores_[0]) || (real(worst) && attainable <= worst);
  }

  const PackedStack& stack_;
  const HeedDecoding& decoding_;
  const int beams_, results_, most_;
  const DecoderScratch s_;
  const Sources sources_;
  const Prompts prompts_;
  const Step step_;
  const Rows panel_;
  const BestOfRow best_;
  // Of each row of each source, and while one is looked at; of each result of each source, divided by the penalty.
  float *const scores_, *const new_scores_, *const finished_;
  int32_t *const prompt_length_, *const sequences_, *const grown_;
  uint8_t* const ancestors_;
  Candidate* const candidates_;
};

}  // namespace HEED_ISA
}  // namespace heed
