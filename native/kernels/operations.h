// The operations of programs. heed.h defines their meaning; a struct here holds the rest of each:
//   kCode    its HeedOpcode
//   kNeeds   its name, the number and the types of its operands, and the type of its result
//   of       computes a vector of values, for each type of its operands
//   bounds   what is known of its value from what is known of its operands
// A new operation is a struct here, its name in `Operations` below, and its code in heed.h.
#pragma once

#include "../simd/functions.h"
#include "plan.h"

namespace heed {
namespace HEED_ISA {

// The vectors of a program in float or double, all of as many lanes: floats, and int32 for integers and booleans, which
// are 0 or -1.
template <class Number>
struct Kit {
  typedef Number Real;
  typedef Vector<Real> F;
  typedef int32_t I __attribute__((vector_size(4 * kLanes<Real>)));
  typedef uint32_t U __attribute__((vector_size(4 * kLanes<Real>)));

  static HEED_INLINE I boolean(Integers<Real> comparison) {
    if constexpr (sizeof(Real) == 4)
      return comparison;
    else
      return __builtin_convertvector(comparison, I);
  }
  static HEED_INLINE F choose(I condition, F a, F b) {
    if constexpr (sizeof(Real) == 4)
      return condition != 0 ? a : b;
    else
      return __builtin_convertvector(condition, Integers<Real>) != 0 ? a : b;
  }
  static HEED_INLINE I choose(I condition, I a, I b) { return (condition & a) | (~condition & b); }
};
template <class K>
using Floats = typename K::F;
template <class K>
using Ints = typename K::I;
template <class K>
using Unsigned = typename K::U;

// What is known of a value: its numbers lie in [least, most], or are NaN if that may be. Booleans are 0 or 1.
struct Bounds {
  double least, most;
  bool maybe_nan;

