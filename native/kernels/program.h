// Runs programs over blocks of scores, and judges blocks without running them.
//
// An operation is computed for a strip of rows of a block at a time, so that its dispatch costs little and all values
// stay in the first-level cache. What depends on the queries or the keys of a block alone is computed once for each of
// them, what depends on neither once.
#pragma once

#include "arena.h"
#include "block.h"
#include "operations.h"

namespace heed {
namespace HEED_ISA {

// Some queries and some keys of a head.
struct Block {
  int64_t b, n;
  Span queries, keys;
  char* program = nullptr;  // scratch of program_bytes(a) bytes, to run programs in

  int64_t last_query() const { return queries.begin + queries.length - 1; }
  int64_t last_key() const { return keys.begin + keys.length - 1; }
};

// ---- Judging

// Some pairs: ranges of indices, last ones included.
struct PairRange {
  int64_t b, first_head, last_head, first_query, last_query, first_key, last_key;
};

inline Bounds bounds_by(Bounds (*of)(int), const Bounds*, int type) { return of(type); }
inline Bounds bounds_by(Bounds (*of)(Bounds), const Bounds* x, int) { return of(x[0]); }
inline Bounds bounds_by(Bounds (*of)(Bounds, int), const Bounds* x, int type) { return of(x[0], type); }
inline Bounds bounds_by(Bounds (*of)(Bounds, Bounds), const Bounds* x, int) { return of(x[0], x[1]); }
inline Bounds bounds_by(Bounds (*of)(Bounds, Bounds, int), const Bounds* x, int type) { return of(x[0], x[1], type); }
inline Bounds bounds_by(Bounds (*of)(Bounds, Bounds, Bounds), const Bounds* x, int) { return of(x[0], x[1], x[2]); }

typedef Bounds (*BoundsFunction)(const Bounds*, int type);
struct BoundsFunctions {
  BoundsFunction of[kStepCodes] = {};

  constexpr BoundsFunctions() {
    const auto add = [this](auto operation) {
      typedef decltype(operation) Operation;
      of[Operation::kCode] = [](const Bounds* x, int type) { return bounds_by(&Operation::bounds, x, type); };
    };
    Operations::each(add);
    TwoInOne::each(add);
  }
};
inline constexpr BoundsFunctions kBoundsFunctions;

// The least and the greatest number with an index within these bounds.
inline Bounds bounds_of_numbers(const HeedCapture& capture, const Summary& summary, Bounds index) {
  const double last = static_cast<double>(capture.size - 1);
  int64_t first = static_cast<int64_t>(lower(higher(index.least, 0), last));
  int64_t end = static_cast<int64_t>(lower(higher(index.most, 0), last)) + 1;
  int32_t least = INT32_MAX, most = INT32_MIN;
  for (int level = -1;; ++level) {
    const auto see = [&](int64_t i) {
      int32_t low = 0, high = 0;
      if (level >= 0)
        low = summary.least[level][i], high = summary.most[level][i];
      else if (capture.type == HEED_INT)
        low = high = static_cast<const int32_t*>(capture.data)[i];
      else
        low = high = static_cast<const uint8_t*>(capture.data)[i] != 0;
      least = low < least ? low : least;
      most = high > most ? high : most;
    };
    const bool highest = level + 1 == summary.levels;
    const int64_t size = level < 0 ? capture.size : summary.size[level];
    while (first < end && (highest || first % kSummaryFactor)) see(first++);
    while (first < end && end % kSummaryFactor && end < size) see(--end);  // the last one may be short
    if (first == end) break;
    first = first / kSummaryFactor;
    end = (end + kSummaryFactor - 1) / kSummaryFactor;
  }
  return {static_cast<double>(least), static_cast<double>(most), false};
}

// Sets known[i] to what is known of the value of step i, up to the last one, for all of some pairs. With `other_keys`
// the same has been done with other keys alone.
inline void follow_bounds(const Plan& plan, const Code& code, int last, const PairRange& range, Bounds* known,
                          bool other_keys = false) {
  const auto between = [](int64_t first, int64_t last) {
    return Bounds{static_cast<double>(first), static_cast<double>(last), false};
  };
  for (int i = 0; i <= last; ++i) {
    const Step& step = code.steps[i];
    if (other_keys && !(step.dependence & kOnKey)) continue;
    switch (step.opcode) {
      case HEED_OP_CONSTANT: {
        const double x = step.constant;
        known[i] = step.type == HEED_BOOL ? boolean(x == 0, x != 0) : Bounds{x, x, x != x};
        break;
      }
      case HEED_OP_BATCH: known[i] = between(range.b, range.b); break;
      case HEED_OP_HEAD: known[i] = between(range.first_head, range.last_head); break;
      case HEED_OP_QUERY: known[i] = between(range.first_query, range.last_query); break;
      case HEED_OP_KEY: known[i] = between(range.first_key, range.last_key); break;
      case HEED_OP_SCORE:
      case HEED_OP_UPSTREAM: known[i] = unknown(HEED_FLOAT); break;
      case HEED_OP_LOAD: {
        const Summary& summary = plan.summaries[step.capture];
        known[i] = summary.levels ? bounds_of_numbers(plan.captures[step.capture], summary, known[step.operands[0]])
                                  : unknown(step.type);
        break;
      }
      default: {
        Bounds operands[3] = {};
        for (int k = 0; k < step.operand_count; ++k) operands[k] = known[step.operands[k]];
        known[i] = kBoundsFunctions.of[step.opcode](operands, step.type);
      }
    }
    // Integers may have wrapped around; floats are rounded, and that is monotonic.
    if (step.type == HEED_INT && !(known[i].least >= kLeastInt && known[i].most <= kMostInt))
      known[i] = unknown(HEED_INT);
    if (step.type == HEED_FLOAT && !plan.is_double)
      known[i] = {static_cast<float>(known[i].least), static_cast<float>(known[i].most), known[i].maybe_nan};
  }
}

// What is known of the value of one step.
inline Bounds bounds_of_step(const Plan& plan, const Code& code, int step, const PairRange& range) {
  Bounds known[HEED_MAX_INSTRUCTIONS];
  follow_bounds(plan, code, step, range, known);
  return known[step];
}

// ---- Lines

// An integer that is start + by_query * x + by_key * y for query x and key y of a block, as most indices are: adjacent
// numbers of a captured array are read as vectors.
struct Line {
  bool known;
  int64_t start, by_query, by_key;

