// The decoder kernels of an instruction set, and the packed stack that they read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../include/heed_decoder.h"
#include "packs/packed_dense.h"

namespace heed {

struct PackedNorm {
  const float *gamma, *beta;  // null: no normalisation
  float epsilon;
  bool root_mean_square;
};

struct PackedAttention {
  PackedDense projected;  // of the rows that attend: queries, keys and values of self-attention, and the gate
  PackedDense encoded;    // keys and values of the sources
  PackedDense output;     // 0 outputs: no such attention
  int gate_at;            // the gate's first column in `projected`; 0: no gate
  PackedNorm query_norm, key_norm;
  HeedScoreOptions options;
  float scale;
  int rotation;  // -1: none
};

struct PackedActivation {
  int activation;  // HeedActivation
  float limit, up_offset;
};

struct PackedExpert {
  PackedDense hidden, back;
};

struct PackedExperts {
  int count, top_k;  // 0: none
  bool normalized, shared_gated;
  PackedDense router, shared_gate;  // shared_gate: 0 outputs: none
  PackedExpert shared;              // back: 0 outputs: none
  const PackedExpert* parts;
};

struct PackedLayer {
  PackedNorm self_norm, cross_norm, feed_forward_norm, self_post_norm, feed_forward_post_norm;
  PackedAttention self, cross;
  PackedDense hidden, back;  // gated: `hidden` has the activated columns, then those that they multiply
  PackedExperts experts;
  bool gated, norm_first, parallel;
  PackedActivation activation;
};

// Threads that share the stages of a decoding: see team.h.
class Team;
// The most threads of a team.
int threads_of(const Team& team);

// Calls task(context, index, worker) once for each index < count from the threads of a team; returns when all are done.
// `worker` tells the threads apart, for scratch memory.
void share(Team& team, int64_t count, void (*task)(void* context, int64_t index, int worker), void* context);

struct PackedStack {
  int width, heads, kv_heads, head_dim, value_dim, encoded_width, vocabulary, rotary_dim;
  const float* embedding;
  float embedding_scale;
  int layer_count;
  const PackedLayer* layers;
  PackedNorm embedding_norm, final_norm;
  PackedDense logits;
  float logit_soft_cap;        // 0: none
  const PackedStack* encoder;  // or null
  Team* team;                  // that decodes with it; null: one thread
};

// Sources [begin, end) of a batch, decoded by one thread or team from the first token to the last.
struct SourceRange {
  int64_t begin, end;
};

// The number of hypotheses returned for each source.
inline int64_t results_of(const HeedDecoding& decoding) {
  return decoding.search == HEED_BEAM && decoding.results > 1 ? decoding.results : 1;
}

struct DecoderKernels {
  // Bytes of the packed weights of a dense layer; and the length of a row, padded to full vectors.
  int64_t (*packed_bytes)(int64_t inputs, int64_t outputs, int pack);
  int64_t (*row_numbers)(int64_t numbers);
  // Packs adjacent layers of the same input. All bytes are 0 before.
  void (*pack)(const HeedDense* const* parts, int64_t count, const PackedDense& packed);
  size_t (*scratch_bytes)(const PackedStack&, const HeedDecoding&, int64_t sources);
  // `scores` may be null.
  void (*decode)(const PackedStack&, const HeedDecoding&, SourceRange, int32_t* tokens, float* scores, char* scratch);
};

// Refuses numbers of sampling that are out of their range.
void check_sampling(const HeedDecoding& decoding);

// Draws a token by inverting the cumulative distribution of softmax(logits / temperature) after the cuts.
// `uniform` is in [0, 1). `mass` and `order` are scratch, as long as the vocabulary.
int32_t draw_token(const HeedDecoding& decoding, float uniform, int vocabulary, const float* logits, float* mass,
                   int32_t* order);

// log softmax(logits)[token]
float log_probability(int vocabulary, const float* logits, int32_t token);

}  // namespace heed
