// The functions of heed_decoder.h: check, pack weights, split rows, or the work of each, over threads.
#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <initializer_list>
#include <string>
#include <vector>

#include "decoder/registry.h"
#include "include/heed_decoder.h"
#include "refusal.h"
#include "team.h"
#include "weight_memory.h"
#include "work.h"

namespace heed {
namespace {

constexpr int64_t kMostFeatures = HEED_MOST_FEATURES, kMostTokens = int64_t{1} << 24, kMostLength = HEED_MOST_LENGTH;
constexpr int64_t kMostRotations = 1024;
// Of scratch memory for one part of a batch, if one source fits.
constexpr size_t kMostBytes = size_t{1} << 28;

void check_size(int64_t n, int64_t least, int64_t most, const char* name) {
  require(n >= least && n <= most, "`%s` must be in [%" PRId64 ", %" PRId64 "]. Received: %" PRId64, name, least, most,
          n);
}

bool exists(const HeedDense& dense) { return dense.weight || dense.whole; }

void check_dense(const HeedDense& dense, int64_t inputs, int64_t outputs, const char* name) {
  require(exists(dense), "the weights of `%s` are missing", name);
  require(dense.inputs == inputs && dense.outputs == outputs,
          "`%s` must have %" PRId64 " inputs and %" PRId64 " outputs. Received: %" PRId64 " and %" PRId64, name, inputs,
          outputs, dense.inputs, dense.outputs);
  if (!dense.whole) return;
  require(dense.factors, "the factors of `%s` are missing", name);
  require(dense.factor_inputs > 0 && (dense.factor_inputs % 32 == 0 || dense.factor_inputs >= inputs),
          "`factor_inputs` of `%s` must be a multiple of 32, or at least its inputs. Received: %" PRId64, name,
          dense.factor_inputs);
}

void check_norm(const HeedNorm& norm, const char* name) {
  require(norm.gamma, "`%s` is missing", name);
  require(norm.epsilon > 0 && std::isfinite(norm.epsilon), "`epsilon` of `%s` must be positive", name);
}

// The options of scores, by type.
void check_option(const float*, const char*) {}
void check_option(double number, const char* name) {
  require(number >= 0 && std::isfinite(number), "`%s` must be at least 0", name);
}
void check_option(int64_t count, const char* name) { check_size(count, 0, kMostLength, name); }

// An attention of a layer; `width`: that of keys and values before their projection.
void check_attention(const HeedDecoderStack& s, const HeedDecoderAttention& a, int64_t width, const char* part) {
  const auto named = [&](const char* name) { return std::string(part) + "." + name; };
  const int64_t keys = s.kv_heads * s.head_dim, attended = s.heads * s.value_dim;
  check_dense(a.query, s.width, s.heads * s.head_dim, named("query").c_str());
  check_dense(a.key, width, keys, named("key").c_str());
  check_dense(a.value, width, s.kv_heads * s.value_dim, named("value").c_str());
  check_dense(a.output, attended, s.width, named("output").c_str());
  check_option(a.scale, named("scale").c_str());
  check_size(a.rotation, -1, kMostRotations - 1, named("rotation").c_str());
  if (exists(a.gate)) check_dense(a.gate, s.width, attended, named("gate").c_str());
  if (a.query_norm.gamma) check_norm(a.query_norm, named("query_norm").c_str());
  if (a.key_norm.gamma) check_norm(a.key_norm, named("key_norm").c_str());
#define CHECK(name) check_option(a.options.name, named(#name).c_str());
  HEED_EACH_SCORE_OPTION(CHECK)
#undef CHECK
}

void check_experts(const HeedDecoderStack& s, const HeedDecoderLayer& layer) {
  const HeedExperts& experts = layer.experts;
  check_size(experts.count, 0, 65536, "experts");
  if (experts.count == 0) return;
  check_size(experts.top_k, 1, experts.count, "top_k of the experts");
  check_dense(experts.router, s.width, experts.count, "router");
  if (!exists(experts.shared_hidden)) return;
  const int64_t hidden = experts.shared_hidden.outputs;
  check_size(hidden, 1, kMostFeatures, "outputs of shared_hidden");
  check_dense(experts.shared_hidden, s.width, hidden, "shared_hidden");
  require(exists(layer.up) == exists(experts.shared_up), "experts are gated all or none");
  if (exists(experts.shared_up)) check_dense(experts.shared_up, s.width, hidden, "shared_up");
  check_dense(experts.shared_back, hidden, s.width, "shared_back");
  if (exists(experts.shared_gate)) check_dense(experts.shared_gate, s.width, 1, "shared_gate");
}

void check_layer(const HeedDecoderStack& s, const HeedDecoderLayer& layer) {
  const int64_t hidden = layer.hidden.outputs;
  check_norm(layer.self_norm, "self_norm");
  check_norm(layer.feed_forward_norm, "feed_forward_norm");
  check_attention(s, layer.self, s.width, "self");
  check_size(hidden, 1, kMostFeatures, "outputs of hidden");
  check_experts(s, layer);
  check_dense(layer.hidden, s.width, hidden, "hidden");
  if (exists(layer.up)) check_dense(layer.up, s.width, hidden, "up");
  check_dense(layer.back, hidden, s.width, "back");
  check_size(layer.activation, HEED_LINEAR, HEED_QUICK_GELU, "activation");
  check_option(layer.gate_limit, "gate_limit");
  require(std::isfinite(layer.up_offset), "`up_offset` must be finite");
  if (layer.self_post_norm.gamma) check_norm(layer.self_post_norm, "self_post_norm");
  if (layer.feed_forward_post_norm.gamma) check_norm(layer.feed_forward_post_norm, "feed_forward_post_norm");
  require(!layer.parallel || (layer.norm_first && !exists(layer.cross.query)),
          "a parallel layer needs `norm_first` and no cross-attention");
  if (!exists(layer.cross.query)) return;
  require(s.encoded_width > 0, "`encoded_width` must be given where a layer attends to what is encoded");
  check_norm(layer.cross_norm, "cross_norm");
  check_attention(s, layer.cross, s.encoded_width, "cross");
  require(layer.cross.options.sliding_window == 0, "`cross.sliding_window` must be 0. Received: %" PRId64,
          layer.cross.options.sliding_window);
}

void check(const HeedDecoderStack& s, bool is_encoder) {
  check_size(s.width, 1, kMostFeatures, "width");
  check_size(s.heads, 1, kMostFeatures, "heads");
  check_size(s.kv_heads, 1, s.heads, "kv_heads");
  require(s.heads % s.kv_heads == 0, "N must be a multiple of K");
  check_size(s.head_dim, 1, kMostFeatures / s.heads, "head_dim");
  check_size(s.value_dim, 1, kMostFeatures / s.heads, "value_dim");
  check_size(s.rotary_dim, 0, s.head_dim, "rotary_dim");
  check_option(s.logit_soft_cap, "logit_soft_cap");
  check_size(s.encoded_width, 0, kMostFeatures, "encoded_width");
  check_size(s.vocabulary, 1, kMostTokens, "vocabulary");
  check_size(s.pack, 0, HEED_PACKS - 1, "pack");
  check_size(s.in_place, -1, 1, "in_place");
  check_size(s.layer_count, 0, 1024, "layer_count");
  require(s.embedding, "the embedding is missing");
  require(std::isfinite(s.embedding_scale), "`embedding_scale` must be finite");
  require(s.layers || s.layer_count == 0, "the layers are missing");
  for (int i = 0; i < s.layer_count; ++i) check_layer(s, s.layers[i]);
  if (s.embedding_norm.gamma) check_norm(s.embedding_norm, "embedding_norm");
  if (s.final_norm.gamma) check_norm(s.final_norm, "final_norm");
  if (is_encoder) return require(s.encoded_width == 0 && !s.encoder, "an encoder attends to nothing that is encoded");
  check_dense(s.logits, s.width, s.vocabulary, "logits");
  if (!s.encoder) return;
  check(*s.encoder, true);
  require(s.encoder->width == s.encoded_width,
          "`encoded_width` must be the width of the encoder, %" PRId64 ". Received: %" PRId64, s.encoder->width,
          s.encoded_width);
}

// The weights of all dense layers that are packed: of these `check` knows the sizes.
int64_t count_weights(const HeedDecoderStack& s, bool is_encoder) {
  const auto sum = [](std::initializer_list<const HeedDense*> layers) {
    int64_t count = 0;
    for (const HeedDense* dense : layers) count += exists(*dense) ? dense->inputs * dense->outputs : 0;
    return count;
  };
  int64_t count = is_encoder ? 0 : sum({&s.logits}) + (s.encoder ? count_weights(*s.encoder, true) : 0);
  for (int i = 0; i < s.layer_count; ++i) {
    const HeedDecoderLayer& layer = s.layers[i];
    const HeedExperts& experts = layer.experts;
    for (const HeedDecoderAttention* a : {&layer.self, &layer.cross})
      if (exists(a->query)) count += sum({&a->query, &a->key, &a->value, &a->output, &a->gate});
    count += sum({&layer.hidden, &layer.up, &layer.back}) * std::max<int64_t>(experts.count, 1);
    if (experts.count == 0) continue;
    count += sum({&experts.router});
    if (exists(experts.shared_hidden))
      count += sum({&experts.shared_hidden, &experts.shared_up, &experts.shared_back, &experts.shared_gate});
  }
  return count;
}

// The visible tokens of the sources.
void check_source(const PackedStack& encoder, const HeedDecoding& d) {
  require(d.source || d.batch == 0 || d.source_length == 0, "`source` is missing");
  for (int64_t i = 0; i < d.batch * d.source_length; ++i)
    if (!d.source_mask || d.source_mask[i])
      require(d.source[i] >= 0 && d.source[i] < encoder.vocabulary,
              "`source` must hold tokens from 0 to %d. Received: %d", encoder.vocabulary - 1,
              static_cast<int>(d.source[i]));
}

// The tables that attentions rotate by.
void check_rotations(const PackedStack& s, int64_t tables) {
  for (int i = 0; i < s.layer_count; ++i) {
    const int rotation = s.layers[i].self.rotation;
    require(rotation < tables, "`rotation` must have a table for each layer. Received: %" PRId64 " for the layer of %d",
            tables, rotation);
  }
}

// The prompts of the targets.
void check_prompt(const PackedStack& s, const HeedDecoding& d) {
  for (int64_t i = 0; i < d.batch * d.length; ++i) {
    require((d.prompt[i] >= 0 || d.prompt[i] == d.pad_token) && d.prompt[i] < s.vocabulary,
            "`prompt` must hold tokens from 0 to %d. Received: %d", s.vocabulary - 1, static_cast<int>(d.prompt[i]));
    require(i % d.length == 0 || d.prompt[i - 1] != d.pad_token || d.prompt[i] == d.pad_token,
            "`prompt` must hold padding from the end of a row's tokens on. Received: %d after it",
            static_cast<int>(d.prompt[i]));
  }
}

void check(const PackedStack& s, const HeedDecoding& d, const int32_t* tokens, const float* scores) {
  check_size(d.batch, 0, HEED_MOST_BATCH, "batch");
  check_size(d.length, 1, kMostLength, "length");
  check_size(d.source_length, 0, kMostLength, "source_length");
  const bool given = !s.encoder && s.encoded_width > 0 && d.batch > 0 && d.source_length > 0;
  require(d.encoded || !given, "`encoded` is missing");
  if (s.encoder) check_source(*s.encoder, d);
  require(!s.encoder || !d.source_rotation || s.encoder->rotary_dim % 2 == 0, "a rotation needs an even `head_dim`");
  require(!d.rotation || s.rotary_dim % 2 == 0, "a rotation needs an even `head_dim`");
  check_rotations(s, d.rotation ? std::max(d.rotations, 1) : kMostRotations);
  if (s.encoder) check_rotations(*s.encoder, d.source_rotation ? 1 : kMostRotations);
  check_size(d.pad_token, -1, s.vocabulary - 1, "pad_token");
  check_size(d.start_token, d.first_tokens ? -1 : 0, s.vocabulary - 1, "start_token");
  check_size(d.end_token, -1, s.vocabulary - 1, "end_token");
  for (int64_t b = 0; d.first_tokens && b < d.batch; ++b)
    check_size(d.first_tokens[b], 0, s.vocabulary - 1, "first_tokens");
  require(d.stop_tokens || d.stop_count == 0, "`stop_tokens` is missing");
  check_size(d.stop_count, 0, kMostTokens, "stop_count");
  if (d.prompt) check_prompt(s, d);
  check_size(d.search, HEED_GREEDY, HEED_BEAM, "search");
  check_size(d.cache, 0, HEED_CACHES - 1, "cache");
  require(d.cache != HEED_CACHE_INT8 || d.search != HEED_BEAM, "`cache` must not be int8 for a beam search");
  require(tokens || d.batch == 0, "`tokens` is missing");
  require(!d.on_token || d.search != HEED_BEAM, "`on_token` must be NULL for a beam search, which decides at its end");
  if (d.search == HEED_BEAM) {
    check_size(d.beams, 1, HEED_MOST_BEAMS, "beams");
    require(d.length_penalty >= 0 && std::isfinite(d.length_penalty), "`length_penalty` must be at least 0");
    check_size(d.results, 0, d.beams, "results");
  }
  require(!scores || d.search != HEED_GREEDY, "`scores` are of a beam search, which may have one beam, or of sampling");
  if (d.search != HEED_SAMPLE) return;
  check_sampling(d);
  check_size(d.top_k, 0, kMostTokens, "top_k");
}

}  // namespace
}  // namespace heed