  bool is(double x) const { return least == x && most == x && !maybe_nan; }
};
inline constexpr double kLeastInt = -2147483648.0, kMostInt = 2147483647.0;
inline constexpr double kEndless = __builtin_inf();

inline Bounds unknown(int type) {
  if (type == HEED_FLOAT) return {-kEndless, kEndless, true};
  if (type == HEED_INT) return {kLeastInt, kMostInt, false};
  return {0, 1, false};
}
inline Bounds boolean(bool never, bool always) { return {always ? 1.0 : 0.0, never ? 0.0 : 1.0, false}; }

HEED_INLINE double lower(double a, double b) { return a < b ? a : b; }
HEED_INLINE double higher(double a, double b) { return a > b ? a : b; }

// The bounds of a function that is monotonic in each operand, from its values at the ends. Infinite ends may give NaN.
template <class Function>
Bounds at_ends(Bounds a, Bounds b, const Function& function) {
  const double ends[4] = {function(a.least, b.least), function(a.least, b.most), function(a.most, b.least),
                          function(a.most, b.most)};
  Bounds found{ends[0], ends[0], a.maybe_nan || b.maybe_nan};
  for (double end : ends) {
    if (end - end != 0) return unknown(HEED_FLOAT);
    found = {lower(found.least, end), higher(found.most, end), found.maybe_nan};
  }
  return found;
}
// The same for one that grows with its only operand and has no NaN of its own.
template <class Function>
Bounds growing(Bounds a, const Function& function) {
  return {function(a.least), function(a.most), a.maybe_nan};
}

using Needs = OperationNeeds;

// Of operations whose values are not followed.
struct NoBounds {
  static Bounds bounds(int type) { return unknown(type); }
};

// ---- Of one operand

struct Neg {
  static constexpr int kCode = HEED_OP_NEG;
  static constexpr Needs kNeeds{"NEG", 1, kNumbers, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Floats<K> of(Floats<K> x) {
    return -x;
  }
  template <class K>
  static HEED_INLINE Ints<K> of(Ints<K> x) {
    return (Ints<K>)(-(Unsigned<K>)x);
  }
  static Bounds bounds(Bounds a) { return {-a.most, -a.least, a.maybe_nan}; }
};

struct Abs {
  static constexpr int kCode = HEED_OP_ABS;
  static constexpr Needs kNeeds{"ABS", 1, kNumbers, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Floats<K> of(Floats<K> x) {
    return absolute<typename K::Real>(x);
  }
  template <class K>
  static HEED_INLINE Ints<K> of(Ints<K> x) {
    const Unsigned<K> sign = (Unsigned<K>)(x >> 31);
    return (Ints<K>)(((Unsigned<K>)x ^ sign) - sign);
  }
  static Bounds bounds(Bounds a) {
    const double least = a.least > 0 ? a.least : a.most < 0 ? -a.most : 0;
    return {least, higher(-a.least, a.most), a.maybe_nan};
  }
};

struct Sign {
  static constexpr int kCode = HEED_OP_SIGN;
  static constexpr Needs kNeeds{"SIGN", 1, kNumbers, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Floats<K> of(Floats<K> x) {
    return x > 0 ? Floats<K>{} + 1 : (x < 0 ? Floats<K>{} - 1 : x);
  }
  template <class K>
  static HEED_INLINE Ints<K> of(Ints<K> x) {
    return (x < 0) - (x > 0);
  }
  static Bounds bounds(Bounds a) {
    return growing(a, [](double x) { return static_cast<double>((x > 0) - (x < 0)); });
  }
};

struct Relu {
  static constexpr int kCode = HEED_OP_RELU;
  static constexpr Needs kNeeds{"RELU", 1, kNumbers, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Floats<K> of(Floats<K> x) {
    return x < 0 ? Floats<K>{} : x;
  }
  template <class K>
  static HEED_INLINE Ints<K> of(Ints<K> x) {
    return x & (x > 0);
  }
  static Bounds bounds(Bounds a) {
    return growing(a, [](double x) { return higher(x, 0); });
  }
};

struct Square {
  static constexpr int kCode = HEED_OP_SQUARE;
  static constexpr Needs kNeeds{"SQUARE", 1, kNumbers, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Floats<K> of(Floats<K> x) {
    return x * x;
  }
  template <class K>
  static HEED_INLINE Ints<K> of(Ints<K> x) {
    return (Ints<K>)((Unsigned<K>)x * (Unsigned<K>)x);
  }
  static Bounds bounds(Bounds a) {
    const Bounds size = Abs::bounds(a);
    return {size.least * size.least, size.most * size.most, a.maybe_nan};
  }
};

// A function of one float: `function` for vectors of either type, by overloads.
#define HEED_FLOAT_FUNCTION(Name, NAME, expression)                    \
  struct Name : NoBounds {                                             \
    static constexpr int kCode = HEED_OP_##NAME;                       \
    static constexpr Needs kNeeds{#NAME, 1, kFloats, Needs::kAsInput}; \
    template <class K>                                                 \
    static HEED_INLINE Floats<K> of(Floats<K> x) {                     \
      typedef typename K::Real Real;                                   \
      (void)Real(0);                                                   \
      return expression;                                               \
    }                                                                  \
  };
HEED_FLOAT_FUNCTION(Sqrt, SQRT, square_root<Real>(x))
HEED_FLOAT_FUNCTION(Rsqrt, RSQRT, 1 / square_root<Real>(x))
HEED_FLOAT_FUNCTION(Exp, EXP, exp_of(x))
HEED_FLOAT_FUNCTION(Expm1, EXPM1, expm1_of(x))
HEED_FLOAT_FUNCTION(Log, LOG, log_of(x))
HEED_FLOAT_FUNCTION(Log1p, LOG1P, log1p_of(x))
HEED_FLOAT_FUNCTION(Log2, LOG2, log_of(x) * kLog2E<Real>)
HEED_FLOAT_FUNCTION(Tanh, TANH, tanh<Real>(x))
HEED_FLOAT_FUNCTION(Sigmoid, SIGMOID, 1 / (1 + exp_of(-x)))
HEED_FLOAT_FUNCTION(Softplus, SOFTPLUS, log1p_of(exp_of(-absolute<Real>(x))) + (x < 0 ? Floats<K>{} : x))
HEED_FLOAT_FUNCTION(Sin, SIN, sine_of<false>(x))
HEED_FLOAT_FUNCTION(Cos, COS, sine_of<true>(x))
HEED_FLOAT_FUNCTION(Erf, ERF, erf_of<Real>(x))
HEED_FLOAT_FUNCTION(Reciprocal, RECIPROCAL, 1 / x)
#undef HEED_FLOAT_FUNCTION

struct Floor {
  static constexpr int kCode = HEED_OP_FLOOR;
  static constexpr Needs kNeeds{"FLOOR", 1, kFloats, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Floats<K> of(Floats<K> x) {
    return round_down<typename K::Real>(x);
  }
  static Bounds bounds(Bounds a) {
    return growing(a, [](double x) { return __builtin_floor(x); });
  }
};

struct Ceil {
  static constexpr int kCode = HEED_OP_CEIL;
  static constexpr Needs kNeeds{"CEIL", 1, kFloats, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Floats<K> of(Floats<K> x) {
    return round_up_to_integer<typename K::Real>(x);
  }
  static Bounds bounds(Bounds a) {
    return growing(a, [](double x) { return __builtin_ceil(x); });
  }
};

struct Round {
  static constexpr int kCode = HEED_OP_ROUND;
  static constexpr Needs kNeeds{"ROUND", 1, kFloats, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Floats<K> of(Floats<K> x) {
    return round_to_integer<typename K::Real>(x);
  }
  static Bounds bounds(Bounds a) {
    return growing(a, [](double x) { return __builtin_rint(x); });
  }
};

struct Not {
  static constexpr int kCode = HEED_OP_NOT;
  static constexpr Needs kNeeds{"NOT", 1, kBits, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Ints<K> of(Ints<K> x) {
    return ~x;
  }
  static Bounds bounds(Bounds a, int type) {
    const double sum = type == HEED_BOOL ? 1 : -1;
    return {sum - a.most, sum - a.least, false};
  }
};

struct ToFloat {
  static constexpr int kCode = HEED_OP_TO_FLOAT;
  static constexpr Needs kNeeds{"TO_FLOAT", 1, kAnyType, Needs::kFloat};
  template <class K>
  static HEED_INLINE Floats<K> of(Floats<K> x) {
    return x;
  }
  template <class K>
  static HEED_INLINE Floats<K> of(Ints<K> x) {
    return __builtin_convertvector(x, Floats<K>);
  }
  static Bounds bounds(Bounds a) { return a; }
};

struct ToInt {
  static constexpr int kCode = HEED_OP_TO_INT;
  static constexpr Needs kNeeds{"TO_INT", 1, kAnyType, Needs::kInt};
  template <class K>
  static HEED_INLINE Ints<K> of(Floats<K> x) {
    typedef typename K::Real Real;
    constexpr Real kMost = sizeof(Real) == 4 ? Real(2147483520.0) : Real(2147483647.0), kLeast = Real(-2147483648.0);
    const Floats<K> number = x == x ? x : Floats<K>{};
    const Floats<K> bounded = number < kLeast ? broadcast(kLeast) : (number > kMost ? broadcast(kMost) : number);
    const Ints<K> whole = __builtin_convertvector(bounded, Ints<K>);
    return K::choose(K::boolean(x >= Real(2147483647.0)), Ints<K>{} + 2147483647, whole);
  }
  template <class K>
  static HEED_INLINE Ints<K> of(Ints<K> x) {
    return x;
  }
  static Bounds bounds(Bounds a) {
    if (a.maybe_nan) return unknown(HEED_INT);
    const auto whole = [](double x) { return lower(higher(__builtin_trunc(x), kLeastInt), kMostInt); };
    return growing(a, whole);
  }
};

struct ToBool {
  static constexpr int kCode = HEED_OP_TO_BOOL;
  static constexpr Needs kNeeds{"TO_BOOL", 1, kAnyType, Needs::kBool};
  template <class K>
  static HEED_INLINE Ints<K> of(Floats<K> x) {
    return K::boolean(x != 0);
  }
  template <class K>
  static HEED_INLINE Ints<K> of(Ints<K> x) {
    return x != 0;
  }
  static Bounds bounds(Bounds a) { return boolean(a.is(0), a.least > 0 || a.most < 0); }
};

struct IsNan : NoBounds {
  static constexpr int kCode = HEED_OP_ISNAN;
  static constexpr Needs kNeeds{"ISNAN", 1, kFloats, Needs::kBool};
  template <class K>
  static HEED_INLINE Ints<K> of(Floats<K> x) {
    return K::boolean(x != x);
  }
};

struct IsInf : NoBounds {
  static constexpr int kCode = HEED_OP_ISINF;
  static constexpr Needs kNeeds{"ISINF", 1, kFloats, Needs::kBool};
  template <class K>
  static HEED_INLINE Ints<K> of(Floats<K> x) {
    return K::boolean(absolute<typename K::Real>(x) == kInfinity<typename K::Real>);
  }
};

struct IsFinite : NoBounds {
  static constexpr int kCode = HEED_OP_ISFINITE;
  static constexpr Needs kNeeds{"ISFINITE", 1, kFloats, Needs::kBool};
  template <class K>
  static HEED_INLINE Ints<K> of(Floats<K> x) {
    return K::boolean(x - x == 0);
  }
};

// ---- Of two operands

struct Add {
  static constexpr int kCode = HEED_OP_ADD;
  static constexpr Needs kNeeds{"ADD", 2, kNumbers, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Floats<K> of(Floats<K> a, Floats<K> b) {
    return a + b;
  }
  template <class K>
  static HEED_INLINE Ints<K> of(Ints<K> a, Ints<K> b) {
    return (Ints<K>)((Unsigned<K>)a + (Unsigned<K>)b);
  }
  static Bounds bounds(Bounds a, Bounds b) {
    return at_ends(a, b, [](double x, double y) { return x + y; });
  }
};

struct Sub {
  static constexpr int kCode = HEED_OP_SUB;
  static constexpr Needs kNeeds{"SUB", 2, kNumbers, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Floats<K> of(Floats<K> a, Floats<K> b) {
    return a - b;
  }
  template <class K>
  static HEED_INLINE Ints<K> of(Ints<K> a, Ints<K> b) {
    return (Ints<K>)((Unsigned<K>)a - (Unsigned<K>)b);
  }
  static Bounds bounds(Bounds a, Bounds b) {
    return at_ends(a, b, [](double x, double y) { return x - y; });
  }
};

struct Mul {
  static constexpr int kCode = HEED_OP_MUL;
  static constexpr Needs kNeeds{"MUL", 2, kNumbers, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Floats<K> of(Floats<K> a, Floats<K> b) {
    return a * b;
  }
  template <class K>
  static HEED_INLINE Ints<K> of(Ints<K> a, Ints<K> b) {
    return (Ints<K>)((Unsigned<K>)a * (Unsigned<K>)b);
  }
  static Bounds bounds(Bounds a, Bounds b) {
    return at_ends(a, b, [](double x, double y) { return x * y; });
  }
};

struct Div : NoBounds {
  static constexpr int kCode = HEED_OP_DIV;
  static constexpr Needs kNeeds{"DIV", 2, kFloats, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Floats<K> of(Floats<K> a, Floats<K> b) {
    return a / b;
  }
};

struct Pow : NoBounds {
  static constexpr int kCode = HEED_OP_POW;
  static constexpr Needs kNeeds{"POW", 2, kNumbers, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Floats<K> of(Floats<K> a, Floats<K> b) {
    return power_of<typename K::Real>(a, b);
  }
  // Of a negative power what is left of 1 / a^-b without its fraction; of 0: 0.
  template <class K>
  static HEED_INLINE Ints<K> of(Ints<K> a, Ints<K> b) {
    Ints<K> result{};
    for (int lane = 0; lane < kLanes<typename K::Real>; ++lane) {
      const int32_t base = a[lane], power = b[lane];
      uint32_t product = 1, square = static_cast<uint32_t>(base);
      for (uint32_t rest = power > 0 ? static_cast<uint32_t>(power) : 0; rest; rest >>= 1, square *= square)
        if (rest & 1) product *= square;
      if (power < 0) product = base == 1 ? 1u : base == -1 ? (power & 1 ? ~0u : 1u) : 0u;
      result[lane] = static_cast<int32_t>(product);
    }
    return result;
  }
};

struct Min {
  static constexpr int kCode = HEED_OP_MIN;
  static constexpr Needs kNeeds{"MIN", 2, kNumbers, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Floats<K> of(Floats<K> a, Floats<K> b) {
    return a < b ? a : (a == a ? b : a);
  }
  template <class K>
  static HEED_INLINE Ints<K> of(Ints<K> a, Ints<K> b) {
    return a < b ? a : b;
  }
  static Bounds bounds(Bounds a, Bounds b) {
    return {lower(a.least, b.least), lower(a.most, b.most), a.maybe_nan || b.maybe_nan};
  }
};

struct Max {
  static constexpr int kCode = HEED_OP_MAX;
  static constexpr Needs kNeeds{"MAX", 2, kNumbers, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Floats<K> of(Floats<K> a, Floats<K> b) {
    return a > b ? a : (a == a ? b : a);
  }
  template <class K>
  static HEED_INLINE Ints<K> of(Ints<K> a, Ints<K> b) {
    return a > b ? a : b;
  }
  static Bounds bounds(Bounds a, Bounds b) {
    return {higher(a.least, b.least), higher(a.most, b.most), a.maybe_nan || b.maybe_nan};
  }
};

// Divisions of integers, which must not trap: by 0 they give 0, and kLeastInt / -1 wraps around.
struct Division {
  int32_t quotient, rest;

