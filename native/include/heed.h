// The C interface of heed's kernels: exact attention on the CPU, forward and backward, in memory that grows with T + S,
// and fused row-wise ops. Every adapter (TensorFlow's ops, tests, other frameworks) fills the structs of this file and
// calls these functions; nothing else of the library is visible.
//
// Letters: B batch, T query length, S key length, N query heads, K key/value heads, H head dim of query and key,
// V head dim of value, U units of additive attention.
//
// Meaning, for each batch entry b, head n (whose key/value head is n / (N / K)), query i and key j:
//   score   = scale * q_i . k_j, then soft_cap * tanh(score / soft_cap), then the program, then + bias,
//             then - slope_n * |i + a - j|
//             additive attention: sum_u score_vector_u * tanh(q_iu + k_ju + unit_bias_u)
//   weight  = softmax over the keys that the mask shows to i, with dropout after it
//   output  = sum over j of weight * v_j
// A query that sees no key gives output 0, log-sum-exp -inf and gradient 0. Masked keys and values never reach a
// result, not even NaN. Scores, softmax and sums are computed in float (double for HEED_FLOAT64): the "compute type"
// below.
//
// Zero every struct before filling it: 0 means "none" for everything optional.
//
// Memory belongs to the caller: the library keeps no pointer after a call, writes only to results, and frees nothing of
// the caller's. Results must not overlap with inputs unless their function allows it.
//
// Errors: functions that return a const char* return NULL, or an error message, which is valid until the same thread
// calls the library again. A refused call writes nothing; a call that runs out of memory may have written parts of its
// results. Nothing aborts, and no exception leaves the library.
//
// Threads: any number of threads may call at once. A call uses up to `threads` of them, itself included, from a pool
// that all calls share (0: as many as heed_available_threads(); less counts as 1, more than 256 as 256). Results depend
// neither on that number nor on other calls: the same call gives the same bits with the same instruction set. A child
// after fork() may call, too.
#ifndef HEED_H
#define HEED_H

#include <stdint.h>

// The version of this interface, raised whenever a struct, a function or a meaning changes. A program fits the library
// that it runs with if heed_version() == HEED_VERSION.
#define HEED_VERSION 8

// The dtype of query, key, value, output and their gradients.
enum HeedDtype { HEED_FLOAT32 = 0, HEED_FLOAT64 = 1, HEED_BFLOAT16 = 2, HEED_FLOAT16 = 3 };

// How scores are computed.
enum HeedScore { HEED_DOT_PRODUCT = 0, HEED_ADDITIVE = 1 };

// A bias of this or less hides its key, as -inf does.
#define HEED_MASK_VALUE (-1e30)

// Windows that reach this far or farther are unlimited.
#define HEED_NO_LIMIT (INT64_C(1) << 30)

// Mask rules; a query sees a key if all rules allow it. With a = align[b], query i is at key position i + a:
//   HEED_WINDOW    i + a - left <= j <= i + a + right    left, right >= 0; HEED_NO_LIMIT or more: unlimited
//   HEED_PREFIX    j < first[b] or j <= i + a
//   HEED_LENGTHS   j < first[b] and, if there is a second array, i < second[b]
//   HEED_SEGMENTS  first[b][i] == second[b][j]
//   HEED_DENSE     dense[b][n][i][j] != 0
//   HEED_DILATED   (i + a - j) mod left == 0             left >= 1
enum HeedMaskKind {
  HEED_WINDOW = 0,
  HEED_PREFIX = 1,
  HEED_LENGTHS = 2,
  HEED_SEGMENTS = 3,
  HEED_DENSE = 4,
  HEED_DILATED = 5
};

#define HEED_MAX_RULES 8

// A (B, length, heads, features) array. Features are contiguous; strides count numbers, not bytes, and may be anything
// within the caller's memory (0 repeats; heads-first and length-first layouts are both read in place). `data` may be
// NULL only if the array is empty.
typedef struct HeedTensor {
  void* data;
  int64_t batch_stride, row_stride, head_stride;
} HeedTensor;