struct HeedDecoder {
 private:
  const heed::DecoderKernels& kernels_ = heed::decoder_kernels();
  heed::WeightMemory memory_;
  std::vector<heed::PackedLayer> layers_, encoder_layers_;
  heed::PackedStack encoder_{};
  const int64_t weight_count_;

 public:
  heed::PackedStack stack;

  explicit HeedDecoder(const HeedDecoderStack& s)
      : weight_count_(heed::count_weights(s, false)), stack(pack(s, layers_)) {
    stack.logits = pack(s, {&s.logits});
    if (!s.encoder) return;
    encoder_ = pack(*s.encoder, encoder_layers_);
    stack.encoder = &encoder_;
  }

  void decode(const HeedDecoding& decoding, int32_t* tokens, float* scores, int threads) const {
    if (decoding.batch == 0) return;
    const int64_t beams = decoding.search == HEED_BEAM ? decoding.beams : 1;
    int64_t most = std::max<int64_t>(1, heed::kMostRows / beams);
    const bool shared = weight_count_ >= kLeastShared, streamed = weight_count_ >= kLeastStreamed;
    // As many sources together as possible, with work for every thread. Where there are fewer sources than threads,
    // or each would read more weights than caches hold for a few of them, several threads share sources.
    const int workers = heed::limit_threads(heed::cap_threads(threads), shared ? kMostTasks : decoding.batch);
    const int64_t leaders = streamed ? std::max<int64_t>(1, decoding.batch / kTogether) : decoding.batch;
    threads = static_cast<int>(std::min<int64_t>(workers, leaders));
    // The parts of threads may take as much scratch memory together as such weights have in float32.
    const int64_t shared_bytes = streamed ? weight_count_ * int64_t{sizeof(float)} / threads : 0;
    const size_t most_bytes = std::max(heed::kMostBytes, static_cast<size_t>(shared_bytes));
    while (most > 1 && kernels_.scratch_bytes(stack, decoding, most) > most_bytes) most /= 2;
    const int64_t rounds = heed::ceil_div(decoding.batch, most * threads);
    const int64_t each = heed::ceil_div(decoding.batch, rounds * threads), parts = heed::ceil_div(decoding.batch, each);
    if (parts < workers) return decode_by_teams(decoding, tokens, scores, parts, each, workers);
    heed::Scratch memory;
    const auto scratch = memory.plan(threads, kernels_.scratch_bytes(stack, decoding, each));
    memory.allocate();
    heed::for_each(parts, threads, [&](int64_t part, int worker) {
      kernels_.decode(stack, decoding, range_of(part, each, decoding), tokens, scores, scratch[worker]);
    });
  }

