// Reads the structs of heed_decoder.h from named fields, such as decoder/layer_0/self_attention/query/kernel. The line
// that reads a field declares it. The names are those of the dataclasses in src/heed/ops/backends/decoder.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>

#include "../../include/heed_decoder.h"
#include "tensors.h"

namespace heed::tf {

// Names of fields, each with its place among the values of a call.
using Names = std::map<std::string, size_t>;

enum Presence { kRequired, kOptional };

// Reads fields by name. Reading goes on after a missing field or a wrong value, so that `finish` can name all missing
// and unknown fields at once.
class Fields {
 public:
  // The value of a weight is its index in `weights`.
  Fields(const Names& names, const Tensor& values, const Tensor* weights, int64_t weight_count)
      : names_(names), values_(values), weights_(weights), weight_count_(weight_count) {
    read_.resize(static_cast<size_t>(values.count()));
  }

  // Refuses missing fields, unknown ones, which nobody has read, and wrong values.
  void finish() const {
    std::string unknown;
    for (const auto& [name, place] : names_)
      if (!read_[place]) unknown += (unknown.empty() ? "" : ", ") + name;
    if (!missing_.empty() || !unknown.empty())
      fail("the fields of a decoder must have the names that the engine knows" +
           (missing_.empty() ? "" : ". Missing: " + missing_) + (unknown.empty() ? "" : ". Unknown: " + unknown));
    if (!problem_.empty()) fail(problem_);
  }

 protected:
  // Whether a part has any field.
  bool has(const std::string& part) const {
    const auto first = names_.lower_bound(part + "/");
    return first != names_.end() && first->first.rfind(part + "/", 0) == 0;
  }

  // A missing number stays as it is.
  void number(const std::string& name, double& to, Presence presence = kRequired) {
    if (const double* value = find(name, presence)) to = *value;
  }
  template <class Integer>
  void number(const std::string& name, Integer& to, int64_t most, Presence presence = kRequired) {
    const double* value = find(name, presence);
    if (!value) return;
    if (*value >= 0 && *value <= static_cast<double>(most) && *value == std::floor(*value))
      to = static_cast<Integer>(*value);
    else
      problem("`" + name + "` must be an integer from 0 to " + std::to_string(most) +
              ". Received: " + std::to_string(*value));
  }

  // Null where there is none.
  const Tensor* weight(const std::string& name, Presence presence) {
    const double* value = find(name, presence);
    if (!value) return nullptr;
    if (*value >= 0 && *value < static_cast<double>(weight_count_)) return weights_ + static_cast<int64_t>(*value);
    problem("`" + name + "` must be the index of a weight. Received: " + std::to_string(*value));
    return nullptr;
  }
  const float* weight(const std::string& name, int64_t count, Presence presence = kRequired) {
    return weight(name, count, weight(name, presence));
  }
  const float* weight(const std::string& name, int64_t count, const Tensor* x) {
    if (x && x->count() != count)
      problem("`" + name + "` must hold " + std::to_string(count) + " numbers" + x->described());
    return x ? x->data<float>() : nullptr;
  }

  // `finish` tells of the first one.
  void problem(const std::string& text) {
    if (problem_.empty()) problem_ = text;
  }

 private:
  const double* find(const std::string& name, Presence presence) {
    const auto found = names_.find(name);
    if (found == names_.end()) {
      if (presence == kRequired) missing_ += (missing_.empty() ? "" : ", ") + name;
      return nullptr;
    }
    read_[found->second] = true;
    return values_.data<double>() + found->second;
  }

  const Names& names_;
  const Tensor& values_;
  const Tensor* const weights_;
  const int64_t weight_count_;
  std::vector<bool> read_;
  std::string missing_, problem_;
};

// The search, and what the op needs beside it.
struct Search : HeedDecoding {
  int32_t return_scores = 0;
  double threads = 0;
};

class SearchFields : Fields {
 public:
  SearchFields(const Names& names, const Tensor& values, Search& to) : Fields(names, values, nullptr, 0) {
    number("search/length", to.length, HEED_MOST_LENGTH);
    number("search/pad", to.pad_token, INT32_MAX), number("search/start", to.start_token, INT32_MAX);
    number("search/end", to.end_token, INT32_MAX), number("search/method", to.search, INT32_MAX);
    number("search/temperature", to.temperature), number("search/top_p", to.top_p);
    number("search/top_k", to.top_k, INT32_MAX);
    number("search/beam_size", to.beams, INT32_MAX), number("search/length_penalty", to.length_penalty);
    number("search/results", to.results, HEED_MOST_BEAMS);
    number("search/return_scores", to.return_scores, 1), number("search/threads", to.threads);
    finish();
  }
};

// The stacks of a decoder and, where there is one, of its encoder.
class StackFields : Fields {
 public:
  StackFields(const Names& names, const Tensor& values, const Tensor* weights, int64_t weight_count,
              int64_t encoded_width)
      : Fields(names, values, weights, weight_count) {
    if (encoded_width > HEED_MOST_FEATURES) problem("`encoded` must have at most 2^20 features");
    const bool encodes = has("encoder");
    if (encodes) encoder = stack("encoder/", encoder_layers_, 0), encoded_width = encoder.width;
    decoder = stack("decoder/", layers_, std::min<int64_t>(encoded_width, HEED_MOST_FEATURES));
    decoder.logits = dense("decoder/logits", decoder.width, decoder.vocabulary);
    decoder.encoder = encodes ? &encoder : nullptr;
    finish();
  }