// An array that broadcasts to (B, N, T, S). Strides count elements; that of an axis that broadcasts is 0.
typedef struct HeedScores {
  const void* data;  // NULL: none
  int64_t shape[4];  // each 1, or that of (B, N, T, S)
  int64_t stride[4];
} HeedScores;

// Contiguous (rows, length) integers: a row for each batch entry, or one for all.
typedef struct HeedIntegers {
  const int32_t* data;  // NULL: none
  int64_t rows, length;
} HeedIntegers;

// A mask rule. Fields that its kind does not use are ignored.
typedef struct HeedMaskRule {
  int32_t kind;  // HeedMaskKind
  int64_t left, right;
  HeedIntegers align;          // (B or 1, 1); none: 0
  HeedIntegers first, second;  // (B or 1, 1); of segments (B or 1, T) and (B or 1, S)
  HeedScores dense;            // bytes
} HeedMaskRule;

// The operations of programs, on operands a, b, c. Floats are computed in the compute type; integers are int32 and wrap
// around. Results for arguments outside of a function's domain are IEEE's; denormal numbers count as 0.
enum HeedOpcode {
  HEED_OP_CONSTANT = 0,  // `constant`: for int an int32, for bool 0 or 1
  HEED_OP_SCORE,         // scaled, after the soft cap
  HEED_OP_BATCH,         // b, n (the query head), i and j
  HEED_OP_HEAD,
  HEED_OP_QUERY,
  HEED_OP_KEY,
  HEED_OP_LOAD,      // the number at index a of captured array `capture`; beyond its ends the nearest one
  HEED_OP_UPSTREAM,  // the gradient of the modified score, in derivatives only
  // Of one float
  HEED_OP_NEG,  // or int, as the next two
  HEED_OP_ABS,
  HEED_OP_SIGN,
  HEED_OP_SQRT,
  HEED_OP_RSQRT,
  HEED_OP_EXP,
  HEED_OP_EXPM1,
  HEED_OP_LOG,
  HEED_OP_LOG1P,
  HEED_OP_LOG2,
  HEED_OP_TANH,
  HEED_OP_SIGMOID,
  HEED_OP_SOFTPLUS,
  HEED_OP_RELU,  // or int; NaN stays NaN
  HEED_OP_SIN,
  HEED_OP_COS,
  HEED_OP_ERF,
  HEED_OP_FLOOR,
  HEED_OP_CEIL,
  HEED_OP_ROUND,   // halves to even
  HEED_OP_SQUARE,  // or int
  HEED_OP_RECIPROCAL,
  // Of two floats, or two ints
  HEED_OP_ADD,
  HEED_OP_SUB,
  HEED_OP_MUL,
  HEED_OP_DIV,  // floats only
  HEED_OP_POW,
  HEED_OP_MIN,  // NaN if either is
  HEED_OP_MAX,
  HEED_OP_FLOORDIV,  // of ints by 0: 0
  HEED_OP_MOD,       // with the sign of b; of ints by 0: 0
  // Of bools or ints
  HEED_OP_AND,
  HEED_OP_OR,
  HEED_OP_XOR,
  HEED_OP_NOT,
  HEED_OP_SHL,  // ints only; by b modulo 32
  HEED_OP_SHR,
  // Of two of one type, to bool
  HEED_OP_EQ,
  HEED_OP_NE,
  HEED_OP_LT,
  HEED_OP_LE,
  HEED_OP_GT,
  HEED_OP_GE,
  HEED_OP_WHERE,     // a ? b : c
  HEED_OP_TO_FLOAT,  // of any type
  HEED_OP_TO_INT,    // truncates and saturates; NaN: 0
  HEED_OP_TO_BOOL,   // whether it is not 0
  HEED_OP_ISNAN,
  HEED_OP_ISINF,
  HEED_OP_ISFINITE
};

// The types of a program's values and captured arrays. Arrays hold the compute type, int32, or bytes that are 0 or not.
enum HeedType { HEED_FLOAT = 0, HEED_INT = 1, HEED_BOOL = 2 };