 private:
  // Weights that a team shares: a step of fewer is short, and waiting for a helper costs more of it. With 7.5 million,
  // two threads take 0.7 of the time of one in float32 and 0.9 in int8 (AVX2, Zen 3).
  static constexpr int64_t kLeastShared = int64_t{1} << 21;
  // Weights that no cache holds: each thread that decodes alone reads them from memory, for so many sources or more.
  static constexpr int64_t kLeastStreamed = int64_t{1} << 24, kTogether = 16;
  static constexpr int64_t kMostTasks = 256;
  // Weights of a layer that are read in place: copies of fewer take little memory.
  static constexpr int64_t kLeastInPlace = int64_t{1} << 16;

  static heed::SourceRange range_of(int64_t part, int64_t each, const HeedDecoding& decoding) {
    return {part * each, std::min((part + 1) * each, decoding.batch)};
  }

  // Each part has a leader. The other workers help a leader, and then another one whose helpers have not all come.
  void decode_by_teams(const HeedDecoding& decoding, int32_t* tokens, float* scores, int64_t parts, int64_t each,
                       int workers) const {
    std::vector<heed::Team> teams(static_cast<size_t>(parts));
    const int64_t helpers = heed::ceil_div(workers, parts) - 1;
    for (heed::Team& team : teams) team.threads = static_cast<int>(1 + helpers);
    const auto with_team = [](heed::PackedStack shared, heed::Team& team) {
      shared.team = &team;
      return shared;
    };
    const heed::PackedStack planned_encoder = with_team(encoder_, teams[0]);
    heed::PackedStack planned = with_team(stack, teams[0]);
    if (planned.encoder) planned.encoder = &planned_encoder;
    heed::Scratch memory;
    const auto scratch = memory.plan(parts, kernels_.scratch_bytes(planned, decoding, each));
    memory.allocate();
    // Indices are claimed in order: all leaders are there before the first helper.
    heed::for_each(parts * (1 + helpers), workers, [&](int64_t index, int) {
      heed::Team& team = teams[static_cast<size_t>(index % parts)];
      if (index >= parts) return team.help();
      const heed::PackedStack encoder = with_team(encoder_, team);
      heed::PackedStack own = with_team(stack, team);
      if (own.encoder) own.encoder = &encoder;
      kernels_.decode(own, decoding, range_of(index, each, decoding), tokens, scores, scratch[index]);
      team.finish();
    });
  }

