// Attention as custom calls of XLA, for JAX: they read buffers, call the core, and pass on its errors. No arithmetic.
//
// The arguments of a call are the arrays of ../shared/call.h, in its order; its form is the attribute `form`, an array
// of int64 with its bytes.
#include "../shared/call.h"
#include "xla_c.h"

namespace heed::xla {
namespace {

// The data type of each Type but the last.
constexpr int32_t kDataTypes[] = {kXlaFloat32, kXlaFloat64, kXlaBfloat16, kXlaFloat16,
                                  kXlaInt32,   kXlaInt64,   kXlaUint32,   kXlaBool};

Array read(const XLA_FFI_Args& list, int64_t i) {
  if (i < 0 || i >= list.size) fail("a buffer is missing");
  const auto& x = *static_cast<const XLA_FFI_Buffer*>(list.args[i]);
  return {type_of(kDataTypes, x.dtype), Shape(x.dims, x.dims + x.rank), x.data};
}

std::string_view read_form(const XLA_FFI_Attrs& attributes) {
  for (int64_t i = 0; i < attributes.size; ++i) {
    const XLA_FFI_ByteSpan& name = *attributes.names[i];
    if (std::string_view(name.ptr, name.len) != "form" || attributes.types[i] != kXlaArray) continue;
    const auto& array = *static_cast<const XLA_FFI_Array*>(attributes.attrs[i]);
    if (array.dtype == kXlaInt64) return {static_cast<const char*>(array.data), sizeof(int64_t) * array.size};
  }
  fail("the attribute `form` is missing or has a wrong type");
}

// Results, which XLA has allocated.
struct Results {
  const XLA_FFI_Args& list;

  Array operator()(int64_t i, Type type, const Shape& shape) const {
    const Array found = read(list, i);
    if (found.type != type || found.shape != shape) fail("a result has a wrong type or shape" + found.shape.received());
    return found;
  }
};

// As many as XLA's own pool has: one setting for both. 0, all, where there is no pool.
int thread_count(const XLA_FFI_CallFrame& frame) {
  int64_t count = 0;
  XLA_FFI_ThreadPool_NumThreads_Args args{sizeof(args), nullptr, frame.ctx, &count};
  if (XLA_FFI_Error* error = frame.api->XLA_FFI_ThreadPool_NumThreads(&args)) {
    XLA_FFI_Error_Destroy_Args destroyed{sizeof(destroyed), nullptr, error};
    frame.api->XLA_FFI_Error_Destroy(&destroyed);
    return 0;
  }
  return static_cast<int>(std::clamp<int64_t>(count, 0, 256));
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

template <void (*pass)(const Call&, const Results&, int threads), size_t extra>
XLA_FFI_Error* handle(const XLA_FFI_CallFrame* frame) {
  if (answers_metadata(frame)) return nullptr;
  const auto failed = failure_of([&] {
    std::vector<Array> arrays;
    arrays.reserve(static_cast<size_t>(frame->args.size));
    for (int64_t i = 0; i < frame->args.size; ++i) arrays.push_back(read(frame->args, i));
    const Form& form = form_of(read_form(frame->attrs));
    pass(Call(form, arrays.data(), arrays.size(), extra), Results{frame->rets}, thread_count(*frame));
  });
  if (!failed) return nullptr;
  XLA_FFI_Error_Create_Args args{sizeof(args), nullptr, failed->text.c_str(), kXlaInvalidArgument};
  return frame->api->XLA_FFI_Error_Create(&args);
}

}  // namespace
}  // namespace heed::xla

extern "C" {

HEED_API XLA_FFI_Error* heed_xla_forward(XLA_FFI_CallFrame* frame) {
  return heed::xla::handle<heed::run_forward, heed::kNoExtra>(frame);
}

HEED_API XLA_FFI_Error* heed_xla_backward(XLA_FFI_CallFrame* frame) {
  return heed::xla::handle<heed::run_backward, heed::kOfForward>(frame);
}

HEED_API XLA_FFI_Error* heed_xla_bias_gradient(XLA_FFI_CallFrame* frame) {
  return heed::xla::handle<heed::run_bias_gradient, heed::kOfForward>(frame);
}

}  // extern "C"
