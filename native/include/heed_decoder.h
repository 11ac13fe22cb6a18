// heed's decoder engine as a plain C interface: a whole decoding loop of a stack of Transformer layers in one call,
// from the sources (or none) to tokens. The rules of heed.h hold here too: letters, errors, threads, zeroed structs
// ("0: none"), and that results are the same bits whatever the number of threads and the other rows of a batch.
//
// D is the width of the model, L the number of tokens to decode, S the length of the sources, F the hidden width of the
// feed-forward part. Everything is float32, except packed weights of another HeedPack.
#ifndef HEED_DECODER_H
#define HEED_DECODER_H

#include "heed.h"

// The largest D, N H, N V and F; L and S; B.
#define HEED_MOST_FEATURES 1048576
#define HEED_MOST_LENGTH 1048576
#define HEED_MOST_BATCH 2147483648

// Activations of the feed-forward part, as Keras defines them.
enum HeedActivation {
  HEED_LINEAR = 0,
  HEED_RELU = 1,
  HEED_GELU = 2,  // exact: x (1 + erf(x / sqrt(2))) / 2
  HEED_SILU = 3,
  HEED_SIGMOID = 4,
  HEED_TANH = 5,
  HEED_GELU_TANH = 6,  // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
  HEED_QUICK_GELU = 7  // x sigmoid(1.702 x)
};

// The formats of the packed weights of dense layers: DO(name, its text).
//   BFLOAT16  rounded to the nearest bfloat16, multiplied in float32
//   INT8      integers in [-127, 127] times a factor for each block of 32 inputs of an output, its largest magnitude
//             / 127, as float16 times a power of two; inputs are rounded likewise, with float32 factors. Sums of a
//             block are exact.
//   INT4      the same, of integers in [-8, 7] and the weight of largest magnitude / -8
#define HEED_EACH_PACK(DO) \
  DO(FLOAT32, "float32")   \
  DO(BFLOAT16, "bfloat16") \
  DO(INT8, "int8")         \
  DO(INT4, "int4")

// HEED_PACK_FLOAT32 = 0 and so on.
#define HEED_NUMBER_OF_PACK(name, text) HEED_PACK_##name,
enum HeedPack { HEED_EACH_PACK(HEED_NUMBER_OF_PACK) HEED_PACKS };
#undef HEED_NUMBER_OF_PACK

// The formats of the keys and values that a decoder keeps of its own tokens: DO(name, its text).
//   BFLOAT16  rounded to the nearest bfloat16
//   INT8      integers in [-127, 127] times a factor, the largest magnitude / 127: of keys one for each feature of 32
//             positions, of values one for each token and head. The last keys, fewer than 32, are those of float32. Not
//             for a beam search.
#define HEED_EACH_CACHE(DO) DO(FLOAT32, "float32") DO(BFLOAT16, "bfloat16") DO(INT8, "int8")

// HEED_CACHE_FLOAT32 = 0 and so on.
#define HEED_NUMBER_OF_CACHE(name, text) HEED_CACHE_##name,
enum HeedCacheFormat { HEED_EACH_CACHE(HEED_NUMBER_OF_CACHE) HEED_CACHES };
#undef HEED_NUMBER_OF_CACHE

// y = x W + b.
typedef struct HeedDense {
  const float* weight;      // contiguous (inputs, outputs), or (outputs, inputs) if `transposed`; NULL: no such layer
  const float* bias;        // (outputs,), or NULL
  int64_t inputs, outputs;  // in [1, 2^24], their product at most 2^31
  int32_t transposed;
  // In place of `weight`: integers, contiguous like it, times factors, (inputs / factor_inputs rounded up, outputs).
  // Formats of integers keep those of INT8; INT4 takes integers in [-8, 7]. `factor_inputs`: a multiple of 32, or at
  // least `inputs`.
  const int8_t* whole;
  const float* factors;
  int64_t factor_inputs;
} HeedDense;

// y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, over the features; or (root_mean_square)
// y = x / sqrt(mean(x^2) + epsilon) * gamma + beta.
typedef struct HeedNorm {
  const float *gamma, *beta;  // a number for each feature; gamma NULL: no normalisation; beta NULL: 0
  double epsilon;
  int32_t root_mean_square;
} HeedNorm;

// The options of an attention's scores.
typedef struct HeedScoreOptions {
  const float* sinks;  // (N,): a score of each head that takes part in the softmax and has no value; NULL: none
  double soft_cap;     // c: scores x become c tanh(x / c); 0: none
  // W: the query at i sees the key at j only if |i - j| < W; 0: no limit. Only self-attention can have one.
  int64_t sliding_window;
} HeedScoreOptions;