  const float* copy_row(const float* from, int64_t count) {
    float* to = memory_.allocate_zeros<float>(kernels_.row_numbers(count));
    if (from) std::copy_n(from, count, to);
    return to;
  }

  heed::PackedNorm pack(const HeedNorm& norm, int64_t width) {
    if (!norm.gamma) return {};
    return {copy_row(norm.gamma, width), copy_row(norm.beta, width), static_cast<float>(norm.epsilon),
            norm.root_mean_square != 0};
  }

  // A cross-attention projects keys and values from the sources.
  heed::PackedAttention pack(const HeedDecoderStack& s, const HeedDecoderAttention& from, bool cross) {
    heed::PackedAttention made{};
    std::vector<const HeedDense*> projected = {&from.query};
    if (!cross) projected.insert(projected.end(), {&from.key, &from.value});
    if (heed::exists(from.gate)) {
      for (const HeedDense* part : projected) made.gate_at += static_cast<int>(part->outputs);
      projected.push_back(&from.gate);
    }
    made.projected = pack(s, projected);
    if (cross) made.encoded = pack(s, {&from.key, &from.value});
    made.output = pack(s, {&from.output});
    made.scale = static_cast<float>(from.scale > 0 ? from.scale : 1 / std::sqrt(static_cast<double>(s.head_dim)));
    made.rotation = from.rotation;
    made.query_norm = pack(from.query_norm, s.head_dim), made.key_norm = pack(from.key_norm, s.head_dim);
#define COPY(name) made.options.name = copy_option(from.options.name, s.heads);
    HEED_EACH_SCORE_OPTION(COPY)
#undef COPY
    return made;
  }
  const float* copy_option(const float* weight, int64_t heads) { return weight ? copy_row(weight, heads) : nullptr; }
  template <class Number>
  Number copy_option(Number number, int64_t) {
    return number;
  }