  // Whether all of rows and columns from 0 on lie in [least, end).
  bool within(int queries, int keys, int64_t least, int64_t end) const {
    const int64_t across = by_query * (queries - 1), down = by_key * (keys - 1);
    return known && start + min(across, 0) + min(down, 0) >= least && start + max(across, 0) + max(down, 0) < end;
  }
};

inline Line sum_of(const Line& a, const Line& b, int64_t sign) {
  return {a.known && b.known, a.start + sign * b.start, a.by_query + sign * b.by_query, a.by_key + sign * b.by_key};
}

// The line of a step, from those of its operands and the bounds that are known.
inline Line line_of(const Step& step, const Block& block, const Bounds* known, const Line* lines, Bounds own) {
  const int a = step.operands[0], b = step.operands[1], c = step.operands[2];
  if (step.type != HEED_INT) return {};
  if (own.least == own.most) return {true, static_cast<int64_t>(own.least), 0, 0};
  switch (step.opcode) {
    case HEED_OP_QUERY: return {true, block.queries.begin, 1, 0};
    case HEED_OP_KEY: return {true, block.keys.begin, 0, 1};
    case HEED_OP_NEG: return sum_of({true, 0, 0, 0}, lines[a], -1);
    case HEED_OP_ADD: return sum_of(lines[a], lines[b], 1);
    case HEED_OP_SUB: return sum_of(lines[a], lines[b], -1);
    case HEED_OP_MUL: {
      const bool of_constant = known[a].least == known[a].most;
      if (!of_constant && known[b].least != known[b].most) return {};
      const Line& line = of_constant ? lines[b] : lines[a];
      const int64_t times = of_constant ? lines[a].start : lines[b].start;
      return {line.known, line.start * times, line.by_query * times, line.by_key * times};
    }
    case HEED_OP_MIN:
      return known[a].most <= known[b].least ? lines[a] : known[b].most <= known[a].least ? lines[b] : Line{};
    case HEED_OP_MAX:
      return known[a].least >= known[b].most ? lines[a] : known[b].least >= known[a].most ? lines[b] : Line{};
    case HEED_OP_WHERE: return known[a].is(1) ? lines[b] : known[a].is(0) ? lines[c] : Line{};
    default: return {};
  }
}

// The lines of all steps of a code in a block, from what is known of their values there.
inline void follow_lines(const Code& code, const Block& block, const Bounds* known, Line* lines) {
  for (int i = 0; i < code.count; ++i) {
    lines[i] = line_of(code.steps[i], block, known, lines, known[i]);
    // Beyond int32 it wraps around.
    lines[i].known = lines[i].within(block.queries.length, block.keys.length, INT32_MIN, int64_t{INT32_MAX} + 1);
  }
}

// Sets bits[y], bit x to whether an integer start + by_query * x + by_key * y, with |by_query| <= 1, is below 0 or,
// with kEqual, is 0.
template <bool kEqual>
inline void compare_line(Line line, int keys, uint64_t* bits) {
  for (int y = 0; y < keys; ++y, line.start += line.by_key) {
    const auto from = [](int64_t x) { return ~bits_below(x); };
    const int64_t x = line.by_query < 0 ? line.start : -line.start;  // where it is 0
    if (kEqual)
      bits[y] = line.by_query ? bits_below(x + 1) & from(x) : line.start == 0 ? ~uint64_t{0} : 0;
    else
      bits[y] = line.by_query < 0 ? from(x + 1) : line.by_query > 0 ? bits_below(x) : line.start < 0 ? ~uint64_t{0} : 0;
  }
}

// Booleans as bits, a word for each key, where all of them are comparisons of lines and combinations of these: a
// window, say, without a number for each pair.
class BitRun {
 public:
  BitRun(const Plan& plan, const Block& block) : code_(plan.keep), keys_(block.keys.length) {
    const PairRange range{block.b,          block.n,         block.n, block.queries.begin, block.last_query(),
                          block.keys.begin, block.last_key()};
    follow_bounds(plan, code_, code_.count - 1, range, known_);
    follow_lines(code_, block, known_, lines_);
  }