// One value of a program. Values are numbered in the order of their instructions; operands are earlier ones.
typedef struct HeedInstruction {
  uint16_t opcode;  // HeedOpcode
  uint8_t type;     // HeedType of the value
  uint8_t capture;
  int32_t a, b, c;
  double constant;
} HeedInstruction;

typedef struct HeedInstructions {
  const HeedInstruction* data;
  int32_t count;  // at most HEED_MAX_INSTRUCTIONS
} HeedInstructions;

// A captured array: contiguous.
typedef struct HeedCapture {
  const void* data;
  int64_t size;
  int32_t type;  // HeedType
} HeedCapture;

// Value `gradient` of a derivative is added to index `index`, an int value of it, of the gradient of a captured array.
typedef struct HeedScatter {
  int32_t capture, index, gradient;
} HeedScatter;

#define HEED_MAX_INSTRUCTIONS 256
#define HEED_MAX_CAPTURES 16
#define HEED_MAX_SCATTERS 64

// User-defined functions of a score and its indices. A modified score of HEED_MASK_VALUE or less hides its key, as a
// bias does; one that is NaN makes the results of its query NaN.
typedef struct HeedProgram {
  HeedInstructions forward;
  int32_t score;  // the value that replaces the score; -1: none
  int32_t keep;   // whether the query sees the key, a bool value that no score enters; -1: always
  int32_t capture_count;
  const HeedCapture* captures;
  // The derivative for the backward pass: the gradient of the score, -1 for 0, and those of captured arrays. What it
  // needs of the forward pass it computes itself. Pairs whose upstream gradient is 0 add nothing, not even NaN.
  HeedInstructions derivative;
  int32_t score_gradient;
  int32_t scatter_count;
  const HeedScatter* scatters;
} HeedProgram;

// How a dot product becomes a score; of additive attention {1}. Numbers of a score are doubles, and stand here alone:
// callers that hand on scores copy the struct.
typedef struct HeedScoring {
  double scale;     // usually 1/sqrt(H), at most 1e30 in magnitude (but for HEED_FLOAT64)
  double soft_cap;  // 0: none. Else in [1e-30, 1e30], but for HEED_FLOAT64
} HeedScoring;

// An attention and its inputs, for all functions below.
typedef struct HeedAttention {
  int32_t score;                     // HeedScore
  int32_t dtype;                     // HeedDtype
  int64_t batch, heads, kv_heads;    // B, N, K, each in [0, 2^31]; K divides N. Additive attention: N = K = 1
  int64_t query_length, key_length;  // T, S in [0, 2^31]
  int64_t head_dim, value_dim;       // H (U of additive attention) and V, in [1, 65536]
  HeedTensor query, key, value;      // (B,T,N,H), (B,S,K,H), (B,S,K,V)
  HeedScoring scoring;
  HeedScores bias;                       // of the scores, in the compute type
  const void* alibi_slopes;              // (N,) in the compute type, or NULL
  HeedIntegers alibi_align;              // (B or 1, 1): the key position of query 0 for ALiBi; none: 0
  const void *score_vector, *unit_bias;  // (U,) in the compute type, of additive attention only; the bias may be NULL
  double dropout;                        // in [0, 1): rate; kept weights are multiplied by 1 / (1 - dropout)
  uint32_t seed[2];                      // with b, n, i, j decides which weights are dropped
  int32_t rule_count;                    // at most HEED_MAX_RULES
  const HeedMaskRule* rules;
  const HeedProgram* program;  // of dot-product attention, or NULL
} HeedAttention;

// The results of the forward pass. `lse` and `softmax` are contiguous in the compute type.
typedef struct HeedForward {
  HeedTensor output;  // (B,T,N,V)
  void* lse;          // (B,N,T): log-sum-exp of the scores
  // heed_softmax_size numbers, for the backward pass only. First (2,B,N,T): the score that weights are relative to,
  // close to the maximum of the row and in the kernel's units, and the sum of exp(score - that one): 0 for a row
  // without keys, NaN for one that sees non-finite numbers. Then the scores, if they are kept.
  void* softmax;
} HeedForward;