  // Whether adjacent layers are read in place. What caches hold is faster in panels.
  bool stays(const HeedDecoderStack& s, const std::vector<const HeedDense*>& parts) const {
    if (s.pack != HEED_PACK_FLOAT32 || s.in_place < 0) return false;
    int64_t count = 0;
    for (const HeedDense* part : parts) {
      if (!part->weight) return false;
      count += part->inputs * part->outputs;
    }
    return s.in_place > 0 || (weight_count_ >= HEED_LEAST_IN_PLACE && count >= kLeastInPlace);
  }

  // Dense layers of the same input, adjacent.
  heed::PackedDense pack(const HeedDecoderStack& s, const std::vector<const HeedDense*>& parts) {
    const int64_t inputs = parts[0]->inputs;
    int64_t outputs = 0, column = 0;
    for (const HeedDense* part : parts) outputs += part->outputs;
    const int64_t columns = kernels_.row_numbers(outputs);
    const int format = stays(s, parts) ? heed::kInPlace : s.pack;
    float* bias = memory_.allocate_zeros<float>(columns);
    const heed::PackedDense made{memory_.allocate_zeros<char>(kernels_.packed_bytes(inputs, outputs, format)), bias,
                                 static_cast<int>(inputs), static_cast<int>(outputs), format};
    kernels_.pack(parts.data(), static_cast<int64_t>(parts.size()), made);
    for (const HeedDense* part : parts) {
      if (format == heed::kInPlace)
        heed::move_to_huge_pages(part->weight, part->inputs * part->outputs * int64_t{sizeof(float)});
      if (part->bias) std::copy_n(part->bias, part->outputs, bias + column);
      column += part->outputs;
    }
    return made;
  }