  // Returns false if it cannot.
  bool run(int at, uint64_t* bits, int depth = 0) {
    const Step& step = code_.steps[at];
    const int a = step.operands[0], b = step.operands[1];
    if (--left_ < 0 || depth > kDepth || step.type != HEED_BOOL) return false;
    if (known_[at].least == known_[at].most) {
      for (int y = 0; y < keys_; ++y) bits[y] = known_[at].is(1) ? ~uint64_t{0} : 0;
      return true;
    }
    switch (step.opcode) {
      case HEED_OP_NOT:
        if (!run(a, bits, depth + 1)) return false;
        for (int y = 0; y < keys_; ++y) bits[y] = ~bits[y];
        return true;
      case HEED_OP_AND:
      case HEED_OP_OR:
      case HEED_OP_XOR: {
        uint64_t other[kKeyBlock];
        if (!run(a, bits, depth + 1) || !run(b, other, depth + 1)) return false;
        for (int y = 0; y < keys_; ++y)
          bits[y] = step.opcode == HEED_OP_AND  ? bits[y] & other[y]
                    : step.opcode == HEED_OP_OR ? bits[y] | other[y]
                                                : bits[y] ^ other[y];
        return true;
      }
      case HEED_OP_LT: return compare<false>(a, b, false, bits);
      case HEED_OP_GT: return compare<false>(b, a, false, bits);
      case HEED_OP_GE: return compare<false>(a, b, true, bits);
      case HEED_OP_LE: return compare<false>(b, a, true, bits);
      case HEED_OP_EQ: return compare<true>(a, b, false, bits);
      case HEED_OP_NE: return compare<true>(a, b, true, bits);
      default: return false;
    }
  }

 private:
  static constexpr int kDepth = 12, kMostSteps = 64;

  template <bool kEqual>
  bool compare(int a, int b, bool negated, uint64_t* bits) const {
    const Line line = sum_of(lines_[a], lines_[b], -1);
    if (!line.known || line.by_query < -1 || line.by_query > 1) return false;
    compare_line<kEqual>(line, keys_, bits);
    for (int y = 0; negated && y < keys_; ++y) bits[y] = ~bits[y];
    return true;
  }

  const Code& code_;
  int keys_, left_ = kMostSteps;
  Bounds known_[HEED_MAX_INSTRUCTIONS];
  Line lines_[HEED_MAX_INSTRUCTIONS];
};

// ---- Running

// Where the vectors of a value lie: `row` bytes from one row to the next, `column` from one vector of a row to the
// next; 0 where it serves all. `whole`: whether there are rows for the whole block, not only for a strip.
struct Operand {
  char* data;
  ptrdiff_t row, column;
  bool whole;