// Their names. The engine checks, reads and copies each by its type: weights (N,), numbers and counts, at least 0.
#define HEED_EACH_SCORE_OPTION(DO) DO(sinks) DO(soft_cap) DO(sliding_window)

// Scores q.k times the scale, bounded by the soft-cap, plus a bias, through a softmax; heads times the gate; projected
// back.
typedef struct HeedDecoderAttention {
  HeedDense query, key, value, output;  // D to N H; the attended sequence to K H and K V; N V to D
  HeedDense gate;                       // D to N V: sigmoid(x W + b) multiplies the heads; no weight: none
  HeedNorm query_norm, key_norm;        // over the H features of each head, before it is rotated; no gamma: none
  HeedScoreOptions options;
  double scale;      // 0: 1 / sqrt(H)
  int32_t rotation;  // the table of HeedDecoding that rotates queries and keys, counted from 0; -1: none
} HeedDecoderAttention;

// A mixture of experts: of E feed-forward parts each token takes the `top_k` for which the router gives most, softmax(x
// router), and sums them, multiplied by these weights. The same for a part that all tokens take.
typedef struct HeedExperts {
  int64_t count, top_k;                             // E; 0: the feed-forward part is a single one
  HeedDense router;                                 // D to E
  int32_t normalized;                               // the weights of the chosen parts are divided by their sum
  HeedDense shared_hidden, shared_up, shared_back;  // D to any width twice, and back; no weight: none
  HeedDense shared_gate;                            // D to 1: sigmoid(x W + b) multiplies the shared part; or none
} HeedExperts;

// Causal self-attention, cross-attention (none if cross.query has no weight) and a feed-forward part, each with a
// residual connection and a normalisation, before it (norm_first) or after the sum. The feed-forward part is
// activation(x hidden) back, or, if `up` has a weight, a gated linear unit: (activation(x hidden) * (x up)) back. With
// experts the weights of `hidden`, `up` and `back` are those of all of them, one after the other.
typedef struct HeedDecoderLayer {
  HeedNorm self_norm, cross_norm, feed_forward_norm;
  HeedDecoderAttention self, cross;
  HeedDense hidden, up, back;  // D to F twice, F to D
  int32_t activation;          // HeedActivation
  int32_t norm_first;
  int32_t parallel;  // with norm_first: the feed-forward part reads the input of the layer; not with cross-attention
  HeedNorm self_post_norm, feed_forward_post_norm;  // of what a part adds to its input; no gamma: none
  HeedExperts experts;
  // Of a gated part: c: x hidden is at most c, and x up in [-c, c]; 0: no limit. And a number added to x up.
  double gate_limit, up_offset;
} HeedDecoderLayer;

#define HEED_LEAST_IN_PLACE 16777216

// The weights and settings of a decoder or an encoder.
typedef struct HeedDecoderStack {
  int64_t width, heads, kv_heads, head_dim, value_dim;  // D, N, K, H, V
  int64_t encoded_width;                                // of the encoded sources; 0: there are none
  int64_t vocabulary;                                   // tokens 0 .. vocabulary - 1, at most 2^24
  const float* embedding;                               // (vocabulary, D), read in place
  double embedding_scale;                               // multiplies its rows
  int32_t pack;                                         // HeedPack; an encoder may have another one
  int32_t layer_count;
  const HeedDecoderLayer* layers;
  HeedNorm embedding_norm;  // of the embedded tokens with their positions; without a gamma: none
  HeedNorm final_norm;
  HeedDense logits;       // D to vocabulary; an encoder has none
  double logit_soft_cap;  // c: logits x become c tanh(x / c); 0: none
  int64_t rotary_dim;     // features of each head that are rotated, the first ones; 0: all H
  // Encodes the sources, with bidirectional attention and no cross-attention. NULL: they come encoded.
  const struct HeedDecoderStack* encoder;
  // Whether float32 weights of dense layers are read where they are, not copied: 1: all; -1: none; 0: large ones, if
  // the stack has HEED_LEAST_IN_PLACE weights, where a copy would double its memory. The results are the same bits.
  int32_t in_place;
} HeedDecoderStack;

enum HeedSearch { HEED_GREEDY = 0, HEED_SAMPLE = 1, HEED_BEAM = 2 };

#define HEED_MOST_BEAMS 32

