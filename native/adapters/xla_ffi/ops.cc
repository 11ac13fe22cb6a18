// Attention as custom calls of XLA, for JAX: they read buffers, call the core, and pass on its errors. No arithmetic.
#include <new>

#include "call.h"

namespace heed::xla {
namespace {

// The arguments that the backward pass has after the value.
constexpr int64_t kNoExtra = 0, kOfForward = 4;

void run_forward(const Call& call) {
  HeedForward results{};
  results.output = call.output(call.result(0));
  results.lse = call.numbers(call.result(1), call.lse_count());
  results.softmax = call.numbers(call.result(2), heed_softmax_size(&call.attention));
  check(heed_forward(&call.attention, &results, call.threads()));
}

HeedBackward read_backward(const Call& call) {
  HeedBackward pass{};
  pass.softmax = call.numbers(call.input(3), heed_softmax_size(&call.attention));
  pass.output = call.output(call.input(4));
  pass.output_gradient = call.output(call.input(5));
  pass.lse_gradient = call.numbers(call.input(6), call.lse_count());
  return pass;
}

void run_backward(const Call& call) {
  const HeedAttention& a = call.attention;
  HeedBackward pass = read_backward(call);
  pass.query_gradient = call.rows(call.result(0), a.query_length, a.heads, a.head_dim);
  pass.key_gradient = call.rows(call.result(1), a.key_length, a.kv_heads, a.head_dim);
  pass.value_gradient = call.rows(call.result(2), a.key_length, a.kv_heads, a.value_dim);
  if (call.additive()) {
    pass.score_vector_gradient = call.numbers(call.result(3), a.head_dim);
    pass.bias_gradient = call.numbers(call.result(4), a.head_dim);
  }
  check(heed_backward(&a, &pass, call.threads()));
}

void run_bias_gradient(const Call& call) {
  const HeedAttention& a = call.attention;
  if (!a.bias.data) fail("there must be a bias");
  HeedBackward pass = read_backward(call);
  const int64_t* shape = a.bias.shape;
  pass.bias_gradient = call.numbers(call.result(0), shape[0] * shape[1] * shape[2] * shape[3]);
  check(heed_bias_gradient(&a, &pass, call.threads()));
}

// Whether XLA only asks for the version of a handler, which it does when the handler is registered. XLA takes a handler
// of its own version or an older one that it still serves, and refuses the others.
bool answers_metadata(const XLA_FFI_CallFrame* frame) {
  const XLA_FFI_Extension_Base* extension = frame->extension_start;
  if (!extension || extension->type != kXlaMetadata) return false;
  XLA_FFI_Metadata* metadata = reinterpret_cast<const XLA_FFI_Metadata_Extension*>(extension)->metadata;
  int major = kXlaMajor, minor = 1;  // the first one asks without its table of functions
  if (frame->api) major = frame->api->api_version.major_version, minor = frame->api->api_version.minor_version;
  const bool is_compared = major == kXlaMajor && minor <= kXlaMinor;
  metadata->api_version.major_version = kXlaMajor;
  metadata->api_version.minor_version = is_compared ? minor : kXlaMinor;
  metadata->traits = 0;
  return true;
}

template <void (*run)(const Call&), int64_t extra>
XLA_FFI_Error* handle(const XLA_FFI_CallFrame* frame) {
  if (answers_metadata(frame)) return nullptr;
  std::string message = "out of memory";
  try {
    run(Call(frame, extra));
    return nullptr;
  } catch (const std::bad_alloc&) {
  } catch (const std::exception& error) {
    message = error.what();
  }
  XLA_FFI_Error_Create_Args args{sizeof(args), nullptr, message.c_str(), kXlaInvalidArgument};
  return frame->api->XLA_FFI_Error_Create(&args);
}

}  // namespace
}  // namespace heed::xla

extern "C" {

HEED_API XLA_FFI_Error* heed_xla_forward(XLA_FFI_CallFrame* frame) {
  return heed::xla::handle<heed::xla::run_forward, heed::xla::kNoExtra>(frame);
}

HEED_API XLA_FFI_Error* heed_xla_backward(XLA_FFI_CallFrame* frame) {
  return heed::xla::handle<heed::xla::run_backward, heed::xla::kOfForward>(frame);
}

HEED_API XLA_FFI_Error* heed_xla_bias_gradient(XLA_FFI_CallFrame* frame) {
  return heed::xla::handle<heed::xla::run_bias_gradient, heed::xla::kOfForward>(frame);
}

}  // extern "C"