  HEED_INLINE char* at(int first, int y) const { return data + (whole ? first + y : y) * row; }
};

// A step with its buffers, and its function: computes rows [first, first + rows) of a block, `vectors` vectors each.
struct ReadyStep {
  void (*run)(const ReadyStep&, int first, int rows, int vectors);
  Operand operands[3], result;
  const HeedCapture* capture;
  int64_t start, across, down;  // the line of its index
};
typedef decltype(ReadyStep::run) StepFunction;

template <class K, int kType>
struct Typed {
  typedef typename K::I Vector;
};
template <class K>
struct Typed<K, HEED_FLOAT> {
  typedef typename K::F Vector;
};

// The first operand of an operation: a condition of `Where`, else a value as the result is.
template <class K, class Operation, class V>
struct FirstOperand {
  typedef V Vector;
};
template <class K, class V>
struct FirstOperand<K, Where, V> {
  typedef typename K::I Vector;
};

template <class K, class Operation, int kType>
void run_operation(const ReadyStep& s, int first, int rows, int vectors) {
  typedef typename Typed<K, kType>::Vector V;
  typedef typename FirstOperand<K, Operation, V>::Vector First;
  constexpr OperationNeeds kNeeds = Operation::kNeeds;
  constexpr bool kUnrolled = !__is_base_of(NoBounds, Operation);  // others take longer than their loop
  const Operand &a = s.operands[0], &b = s.operands[1], &c = s.operands[2];
  const char *row_a = a.at(first, 0), *row_b = b.at(first, 0), *row_c = c.at(first, 0);
  char* row = s.result.at(first, 0);
  for (int y = 0; y < rows; ++y, row_a += a.row, row_b += b.row, row_c += c.row, row += s.result.row) {
    const char *from_a = row_a, *from_b = row_b, *from_c = row_c;
    char* to = row;
    const auto compute = [&]() __attribute__((always_inline)) {
      const auto put = [&](auto value) __attribute__((always_inline)) {
        store(to, value);
        to += sizeof(value);
      };
      if constexpr (kNeeds.operands == 1) {
        V x = load_as<V>(from_a);
        if constexpr (kType == HEED_BOOL && kNeeds.result != OperationNeeds::kBool &&
                      kNeeds.result != OperationNeeds::kAsInput)
          x &= 1;  // the number of a boolean
        put(Operation::template of<K>(x));
      } else if constexpr (kNeeds.operands == 2) {
        put(Operation::template of<K>(load_as<V>(from_a), load_as<V>(from_b)));
      } else {
        put(Operation::template of<K>(load_as<First>(from_a), load_as<V>(from_b), load_as<V>(from_c)));
      }
      from_a += a.column, from_b += b.column, from_c += c.column;
    };
    int v = 0;
    for (; kUnrolled && v + 4 <= vectors; v += 4) {
      compute();
      compute();
      compute();
      compute();
    }
    for (; v < vectors; ++v) compute();
  }
}

// Indices beyond the ends of a captured array read its first or last number.
template <class K>
HEED_INLINE typename K::I bounded_index(typename K::I index, const HeedCapture& capture) {
  const int32_t last = static_cast<int32_t>(min(capture.size - 1, INT32_MAX));
  index = index < 0 ? typename K::I{} : index;
  return index > last ? typename K::I{} + last : index;
}

template <class K, int kType>
void run_load(const ReadyStep& s, int first, int rows, int vectors) {
  typedef typename K::Real Real;
  typedef typename Typed<K, kType>::Vector V;
  typedef typename K::I I;
  for (int y = 0; y < rows; ++y) {
    const char* from = s.operands[0].at(first, y);
    char* to = s.result.at(first, y);
    for (int v = 0; v < vectors; ++v, from += s.operands[0].column, to += sizeof(V)) {
      int32_t at[kLanes<Real>];
      store(at, bounded_index<K>(load_as<I>(from), *s.capture));
      decltype(+V{}[0]) numbers[kLanes<Real>];
      for (int lane = 0; lane < kLanes<Real>; ++lane) {
        if constexpr (kType == HEED_FLOAT)
          numbers[lane] = static_cast<const Real*>(s.capture->data)[at[lane]];
        else if constexpr (kType == HEED_INT)
          numbers[lane] = static_cast<const int32_t*>(s.capture->data)[at[lane]];
        else
          numbers[lane] = static_cast<const uint8_t*>(s.capture->data)[at[lane]] ? -1 : 0;
      }
      store(to, load_as<V>(numbers));
    }
  }
}

// The same where each row of indices is start, start + 1, ... or, with kReversed, start, start - 1, ...
template <class K, bool kReversed>
void run_load_rows(const ReadyStep& s, int first, int rows, int vectors) {
  typedef typename K::Real Real;
  for (int y = 0; y < rows; ++y) {
    const Real* from = static_cast<const Real*>(s.capture->data) + s.start + (first + y) * s.down;
    Real* to = reinterpret_cast<Real*>(s.result.at(first, y));
    for (int v = 0; v < vectors; ++v, to += kLanes<Real>) {
      if constexpr (kReversed) {
        const Vector<Real> x = load(from - (v + 1) * kLanes<Real> + 1);
        store(to, shuffle<Real>(x, x, Reversed<kLanes<Real>>{}));
      } else {
        store(to, load(from + v * kLanes<Real>));
      }
    }
  }
}

// The same where each column of indices is start, start + 1, ...
template <class K>
void run_load_columns(const ReadyStep& s, int first, int rows, int vectors) {
  typedef typename K::Real Real;
  constexpr int kSquare = kLanes<Real>;
  for (int v = 0; v < vectors; ++v)
    for (int y = 0; y < rows; y += kSquare) {
      Vector<Real> square[kSquare];
#pragma GCC unroll 16
      for (int r = 0; r < kSquare; ++r) {
        const int64_t at = s.start + (v * kSquare + r) * s.across + first + y;
        const Real* from = static_cast<const Real*>(s.capture->data) + at;
        __builtin_prefetch(from + kKeyBlock, 0, 2);  // of the next keys
        square[r] = load_some(from, static_cast<int>(min(s.capture->size - at, kSquare)));
      }
      transpose<Real>(square);
      for (int i = 0; i < kSquare && y + i < rows; ++i)
        store(s.result.at(first, y + i) + v * static_cast<ptrdiff_t>(sizeof(*square)), square[i]);
    }
}

// The functions of all operations, by code and type of the last operand; of LOAD by the type of its value.
template <class K>
struct StepFunctions {
  StepFunction of[kStepCodes][3] = {};