  static HEED_INLINE Division of(int32_t a, int32_t b) {
    if (b == 0) return {0, 0};
    if (b == -1) return {static_cast<int32_t>(0u - static_cast<uint32_t>(a)), 0};
    const int32_t quotient = a / b, rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? Division{quotient - 1, rest + b} : Division{quotient, rest};
  }
};

struct FloorDiv {
  static constexpr int kCode = HEED_OP_FLOORDIV;
  static constexpr Needs kNeeds{"FLOORDIV", 2, kNumbers, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Floats<K> of(Floats<K> a, Floats<K> b) {
    return round_down<typename K::Real>(a / b);
  }
  template <class K>
  static HEED_INLINE Ints<K> of(Ints<K> a, Ints<K> b) {
    for (int lane = 0; lane < kLanes<typename K::Real>; ++lane) a[lane] = Division::of(a[lane], b[lane]).quotient;
    return a;
  }
  static Bounds bounds(Bounds a, Bounds b, int type) {
    if (!(b.least > 0) || type != HEED_INT) return unknown(type);
    return at_ends(a, b, [](double x, double y) { return __builtin_floor(x / y); });
  }
};

struct Mod {
  static constexpr int kCode = HEED_OP_MOD;
  static constexpr Needs kNeeds{"MOD", 2, kNumbers, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Floats<K> of(Floats<K> a, Floats<K> b) {
    return remainder_of<typename K::Real>(a, b);
  }
  template <class K>
  static HEED_INLINE Ints<K> of(Ints<K> a, Ints<K> b) {
    for (int lane = 0; lane < kLanes<typename K::Real>; ++lane) a[lane] = Division::of(a[lane], b[lane]).rest;
    return a;
  }
  static Bounds bounds(Bounds a, Bounds b, int type) {
    if (!(b.least > 0) || type != HEED_INT) return unknown(type);
    const double times = __builtin_floor(a.least / b.least);
    if (b.least == b.most && times == __builtin_floor(a.most / b.least))
      return {a.least - times * b.least, a.most - times * b.least, false};
    return {0, b.most - 1, false};
  }
};

struct And {
  static constexpr int kCode = HEED_OP_AND;
  static constexpr Needs kNeeds{"AND", 2, kBits, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Ints<K> of(Ints<K> a, Ints<K> b) {
    return a & b;
  }
  static Bounds bounds(Bounds a, Bounds b, int type) {
    if (type == HEED_BOOL) return {lower(a.least, b.least), lower(a.most, b.most), false};
    return a.least >= 0 && b.least >= 0 ? Bounds{0, lower(a.most, b.most), false} : unknown(type);
  }
};

struct Or {
  static constexpr int kCode = HEED_OP_OR;
  static constexpr Needs kNeeds{"OR", 2, kBits, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Ints<K> of(Ints<K> a, Ints<K> b) {
    return a | b;
  }
  static Bounds bounds(Bounds a, Bounds b, int type) {
    return type == HEED_BOOL ? Bounds{higher(a.least, b.least), higher(a.most, b.most), false} : unknown(type);
  }
};

struct Xor {
  static constexpr int kCode = HEED_OP_XOR;
  static constexpr Needs kNeeds{"XOR", 2, kBits, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Ints<K> of(Ints<K> a, Ints<K> b) {
    return a ^ b;
  }
  static Bounds bounds(Bounds a, Bounds b, int type) {
    const bool known = type == HEED_BOOL && a.least == a.most && b.least == b.most;
    return known ? boolean(a.least == b.least, a.least != b.least) : unknown(type);
  }
};

struct Shl : NoBounds {
  static constexpr int kCode = HEED_OP_SHL;
  static constexpr Needs kNeeds{"SHL", 2, kInts, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Ints<K> of(Ints<K> a, Ints<K> b) {
    return (Ints<K>)((Unsigned<K>)a << ((Unsigned<K>)b & 31u));
  }
};

struct Shr {
  static constexpr int kCode = HEED_OP_SHR;
  static constexpr Needs kNeeds{"SHR", 2, kInts, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Ints<K> of(Ints<K> a, Ints<K> b) {
    return a >> (b & 31);
  }
  static Bounds bounds(Bounds a, Bounds b, int type) {
    if (b.least != b.most || b.least < 0 || b.least > 31) return unknown(type);
    const double unit = static_cast<double>(int64_t{1} << static_cast<int>(b.least));
    return growing(a, [unit](double x) { return __builtin_floor(x / unit); });
  }
};

#define HEED_COMPARISON(Name, NAME, inputs, operator_, bounds_)    \
  struct Name {                                                    \
    static constexpr int kCode = HEED_OP_##NAME;                   \
    static constexpr Needs kNeeds{#NAME, 2, inputs, Needs::kBool}; \
    template <class K>                                             \
    static HEED_INLINE Ints<K> of(Floats<K> a, Floats<K> b) {      \
      return K::boolean(a operator_ b);                            \
    }                                                              \
    template <class K>                                             \
    static HEED_INLINE Ints<K> of(Ints<K> a, Ints<K> b) {          \
      return a operator_ b;                                        \
    }                                                              \
    static Bounds bounds(Bounds a, Bounds b) { return bounds_; }   \
  };
// Whether a < b, or a <= b: NaN is neither.
inline Bounds is_less(Bounds a, Bounds b) {
  return boolean(a.least >= b.most, a.most < b.least && !a.maybe_nan && !b.maybe_nan);
}
inline Bounds is_at_most(Bounds a, Bounds b) {
  return boolean(a.least > b.most, a.most <= b.least && !a.maybe_nan && !b.maybe_nan);
}
inline Bounds is_equal(Bounds a, Bounds b) {
  const bool alike = a.is(a.least) && b.is(a.least);
  return boolean(a.most < b.least || b.most < a.least, alike);
}
HEED_COMPARISON(Eq, EQ, kAnyType, ==, is_equal(a, b))
HEED_COMPARISON(Ne, NE, kAnyType, !=, Not::bounds(is_equal(a, b), HEED_BOOL))
HEED_COMPARISON(Lt, LT, kNumbers, <, is_less(a, b))
HEED_COMPARISON(Le, LE, kNumbers, <=, is_at_most(a, b))
HEED_COMPARISON(Gt, GT, kNumbers, >, is_less(b, a))
HEED_COMPARISON(Ge, GE, kNumbers, >=, is_at_most(b, a))
#undef HEED_COMPARISON

// ---- Of three operands

struct Where {
  static constexpr int kCode = HEED_OP_WHERE;
  static constexpr Needs kNeeds{"WHERE", 3, kAnyType, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Floats<K> of(Ints<K> condition, Floats<K> a, Floats<K> b) {
    return K::choose(condition, a, b);
  }
  template <class K>
  static HEED_INLINE Ints<K> of(Ints<K> condition, Ints<K> a, Ints<K> b) {
    return K::choose(condition, a, b);
  }
  static Bounds bounds(Bounds condition, Bounds a, Bounds b) {
    if (condition.is(1)) return a;
    if (condition.is(0)) return b;
    return {lower(a.least, b.least), higher(a.most, b.most), a.maybe_nan || b.maybe_nan};
  }
};

// ---- Two in one, see plan.h

struct AbsDifference {
  static constexpr int kCode = kAbsDifference;
  static constexpr Needs kNeeds{"", 2, kFloats, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Floats<K> of(Floats<K> a, Floats<K> b) {
    return absolute<typename K::Real>(a - b);
  }
  static Bounds bounds(Bounds a, Bounds b) { return Abs::bounds(Sub::bounds(a, b)); }
};

// Nothing is known of a score.
struct ScoreAndProduct {
  static constexpr int kCode = kScoreAndProduct;
  static constexpr Needs kNeeds{"", 3, kFloats, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Floats<K> of(Floats<K> a, Floats<K> b, Floats<K> c) {
    return c + a * b;
  }
  static Bounds bounds(int type) { return unknown(type); }
};

struct ScoreLessProduct {
  static constexpr int kCode = kScoreLessProduct;
  static constexpr Needs kNeeds{"", 3, kFloats, Needs::kAsInput};
  template <class K>
  static HEED_INLINE Floats<K> of(Floats<K> a, Floats<K> b, Floats<K> c) {
    return c - a * b;
  }
  static Bounds bounds(int type) { return unknown(type); }
};

// All operations, and the mapping from a code to its struct.
template <class... All>
struct OperationList {
  // Calls function(Operation{}) for all.
  template <class Function>
  static constexpr void each(const Function& function) {
    (function(All{}), ...);
  }
};
using Operations = OperationList<Neg, Abs, Sign, Sqrt, Rsqrt, Exp, Expm1, Log, Log1p, Log2, Tanh, Sigmoid, Softplus,
                                 Relu, Sin, Cos, Erf, Floor, Ceil, Round, Square, Reciprocal, Add, Sub, Mul, Div, Pow,
                                 Min, Max, FloorDiv, Mod, And, Or, Xor, Not, Shl, Shr, Eq, Ne, Lt, Le, Gt, Ge, Where,
                                 ToFloat, ToInt, ToBool, IsNan, IsInf, IsFinite>;
using TwoInOne = OperationList<AbsDifference, ScoreAndProduct, ScoreLessProduct>;

// What an operation takes; null for what has no operands or is unknown.
inline const OperationNeeds* operation_needs(int32_t code) {
  const OperationNeeds* needs = nullptr;
  Operations::each([&](auto operation) {
    if (operation.kCode == code) needs = &decltype(operation)::kNeeds;
  });
  return needs;
}

}  // namespace HEED_ISA
}  // namespace heed