  heed::PackedDense pack_hidden(const HeedDecoderStack& s, const HeedDense& hidden, const HeedDense& up) {
    return heed::exists(up) ? pack(s, {&hidden, &up}) : pack(s, {&hidden});
  }

  heed::PackedExperts pack(const HeedDecoderStack& s, const HeedDecoderLayer& from) {
    const HeedExperts& experts = from.experts;
    heed::PackedExperts made{};
    made.count = static_cast<int>(experts.count), made.top_k = static_cast<int>(experts.top_k);
    made.normalized = experts.normalized != 0;
    made.router = pack(s, {&experts.router});
    const auto of_expert = [](HeedDense dense, int64_t e) {
      const int64_t weights = e * dense.inputs * dense.outputs;
      if (dense.weight) dense.weight += weights;
      if (dense.whole)
        dense.whole += weights, dense.factors += e * heed::ceil_div(dense.inputs, dense.factor_inputs) * dense.outputs;
      if (dense.bias) dense.bias += e * dense.outputs;
      return dense;
    };
    heed::PackedExpert* parts = memory_.allocate_zeros<heed::PackedExpert>(experts.count);
    for (int64_t e = 0; e < experts.count; ++e) {
      const HeedDense back = of_expert(from.back, e);
      parts[e] = {pack_hidden(s, of_expert(from.hidden, e), of_expert(from.up, e)), pack(s, {&back})};
    }
    made.parts = parts;
    if (!heed::exists(experts.shared_hidden)) return made;
    made.shared = {pack_hidden(s, experts.shared_hidden, experts.shared_up), pack(s, {&experts.shared_back})};
    made.shared_gated = heed::exists(experts.shared_gate);
    if (made.shared_gated) made.shared_gate = pack(s, {&experts.shared_gate});
    return made;
  }