// The inputs and results of the backward pass.
typedef struct HeedBackward {
  HeedTensor output;                                        // (B,T,N,V)
  const void* softmax;                                      // heed_softmax_size numbers
  HeedTensor output_gradient;                               // (B,T,N,V)
  const void* lse_gradient;                                 // (B,N,T) in the compute type, contiguous, or NULL for 0
  HeedTensor query_gradient, key_gradient, value_gradient;  // shaped like query, key and value
  void* score_vector_gradient;                              // (U,) in the compute type, of additive attention only
  // Contiguous in the compute type. Additive attention: (U,), written by heed_backward even without a bias; else of the
  // shape of `bias`, written by heed_bias_gradient.
  void* bias_gradient;
  // Of the program's captured arrays, in the compute type, NULL where none is wanted; or NULL for none at all.
  void* const* capture_gradients;
} HeedBackward;

// Fused row-wise ops work on a contiguous (R, D) array, row by row. Their compute type is that of attention.
typedef struct HeedRows {
  int32_t dtype;  // HeedDtype
  int64_t count;  // R in [0, 2^31]
  int64_t width;  // D in [1, 2^31], of dropout in [0, 2^31]
} HeedRows;

// HeedCrossEntropy.ignored: ignore no label.
#define HEED_NO_LABEL INT32_MIN

// Softmax cross-entropy with label smoothing, for a row of logits x and its label y:
//   loss = log(sum over c of exp(x_c)) - (1 - smoothing) * x_y - smoothing / D * (sum over c of x_c)
// A row whose label is `ignored` gives loss 0 and gradient 0, whatever its logits are.
typedef struct HeedCrossEntropy {
  HeedRows rows;
  const void* logits;
  const int32_t* labels;  // (R,), each in [0, D) or `ignored`
  int32_t ignored;        // or HEED_NO_LABEL
  double smoothing;       // in [0, 1)
} HeedCrossEntropy;

// Layer normalisation of each row x, or RMS normalisation, with 0 for the mean:
//   y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * scale + offset
typedef struct HeedNormalization {
  HeedRows rows;
  const void* x;
  const void *scale, *offset;  // (D,) in the compute type, or NULL for 1 and 0
  double epsilon;              // above 0; in [1e-30, 1e30] unless HEED_FLOAT64
  int32_t rms;                 // not 0: RMS
} HeedNormalization;

// Dropout plus a residual: y = residual + keep * x / (1 - rate), where `keep` is 0 or 1 as in the dropout of attention
// for query r and key d, in head 0 of batch entry 0. Dropped numbers never reach y, not even NaN. The gradient of x is
// the same call without residual, on that of y.
typedef struct HeedDropout {
  HeedRows rows;
  const void *x, *residual;  // the residual may be NULL
  double rate;               // in [0, 1)
  uint32_t seed[2];
} HeedDropout;

// The product of a few rows x with weights, which are read once, in place: a layer in token-by-token decoding. For each
// group g:
//   y[r][g][n] = sum over k of x[r][k] * weights[g][k][n] + bias[g][n]
typedef struct HeedProduct {
  HeedRows rows;       // of x, (R, K): R in [0, HEED_FEW_ROWS]
  int64_t groups;      // G in [1, 2^31]: 1, or a group for each head whose weights are apart
  int64_t columns;     // N in [1, 2^31]
  int32_t transposed;  // not 0: weights are (G, N, K), else (G, K, N)
  const void *x, *weights;
  const void* bias;  // (G, N), or NULL for 0
} HeedProduct;

// The most rows of a HeedProduct. For more rows, blocking the weights for the caches is faster.
#define HEED_FEW_ROWS 64

// Writes `update`, (B, T, E) bytes, to positions [index, index + T) of a cache, (B, L, E) bytes.
typedef struct HeedCacheWrite {
  int64_t batch, length, written, bytes;  // B, L, T <= L, and E, the bytes of one position
  int64_t index;                          // clamped to [0, L - T]
  const void *cache, *update;
} HeedCacheWrite;