// One batch to decode. A position p counts the tokens before it: the start token stands at 0.
typedef struct HeedDecoding {
  int64_t batch, length, source_length;  // B, L in [1, 2^20], S
  const int32_t* source;                 // contiguous (B, S): tokens; of a stack without an encoder NULL
  const float* encoded;                  // contiguous (B, S, encoded_width); of a stack with an encoder NULL
  const uint8_t* source_mask;            // contiguous (B, S), 0: hidden; NULL: none is
  // Tables of the positions, each contiguous or NULL.
  const float* positions;  // (L, D), added to the embedded token at each position
  // (R, L, P) for P = `rotary_dim`: cosines, then sines of the angles of the pairs of features (c, c + P/2)
  const float* rotation;
  const float* relative_bias;  // (N, L): [n][L - 1 + j - i] is added to the score of query i and key j
  // The same for sources: (S, D), (1, S, P) and (N, 2 S), where it is [n][S + j - i].
  const float *source_positions, *source_rotation, *source_relative_bias;
  int32_t pad_token, start_token, end_token;  // the first two are never decoded; -1: no such token
  // The first tokens of each target, then padding, contiguous (B, L). Neither their probability nor their length
  // counts. NULL: none.
  const int32_t* prompt;
  int32_t search;  // HeedSearch
  // Of sampling: the only randomness, contiguous (B, L) in [0, 1); softmax(logits / temperature); the `top_k`
  // most likely tokens, and of these the fewest that hold the share `top_p`, in (0, 1] (0: no such cut).
  const float* uniform;
  double temperature, top_p;
  int64_t top_k;
  // Of beam search: the number of hypotheses, in [1, HEED_MOST_BEAMS]; the log probability of a finished one of n
  // tokens is divided by ((5 + n) / 6)^length_penalty, at least 0.
  int32_t beams;
  double length_penalty;
  // Of beam search: N, the number of hypotheses to return for each source, in [1, beams]; 0: one.
  int32_t results;
  // Of greedy decoding and sampling: called with `listener` for each token after the prompt, as soon as it is decoded,
  // from the thread that decodes its target (an index of the batch). 0 ends the target there, like a cut. NULL: none.
  int32_t (*on_token)(void* listener, int64_t target, int32_t token);
  void* listener;
  const int32_t* first_tokens;  // (B,): the first token that each target reads, in place of the start token; or NULL
  // More tokens that end a target, (stop_count,), unlike the end token only after its prompt. Of a beam search they do
  // not end hypotheses, but the search of a target whose hypotheses all hold one.
  const int32_t* stop_tokens;
  int64_t stop_count;
  int32_t top_p_of_all;  // `top_p` is a share of all tokens, also with a `top_k`
  int32_t rotations;     // R; 0: 1
  // The work: the number of tokens, of prompts and decoded, that go through the layers is added to it; NULL: nowhere.
  int64_t* tokens_read;
  double min_p;   // of sampling: only tokens with this share of the likeliest one's probability, in [0, 1]
  int32_t cache;  // HeedCacheFormat
} HeedDecoding;

// A stack with its weights packed for the kernels of the instruction set in use.
typedef struct HeedDecoder HeedDecoder;

#ifdef __cplusplus
extern "C" {
#endif

// Packs the weights of a stack. All are copied except the `embedding` and what is read `in_place`, which must outlive
// the decoder. Numbers that change there change its tokens from then on.
HEED_API const char* heed_decoder_make(const HeedDecoderStack* stack, HeedDecoder** made);

// NULL is allowed.
HEED_API void heed_decoder_free(HeedDecoder* decoder);

// Writes `tokens`, contiguous (B, N, L); N is 1 except for a beam search with more `results`. Each row ends with the
// end token, unless it is cut, and holds padding after it. The hypotheses of a source are in order: finished ones, best
// first, then cut ones; if there are fewer than N, rows of padding follow. `scores`, contiguous (B, N) or NULL, gets
// the log probability of the decoded tokens: of a beam search divided by the penalty, of sampling before `temperature`
// and the cuts; -inf where there is no hypothesis. A greedy search has none: one beam with no penalty finds the
// same. Several threads may use one decoder at once. Rows are divided among the threads; where there are fewer rows,
// the threads share the products and the heads, if the stack has 2^21 weights or more.
HEED_API const char* heed_decode(const HeedDecoder* decoder, const HeedDecoding* decoding, int32_t* tokens,
                                 float* scores, int threads);

#ifdef __cplusplus
}
#endif

#endif  // HEED_DECODER_H