  // All but the logits and the encoder.
  heed::PackedStack pack(const HeedDecoderStack& s, std::vector<heed::PackedLayer>& layers) {
    heed::PackedStack made{};
    made.width = static_cast<int>(s.width), made.heads = static_cast<int>(s.heads);
    made.kv_heads = static_cast<int>(s.kv_heads), made.head_dim = static_cast<int>(s.head_dim);
    made.value_dim = static_cast<int>(s.value_dim), made.encoded_width = static_cast<int>(s.encoded_width);
    made.vocabulary = static_cast<int>(s.vocabulary);
    made.rotary_dim = static_cast<int>(s.rotary_dim > 0 ? s.rotary_dim : s.head_dim);
    made.logit_soft_cap = static_cast<float>(s.logit_soft_cap);
    made.embedding = s.embedding, made.embedding_scale = static_cast<float>(s.embedding_scale);
    for (int i = 0; i < s.layer_count; ++i) {
      const HeedDecoderLayer& from = s.layers[i];
      heed::PackedLayer layer{};
      layer.self_norm = pack(from.self_norm, s.width);
      layer.self = pack(s, from.self, false);
      if (heed::exists(from.cross.query)) {
        layer.cross_norm = pack(from.cross_norm, s.width);
        layer.cross = pack(s, from.cross, true);
      }
      layer.feed_forward_norm = pack(from.feed_forward_norm, s.width);
      layer.gated = heed::exists(from.up);
      if (from.experts.count > 0)
        layer.experts = pack(s, from);
      else
        layer.hidden = pack_hidden(s, from.hidden, from.up), layer.back = pack(s, {&from.back});
      layer.self_post_norm = pack(from.self_post_norm, s.width);
      layer.feed_forward_post_norm = pack(from.feed_forward_post_norm, s.width);
      layer.parallel = from.parallel != 0;
      layer.norm_first = from.norm_first != 0,
      layer.activation = {from.activation, static_cast<float>(from.gate_limit), static_cast<float>(from.up_offset)};
      layers.push_back(layer);
    }
    made.layer_count = s.layer_count, made.layers = layers.data();
    made.embedding_norm = pack(s.embedding_norm, s.width);
    made.final_norm = pack(s.final_norm, s.width);
    return made;
  }
};

const char* heed_decoder_make(const HeedDecoderStack* stack, HeedDecoder** made) {
  return heed::catch_refusal("out of memory for the packed weights of a decoder", [&] {
    heed::check(*stack, false);
    *made = new HeedDecoder(*stack);
  });
}

void heed_decoder_free(HeedDecoder* decoder) { delete decoder; }

const char* heed_decode(const HeedDecoder* decoder, const HeedDecoding* decoding, int32_t* tokens, float* scores,
                        int threads) {
  return heed::catch_refusal("out of memory for the scratch space of decoding", [&] {
    heed::check(decoder->stack, *decoding, tokens, scores);
    decoder->decode(*decoding, tokens, scores, threads);
  });
}