#if defined(__GNUC__)
#define HEED_API __attribute__((visibility("default")))
#else
#define HEED_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// HEED_VERSION of the library.
HEED_API int heed_version(void);

// Returns why an attention cannot be computed, or NULL. The functions below check this, too.
HEED_API const char* heed_check(const HeedAttention* attention);

// The length of `softmax`, in numbers of the compute type, for an attention that passes heed_check: 2 B N T, plus all
// scores of additive attention if they take 64 MiB or less: recomputing them takes a fifth of both passes.
HEED_API int64_t heed_softmax_size(const HeedAttention* attention);

HEED_API const char* heed_forward(const HeedAttention* attention, const HeedForward* results, int threads);

// Writes all gradients except that of a bias of the scores.
HEED_API const char* heed_backward(const HeedAttention* attention, const HeedBackward* pass, int threads);

// Writes only `bias_gradient`, of dot-product attention: a separate pass, because few calls need it.
HEED_API const char* heed_bias_gradient(const HeedAttention* attention, const HeedBackward* pass, int threads);

// Writes the losses, (R,), and `softmax`, (2, R), for the gradient: the largest logit of each row, and the sum of
// exp(logit - that one). Both are in the compute type.
HEED_API const char* heed_cross_entropy(const HeedCrossEntropy* call, void* losses, void* softmax, int threads);

// Writes the gradient of the logits, (R, D) in their dtype. It may take the place of the logits.
HEED_API const char* heed_cross_entropy_gradient(const HeedCrossEntropy* call, const void* softmax,
                                                 const void* losses_gradient, void* logits_gradient, int threads);

// Writes y, (R, D), and `moments`, (2, R) in the compute type, for the gradient: the mean of each row, and 1 /
// sqrt(...).
HEED_API const char* heed_normalization(const HeedNormalization* call, void* y, void* moments, int threads);

// Writes the gradients of x, (R, D), which may take the place of that of y, and of scale and offset, (D,) in the
// compute type, each unless it is NULL.
HEED_API const char* heed_normalization_gradient(const HeedNormalization* call, const void* moments,
                                                 const void* y_gradient, void* x_gradient, void* scale_gradient,
                                                 void* offset_gradient, int threads);

// Writes y, (R, D), which may take the place of x or the residual.
HEED_API const char* heed_dropout(const HeedDropout* call, void* y, int threads);

// Writes y, (R, G, N) in the dtype of x.
HEED_API const char* heed_product(const HeedProduct* call, void* y, int threads);

// Writes the updated cache to `result`. If that is the cache itself, only the new positions are written.
HEED_API const char* heed_cache_write(const HeedCacheWrite* call, void* result);

// The number of processors that this process may use: those of its affinity, but no more than the CPU quota of its
// container (control groups of Linux, both versions) when the library was loaded, rounded up.
HEED_API int heed_available_threads(void);

// Sizes that kernels for float32 work with: the queries and keys of a block of scores; the rows and columns of a
// product that are summed in registers; and the terms that are summed in one go, at most.
typedef struct HeedBlockSizes {
  int32_t queries, keys, rows, columns, terms;
} HeedBlockSizes;

// The sizes of the instruction set in use. They depend on nothing else: not on the caches, nor on the call.
HEED_API HeedBlockSizes heed_block_sizes(void);

// The names of the instruction sets of the library, best first: index 0, 1, ...; then NULL.
HEED_API const char* heed_instruction_set_name(int index);

// The instruction set in use: that of HEED_INSTRUCTION_SET in the environment if this machine has it, else the best
// one.
HEED_API const char* heed_instruction_set(void);

// Switches to another one, for tests; NULL: the one that the process started with. Returns 0, and changes nothing, if
// this machine lacks it. Do not pass the results of one set's forward pass to the backward pass of another.
HEED_API int heed_use_instruction_set(const char* name);

#ifdef __cplusplus
}
#endif

#endif  // HEED_H
