// Vectors, and the operations that instruction sets may have instructions for, by the compiler's own vectors. The
// header of an instruction set defines HEED_VECTOR_BYTES, includes this one and derives its struct `Simd` from
// `Portable`.
#pragma once

#include <cstddef>
#include <cstdint>

#define HEED_INLINE inline __attribute__((always_inline))

namespace heed {
namespace HEED_ISA {

// Of float or double: a vector, the result of comparing two of them, and the numbers in it.
template <class Real>
struct Lanes {
  typedef Real Vector __attribute__((vector_size(HEED_VECTOR_BYTES)));
  typedef decltype(Vector{} < Vector{}) Integers;
  typedef decltype(+Integers{}[0]) Integer;
};

template <class Real>
inline constexpr int kLanes = HEED_VECTOR_BYTES / static_cast<int>(sizeof(Real));
template <class Real>
using Vector = typename Lanes<Real>::Vector;
template <class Real>
using Integers = typename Lanes<Real>::Integers;

template <class Real>
inline constexpr Real kInfinity = static_cast<Real>(__builtin_inf());
template <class Real>
inline constexpr Real kNaN = static_cast<Real>(__builtin_nan(""));
template <class Real>
inline constexpr Real kLog2E = static_cast<Real>(1.4426950408889634074);

template <class V, class Number>
HEED_INLINE V load_as(const Number* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof(V));
  return v;
}
template <class Real>
HEED_INLINE Vector<Real> load(const Real* from) {
  return load_as<Vector<Real>>(from);
}

template <class V, class Real>
HEED_INLINE void store(Real* to, V v) {
  __builtin_memcpy(to, &v, sizeof(V));
}

// Not 0 + x, which compilers must compute: it is not x for x = -0. x - 0 always is.
template <class Real>
HEED_INLINE Vector<Real> broadcast(Real x) {
  return x - Vector<Real>{};
}

// 0, 1, 2, ...
template <class Real>
HEED_INLINE Vector<Real> lane_numbers() {
  Vector<Real> numbers{};
  for (int lane = 0; lane < kLanes<Real>; ++lane) numbers[lane] = static_cast<Real>(lane);
  return numbers;
}

// The larger of two; `b`, a number, where `a` is not a number.
template <class V>
HEED_INLINE V larger(V a, V b) {
  return a > b ? a : b;
}

// A comparison that holds in the lanes whose bits are set.
template <class Real>
HEED_INLINE Integers<Real> lanes_of(uint64_t bits) {
  Integers<Real> of_lane{};
  for (int lane = 0; lane < kLanes<Real>; ++lane) of_lane[lane] = typename Lanes<Real>::Integer(1) << lane;
  return (of_lane & static_cast<typename Lanes<Real>::Integer>(bits)) != 0;
}

typedef uint16_t Halves __attribute__((vector_size(HEED_VECTOR_BYTES / 2)));
typedef uint32_t Words __attribute__((vector_size(HEED_VECTOR_BYTES)));

HEED_INLINE Words load_halves(const void* from) {
  Halves halves;
  __builtin_memcpy(&halves, from, sizeof(Halves));
  return __builtin_convertvector(halves, Words);
}
HEED_INLINE void store_halves(void* to, Words words) {
  const Halves halves = __builtin_convertvector(words, Halves);
  __builtin_memcpy(to, &halves, sizeof(Halves));
}

// The lowest n bits.
HEED_INLINE uint64_t bits_below(int64_t n) { return n <= 0 ? 0 : n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

// Horner's scheme, from the coefficient of the highest power down.
template <class V, class Real, class... Lower>
HEED_INLINE V polynomial(V x, Real leading, Lower... lower) {
  V sum = broadcast(leading);
  ((sum = sum * x + lower), ...);
  return sum;
}

// Adding 1.5 * 2^23 rounds to the nearest integer, which is then in the lowest bits.
inline constexpr float kRounder = 12582912.0f;

// The same plus the bias of exponents: the lowest bits are then those of the exponent of 2^n.
inline constexpr float kExponentRounder = kRounder + 127;

// x * 2^n, given kExponentRounder + n, for n from -127, where it is 0, to 128, where it is infinite.
HEED_INLINE Vector<float> scale_by_power(Vector<float> x, Vector<float> rounded) {
  return x * (Vector<float>)((Words)rounded << 23);
}

struct Portable {
  static constexpr int kRegisters = 16;
  static constexpr bool kByLane = false;  // whether `add_product` is one instruction

  // sum + x * from[kLane]
  template <int kLane, class V>
  static HEED_INLINE V add_product(V sum, V x, V from) {
    return sum + x * from[kLane];
  }

  // Whether a comparison holds in any lane.
  template <class I>
  static HEED_INLINE bool any(I comparison) {
    int64_t words[sizeof(I) / 8], all = 0;
    __builtin_memcpy(words, &comparison, sizeof(I));
    for (int64_t word : words) all |= word;
    return all != 0;
  }

  // A bit for each lane of a comparison, the lowest for the first lane.
  static HEED_INLINE uint64_t bits_of(Integers<float> comparison) {
    uint64_t bits = 0;
    for (int lane = 0; lane < kLanes<float>; ++lane) bits |= static_cast<uint64_t>(comparison[lane] & 1) << lane;
    return bits;
  }

  // A bit for each of up to 64 bytes that is 0.
  static inline uint64_t zero_bytes(const uint8_t* from, int count) {
    uint64_t zero = 0;
    for (int y = 0; y < count; ++y) zero |= static_cast<uint64_t>(from[y] == 0) << y;
    return zero;
  }

  // 2^x for x < 128.5, infinite from 127.5 on; exactly 0 below 2^-126 where denormals are flushed (they would slow
  // every product they meet), NaN for NaN.
  static HEED_INLINE Vector<float> exp2(Vector<float> x) {
    const Vector<float> y = -127.0f > x ? broadcast(-127.0f) : x, rounded = y + kExponentRounder;
    const Vector<float> f = y - (rounded - kExponentRounder);
    // Minimax polynomial of 2^f on [-1/2, 1/2], exact at 0: 9e-8, as much as its roundings.
    const auto p =
        polynomial(f, 1.326472720e-3f, 9.671512640e-3f, 5.550733743e-2f, 2.402224209e-1f, 6.931469776e-1f, 1.0f);
    return scale_by_power(p, rounded);
  }
  // The same for weights that are rounded to bfloat16.
  static HEED_INLINE Vector<float> short_exp2(Vector<float> x) { return exp2(x); }

  // 1 / x for 2^-125 < |x| < 2^125.
  static HEED_INLINE Vector<float> reciprocal(Vector<float> x) { return 1.0f / x; }

  static HEED_INLINE Vector<float> load_bfloat16(const void* from) { return (Vector<float>)(load_halves(from) << 16); }

  static HEED_INLINE Vector<float> load_float16(const void* from) {
    const Words x = load_halves(from), sign = (x & 0x8000u) << 16, rest = x & 0x7fffu;
    // Denormal numbers are counted in steps of 2^-24, as threads may flush denormal floats to zero.
    const Vector<float> denormal = __builtin_convertvector(rest, Vector<float>) * 5.9604644775390625e-8f;
    const Words special = 0x7f800000u | (rest & 0x3ffu) << 13, normal = (rest << 13) + 0x38000000u;
    return (Vector<float>)(sign | (rest >= 0x7c00u ? special : rest < 0x400u ? (Words)denormal : normal));
  }

  // Rounds to the nearest, ties to even.
  static HEED_INLINE void store_float16(void* to, Vector<float> x) {
    const Words bits = (Words)x, sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    // Adding 1/2 lets the float adder round at the right place.
    const Words denormal = (Words)((Vector<float>)magnitude + 0.5f) - 0x3f000000u;
    const Words normal = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    const Words finite = magnitude < 0x38800000u ? denormal : normal;
    const Words infinite = magnitude > 0x7f800000u ? Words{} + 0x7e00u : Words{} + 0x7c00u;
    store_halves(to, sign | (magnitude >= 0x477ff000u ? infinite : finite));
  }

  // Stores the lowest byte of each word.
  static HEED_INLINE void store_bytes(void* to, Words words) {
    typedef uint8_t Bytes __attribute__((vector_size(kLanes<float>)));
    const Bytes bytes = __builtin_convertvector(words, Bytes);
    __builtin_memcpy(to, &bytes, sizeof(bytes));
  }
};

// Sums of products of whole numbers, of which `correction` is added once.
struct WholeSums {
  static HEED_INLINE Integers<float> begin(int32_t correction) { return Integers<float>{} + correction; }
  static HEED_INLINE Integers<float> end(Integers<float> sums, int32_t) { return sums; }
};

// Products of bytes are not portable. A header beside this one may define
//   DotBytes     products that some machines have, with a macro HEED_DOT_BYTES, the attribute of functions with them
//   PairBytes    products that all machines have, with an empty macro HEED_PAIR_BYTES; PairNibbles, of weights in
//                [0, 15], up to 32 of them; and PairWords, of 16 bits
// They derive from WholeSums, and have of these members:
//   supported()  whether this machine has them (of DotBytes)
//   kOffset      what is added to bytes of weights, from -128 to 127 (of DotBytes and PairBytes)
//   add_products(sums, x, weights)  sums + four products of bytes each (PairWords: two, of 16 bits)

}  // namespace HEED_ISA
}  // namespace heed