  constexpr StepFunctions() {
    of[HEED_OP_LOAD][HEED_FLOAT] = run_load<K, HEED_FLOAT>;
    of[HEED_OP_LOAD][HEED_INT] = run_load<K, HEED_INT>;
    of[HEED_OP_LOAD][HEED_BOOL] = run_load<K, HEED_BOOL>;
    const auto add = [this](auto operation) {
      typedef decltype(operation) Operation;
      constexpr uint32_t kInputs = Operation::kNeeds.inputs;
      if constexpr (kInputs & kFloats) of[Operation::kCode][HEED_FLOAT] = run_operation<K, Operation, HEED_FLOAT>;
      if constexpr (kInputs & kInts) of[Operation::kCode][HEED_INT] = run_operation<K, Operation, HEED_INT>;
      if constexpr (kInputs & kBools) of[Operation::kCode][HEED_BOOL] = run_operation<K, Operation, HEED_BOOL>;
    };
    Operations::each(add);
    TwoInOne::each(add);
  }
};
template <class K>
inline constexpr StepFunctions<K> kStepFunctions;

// The layout of a block of scores.
struct ScoreLayout {
  Dependence across;  // what lies in the vectors of a row: kOnQuery, and keys are rows; or kOnKey
  int row;            // numbers from one row to the next
};
inline constexpr ScoreLayout kTileLayout = {kOnQuery, kQueryTile}, kRowLayout = {kOnKey, kKeyBlock};

// A block of kept values, by its number.
template <class Real>
HEED_INLINE Real* kept_block(Real* kept, int number) {
  return kept + number * (kKeyBlock * kQueryTile);
}

// Runs a code for one block.
template <class Real>
class ProgramRun {
  typedef Kit<Real> K;
  typedef typename K::I I;
  typedef Vector<Real> V;

 public:
  static size_t bytes(const Code& code) {
    Arena arena(nullptr);
    Buffers(code, arena);
    return arena.bytes();
  }