  HeedDecoderStack decoder{}, encoder{};

 private:
  HeedDecoderStack stack(const std::string& at, std::vector<HeedDecoderLayer>& layers, int64_t encoded_width) {
    HeedDecoderStack made{};
    // No product of three of these sizes overflows.
    number(at + "heads", made.heads, HEED_MOST_FEATURES), number(at + "kv_heads", made.kv_heads, HEED_MOST_FEATURES);
    number(at + "head_dim", made.head_dim, HEED_MOST_FEATURES);
    number(at + "value_dim", made.value_dim, HEED_MOST_FEATURES);
    number(at + "weights", made.pack, INT32_MAX), number(at + "embedding_scale", made.embedding_scale);
    made.encoded_width = encoded_width;
    if (const Tensor* x = weight(at + "embedding", kRequired)) {
      if (x->rank() == 2 && x->dim(1) <= HEED_MOST_FEATURES)
        made.vocabulary = x->dim(0), made.width = x->dim(1), made.embedding = x->data<float>();
      else
        problem("`" + at + "embedding` must have shape (vocabulary, D), D being at most 2^20" + x->described());
    }
    for (std::string part; has(part = at + "layer_" + std::to_string(layers.size()));)
      layers.push_back(layer(part + "/", made));
    made.layers = layers.data(), made.layer_count = static_cast<int32_t>(layers.size());
    made.embedding_norm = norm(at + "embedding_norm", made.width, kOptional);
    made.final_norm = norm(at + "final_norm", made.width, kOptional);
    return made;
  }

  HeedDecoderLayer layer(const std::string& at, const HeedDecoderStack& s) {
    HeedDecoderLayer made{};
    number(at + "norm_first", made.norm_first, 1), number(at + "activation", made.activation, INT32_MAX);
    made.self_norm = norm(at + "self_norm", s.width);
    made.self = attention(at + "self_attention/", s, s.width);
    if (has(at + "cross_attention")) {
      made.cross_norm = norm(at + "cross_norm", s.width);
      made.cross = attention(at + "cross_attention/", s, s.encoded_width);
    }
    made.feed_forward_norm = norm(at + "feed_forward_norm", s.width);
    made.hidden = dense(at + "hidden", s.width, 0);
    made.up = dense(at + "up", s.width, made.hidden.outputs, kOptional);
    made.back = dense(at + "back", made.hidden.outputs, s.width);
    return made;
  }

  // Keys and values have `width` features before they are projected.
  HeedDecoderAttention attention(const std::string& at, const HeedDecoderStack& s, int64_t width) {
    const int64_t attended = s.heads * s.value_dim;
    HeedDecoderAttention made{};
    made.query = dense(at + "query", s.width, s.heads * s.head_dim);
    made.key = dense(at + "key", width, s.kv_heads * s.head_dim);
    made.value = dense(at + "value", width, s.kv_heads * s.value_dim);
    made.output = dense(at + "output", attended, s.width);
    made.gate = dense(at + "gate", s.width, attended, kOptional);
    made.query_norm = norm(at + "query_norm", s.head_dim, kOptional);
    made.key_norm = norm(at + "key_norm", s.head_dim, kOptional);
#define READ(name) option(at + #name, made.options.name, s.heads);
    HEED_EACH_SCORE_OPTION(READ)
#undef READ
    return made;
  }

  void option(const std::string& name, const float*& to, int64_t heads) { to = weight(name, heads, kOptional); }
  void option(const std::string& name, double& to, int64_t) { number(name, to, kOptional); }
  void option(const std::string& name, int64_t& to, int64_t) { number(name, to, INT32_MAX, kOptional); }

  HeedNorm norm(const std::string& at, int64_t width, Presence presence = kRequired) {
    HeedNorm made{};
    if (presence == kOptional && !has(at)) return made;
    made.gamma = weight(at + "/gamma", width), made.beta = weight(at + "/beta", width, kOptional);
    number(at + "/epsilon", made.epsilon), number(at + "/root_mean_square", made.root_mean_square, 1);
    return made;
  }

  // With `outputs` 0 there are as many as the kernel has.
  HeedDense dense(const std::string& at, int64_t inputs, int64_t outputs, Presence presence = kRequired) {
    HeedDense made{};
    if (presence == kOptional && !has(at)) return made;
    const Tensor* kernel = weight(at + "/kernel", kRequired);
    if (kernel && outputs == 0 && inputs > 0) outputs = kernel->count() / inputs;
    made.inputs = inputs, made.outputs = outputs;
    made.weight = weight(at + "/kernel", inputs * outputs, kernel),
    made.bias = weight(at + "/bias", outputs, kOptional);
    number(at + "/transposed", made.transposed, 1);
    return made;
  }

  std::vector<HeedDecoderLayer> layers_, encoder_layers_;
};

}  // namespace heed::tf