  // `scores`, with this layout, and `upstream` are read by `strips`; null if the code does not read them. The values
  // of step `in_place`, the last one, take the place of the scores. `kept`, unless null, holds the blocks of kept
  // values: without scores these are read, else written, but for the score before.
  ProgramRun(const Plan& plan, const Code& code, const Block& block, ScoreLayout layout, const Real* scores,
             const Real* kept, const Real* upstream, int in_place = -1)
      : code_(code), arena_(block.program), buffers_(code, arena_) {
    const Dependence across = layout.across, down = across == kOnQuery ? kOnKey : kOnQuery;
    const Span keys = block.keys, queries = block.queries;
    queries_ = queries.length, keys_ = keys.length;
    rows_ = across == kOnQuery ? keys_ : queries_;
    // Rows of tiles fill the buffers; of the other layout, whose rows are longer, there is one.
    const int strip =
        static_cast<int>(max(1, (code.follows_lines ? kLineRows : kStripRows) / max(1, code.slots[kOnPair])));
    rows_in_strip_ = across != kOnQuery ? 1 : strip < kLanes<Real> ? strip : strip / kLanes<Real> * kLanes<Real>;
    vectors_ = round_up(across == kOnQuery ? queries.length : keys.length, kLanes<Real>) / kLanes<Real>;
    const int down_vectors = round_up(rows_, kLanes<Real>) / kLanes<Real>;
    across_ = across;
    if (code.follows_lines) follow_lines(plan, block);
    for (int i = 0; i < code.count; ++i) {
      const Step& step = code.steps[i];
      const ptrdiff_t vector = vector_bytes(step);
      Operand& place = buffers_.places[i];
      char* slot = buffers_.slot(step.dependence, step.slot, rows_in_strip_, layout.row);
      const ptrdiff_t row = vector * (layout.row / kLanes<Real>);
      if (kept && step.kept >= 0)
        place = whole_block(kept_block(kept, step.kept), row, vector);
      else if (i == in_place)
        place = whole_block(scores, row, vector);
      else if (step.dependence == kOnPair)
        place = {slot, row, vector, false};
      else
        place = {slot, 0, step.dependence == kOnNothing ? 0 : vector, true};
      switch (step.opcode) {
        case HEED_OP_SCORE:
          if (scores) place = whole_block(scores, row, vector);
          continue;
        case HEED_OP_UPSTREAM: place = whole_block(upstream, row, vector); continue;
        case HEED_OP_CONSTANT: set_constant(slot, step); continue;
        case HEED_OP_BATCH: store(slot, I{} + static_cast<int32_t>(block.b)); continue;
        case HEED_OP_HEAD: store(slot, I{} + static_cast<int32_t>(block.n)); continue;
        case HEED_OP_QUERY:
        case HEED_OP_KEY:
          count_up(slot, step.opcode == HEED_OP_QUERY ? queries.begin : keys.begin,
                   step.dependence == across ? vectors_ : down_vectors);
          break;
        default: {
          const int type = step.opcode == HEED_OP_LOAD ? step.type : step.input_type;
          if (code.follows_lines && !buffers_.live[i]) continue;
          ReadyStep ready{kStepFunctions<K>.of[step.opcode][type], {}, place, plan.captures + step.capture, 0, 0, 0};
          for (int k = 0; k < step.operand_count; ++k)
            ready.operands[k] = view(step.operands[k], step.dependence == kOnPair, down);
          if (code.follows_lines && loads_line(plan, step)) {
            const Line& line = buffers_.lines[step.operands[0]];
            ready.start = line.start, ready.across = along(line), ready.down = beside(line);
            ready.run = ready.across == 1    ? run_load_rows<K, false>
                        : ready.across == -1 ? run_load_rows<K, true>
                                             : run_load_columns<K>;
          }
          if (step.dependence == kOnPair)
            buffers_.pairs[pair_steps_++] = ready;
          else
            ready.run(ready, 0, 1,
                      step.dependence == kOnNothing ? 1
                      : step.dependence == across   ? vectors_
                                                    : down_vectors);
        }
      }
      if (step.dependence == down && step.spread >= 0) spread(step, slot, buffers_.spread(step.spread));
    }
    down_ = down;
  }

  int vectors() const { return vectors_; }
  int rows() const { return rows_; }
  // Where the values of a step are for the rows of the strip at hand.
  Operand values(int step) const { return view(step, true, down_); }

  // The line of the index of a scatter of pairs, if there is one and it stays within its captured array; else null.
  const Line* line(const Plan& plan, const Plan::Scatter& scatter) const {
    const bool of_pairs = code_.steps[scatter.index].dependence == kOnPair;
    const Line* found = of_pairs ? buffers_.lines + scatter.index : nullptr;
    return found && found->within(queries_, keys_, 0, plan.captures[scatter.capture].size) ? found : nullptr;
  }

  // Calls function(first, rows) for strips of rows, when their values have been computed.
  template <class Function>
  HEED_INLINE void strips(const Function& function) const {
    for (int first = 0; first < rows_; first += rows_in_strip_) {
      const int rows = static_cast<int>(min(rows_in_strip_, rows_ - first));
      for (int i = 0; i < pair_steps_; ++i) buffers_.pairs[i].run(buffers_.pairs[i], first, rows, vectors_);
      function(first, rows);
    }
  }

 private:
  // Rows of all buffers of pairs together: so many of a tile take 8 KiB of the first-level cache, beside the scores.
  // Where captured arrays are transposed, squares need more rows.
  static constexpr int kStripRows = 32, kLineRows = 64;
  static constexpr int kAxis = kKeyBlock > kQueryTile ? kKeyBlock : kQueryTile;

  struct Buffers {
    Real *nothing, *query, *key, *pair, *spreads;
    Operand* places;
    ReadyStep* pairs;
    // If lines are followed, for each step: bounds and line of its value, and whether it must be computed.
    Bounds* known;
    Line* lines;
    bool* live;

    Buffers(const Code& code, Arena& arena)
        : nothing(arena.take<Real>(code.slots[kOnNothing] * kLanes<Real>)),
          query(arena.take<Real>(code.slots[kOnQuery] * kAxis)),
          key(arena.take<Real>(code.slots[kOnKey] * kAxis)),
          pair(arena.take<Real>(max(kLineRows * kQueryTile, code.slots[kOnPair] * kAxis))),
          spreads(arena.take<Real>(code.spread_slots * kAxis * kLanes<Real>)),
          places(arena.take<Operand>(code.count)),
          pairs(arena.take<ReadyStep>(code.count)),
          known(arena.take<Bounds>(code.follows_lines ? code.count : 0)),
          lines(arena.take<Line>(code.follows_lines ? code.count : 0)),
          live(arena.take<bool>(code.follows_lines ? code.count : 0)) {}

    char* slot(Dependence dependence, int index, int rows_in_strip, int row) const {
      switch (dependence) {
        case kOnNothing: return reinterpret_cast<char*>(nothing + index * kLanes<Real>);
        case kOnQuery: return reinterpret_cast<char*>(query + index * kAxis);
        case kOnKey: return reinterpret_cast<char*>(key + index * kAxis);
        default: return reinterpret_cast<char*>(pair + index * rows_in_strip * row);
      }
    }
    char* spread(int index) const { return reinterpret_cast<char*>(spreads + index * kAxis * kLanes<Real>); }
  };

  static ptrdiff_t vector_bytes(const Step& step) {
    return static_cast<ptrdiff_t>(step.type == HEED_FLOAT ? sizeof(V) : sizeof(I));
  }

  static Operand whole_block(const Real* numbers, ptrdiff_t row, ptrdiff_t vector) {
    return {reinterpret_cast<char*>(const_cast<Real*>(numbers)), row, vector, true};
  }

  Operand view(int step, bool of_pairs, Dependence down) const {
    const Step& s = code_.steps[step];
    if (!of_pairs || s.dependence != down) return buffers_.places[step];
    return {buffers_.spread(s.spread), vector_bytes(s), 0, true};
  }

  int64_t along(const Line& line) const { return across_ == kOnQuery ? line.by_query : line.by_key; }
  int64_t beside(const Line& line) const { return across_ == kOnQuery ? line.by_key : line.by_query; }
  // Whether a line stays within a captured array, in whole vectors.
  bool stays(const Line& line, int64_t size) const {
    const int columns = vectors_ * kLanes<Real>;
    return across_ == kOnQuery ? line.within(columns, rows_, 0, size) : line.within(rows_, columns, 0, size);
  }
  // Whether a step reads captured floats of pairs along a line of adjacent ones.
  bool loads_line(const Plan& plan, const Step& step) const {
    if (step.opcode != HEED_OP_LOAD || step.type != HEED_FLOAT || step.dependence != kOnPair) return false;
    const Line& line = buffers_.lines[step.operands[0]];
    if (!stays(line, plan.captures[step.capture].size)) return false;
    return along(line) == 1 || along(line) == -1 || beside(line) == 1;
  }

  void follow_lines(const Plan& plan, const Block& block) {
    const Code& code = code_;
    const PairRange range{block.b,          block.n,         block.n, block.queries.begin, block.last_query(),
                          block.keys.begin, block.last_key()};
    follow_bounds(plan, code, code.count - 1, range, buffers_.known);
    HEED_ISA::follow_lines(code, block, buffers_.known, buffers_.lines);
    for (int i = 0; i < code.count; ++i) buffers_.live[i] = false;
    for (int i = 0; i < code.result_count; ++i) buffers_.live[code.results[i]] = true;
    for (int i = 0; &code == &plan.derivative && i < plan.scatter_count; ++i)
      if (!line(plan, plan.scatters[i])) buffers_.live[plan.scatters[i].index] = true;
    for (int i = code.count - 1; i >= 0; --i)
      for (int k = 0; buffers_.live[i] && !loads_line(plan, code.steps[i]) && k < code.steps[i].operand_count; ++k)
        buffers_.live[code.steps[i].operands[k]] = true;
  }

  static void set_constant(char* to, const Step& step) {
    if (step.type == HEED_FLOAT)
      store(to, broadcast(static_cast<Real>(step.constant)));
    else
      store(to, I{} + (step.type == HEED_INT ? static_cast<int32_t>(step.constant) : step.constant != 0 ? -1 : 0));
  }

  static void count_up(char* to, int64_t begin, int vectors) {
    for (int x = 0; x < vectors * kLanes<Real>; ++x)
      reinterpret_cast<int32_t*>(to)[x] = static_cast<int32_t>(begin + x);
  }

  void spread(const Step& step, const char* from, char* to) const {
    for (int y = 0; y < rows_; ++y) {
      if (step.type == HEED_FLOAT)
        store(to + y * static_cast<ptrdiff_t>(sizeof(V)), broadcast(reinterpret_cast<const Real*>(from)[y]));
      else
        store(to + y * static_cast<ptrdiff_t>(sizeof(I)), I{} + reinterpret_cast<const int32_t*>(from)[y]);
    }
  }

  const Code& code_;
  Arena arena_;
  Buffers buffers_;
  Dependence across_, down_;
  int queries_, keys_, rows_in_strip_, rows_, vectors_, pair_steps_ = 0;
};

// Scratch for the programs of an attention.
template <class Real>
size_t program_bytes(const HeedAttention& a) {
  const Plan* plan = plan_of(a);
  if (!plan) return 0;
  size_t most = 0;
  const Code* const codes[] = {&plan->score, &plan->keep, &plan->derivative};
  for (const Code* code : codes) {
    const size_t bytes = ProgramRun<Real>::bytes(*code);
    most = bytes > most ? bytes : most;
  }
  return most;
}

// Replaces scores of a block, at most `columns` numbers a row, by those that the program makes of them; -inf for
// HEED_MASK_VALUE or less, 0 beyond the last query. Keeps values of `plan.score` in `kept`, unless null.
template <class Real>
inline void modify_scores(const Plan& plan, const Block& block, ScoreLayout layout, Real* scores, const Real* kept) {
  typedef Vector<Real> V;
  // The step of the result is the last one.
  const Step& last = plan.score.steps[plan.score_step];
  const bool in_place = last.dependence == kOnPair && !(kept && last.kept >= 0);
  const ProgramRun<Real> run(plan, plan.score, block, layout, scores, kept, nullptr, in_place ? plan.score_step : -1);
  const Operand modified = run.values(plan.score_step);
  const auto lesser = [](V a, V b) { return a < b ? a : b; };  // b where a is not a number
  const auto hides = [](V score) { return score <= static_cast<Real>(HEED_MASK_VALUE); };
  const int vectors = run.vectors(), idle = layout.across == kOnQuery ? block.queries.length : vectors * kLanes<Real>;
  run.strips([&](int first, int rows) {
    V least[4];
    for (V& x : least) x = broadcast(kInfinity<Real>);
    for (int y = 0; y < rows; ++y) {
      const char* from = modified.at(first, y);
      Real* to = scores + (first + y) * layout.row;
      for (int v = 0; !in_place && v < vectors; ++v, from += modified.column)
        store(to + v * kLanes<Real>, load_as<V>(from));
      int v = 0;
      for (; v + 4 <= vectors; v += 4)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) least[i] = lesser(load(to + (v + i) * kLanes<Real>), least[i]);
      for (; v < vectors; ++v) *least = lesser(load(to + v * kLanes<Real>), *least);
      for (int x = idle; x < vectors * kLanes<Real>; ++x) to[x] = 0;
    }
    const bool any_hides = any(hides(lesser(lesser(least[0], least[1]), lesser(least[2], least[3]))));
    for (int y = 0; any_hides && y < rows; ++y) {
      Real* to = scores + (first + y) * layout.row;
      for (int v = 0; v < vectors; ++v, to += kLanes<Real>)
        store(to, hides(load(to)) ? broadcast(-kInfinity<Real>) : load(to));
    }
  });
}

// Sets bit x of hidden[y] if the program hides key y from query x.
template <class Real>
inline void hide_by_program(const Plan& plan, const Block& block, uint64_t* hidden) {
  typedef typename Kit<Real>::I I;
  const Real* none = nullptr;
  const ProgramRun<Real> run(plan, plan.keep, block, kTileLayout, none, none, none);
  const Operand keep = run.values(plan.keep_step);
  run.strips([&](int first, int rows) {
    for (int y = 0; y < rows; ++y) {
      const char* from = keep.at(first, y);
      uint64_t bits = 0;
      for (int v = 0; v < run.vectors(); ++v, from += keep.column) {
        const I kept = load_as<I>(from);
        uint64_t some = 0;
        if constexpr (sizeof(Real) == 4)
          some = Simd::bits_of(kept);
        else
          for (int lane = 0; lane < kLanes<Real>; ++lane) some |= static_cast<uint64_t>(kept[lane] & 1) << lane;
        bits |= some << v * kLanes<Real>;
      }
      hidden[first + y] |= ~bits;
    }
  });
}

}  // namespace HEED_ISA
}  // namespace heed
