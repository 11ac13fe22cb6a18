// The part of XLA's C interface for custom calls that the adapter uses, by the names of its version 0.1. The layout of
// these structs is the same in versions 0.1 (jaxlib 0.4.38) to 0.5 (jaxlib 0.12), so no header of XLA is needed to
// build, and one library serves all of them. tests/native/test_adapters_xla.py compares them with the headers of
// packages.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// The newest version whose header was compared.
constexpr int kXlaMajor = 0, kXlaMinor = 5;

struct XLA_FFI_Error;
struct XLA_FFI_ExecutionContext;

// XLA_FFI_Extension_Type
constexpr int32_t kXlaMetadata = 1;

struct XLA_FFI_Extension_Base {
  size_t struct_size;
  int32_t type;
  XLA_FFI_Extension_Base* next;
};

struct XLA_FFI_Api_Version {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  int major_version, minor_version;
};

struct XLA_FFI_Metadata {
  size_t struct_size;
  XLA_FFI_Api_Version api_version;
  uint32_t traits;
};

// What XLA asks with when a handler is registered.
struct XLA_FFI_Metadata_Extension {
  XLA_FFI_Extension_Base extension_base;
  XLA_FFI_Metadata* metadata;
};

// XLA_FFI_Error_Code
constexpr int32_t kXlaInvalidArgument = 3;

struct XLA_FFI_Error_Create_Args {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  const char* message;
  int32_t errc;
};

struct XLA_FFI_Error_Destroy_Args {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  XLA_FFI_Error* error;
};

// XLA_FFI_DataType
constexpr int32_t kXlaBool = 1, kXlaInt32 = 4, kXlaInt64 = 5, kXlaUint32 = 8, kXlaFloat16 = 10, kXlaFloat32 = 11,
                  kXlaFloat64 = 12, kXlaBfloat16 = 16;

struct XLA_FFI_Buffer {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  int32_t dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};

struct XLA_FFI_ByteSpan {
  const char* ptr;
  size_t len;
};

struct XLA_FFI_Array {
  int32_t dtype;
  size_t size;
  void* data;
};

// XLA_FFI_AttrType
constexpr int32_t kXlaArray = 1;

// Arguments and results; both are buffers.
struct XLA_FFI_Args {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  int64_t size;
  int32_t* types;
  void** args;
};

struct XLA_FFI_Attrs {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  int64_t size;
  int32_t* types;
  XLA_FFI_ByteSpan** names;
  void** attrs;
};

struct XLA_FFI_ThreadPool_NumThreads_Args {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  XLA_FFI_ExecutionContext* ctx;
  int64_t* num_threads;
};

struct XLA_FFI_Api {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  XLA_FFI_Api_Version api_version;
  const void* internal_api;
  XLA_FFI_Error* (*XLA_FFI_Error_Create)(XLA_FFI_Error_Create_Args*);
  void* XLA_FFI_Error_GetMessage;
  void (*XLA_FFI_Error_Destroy)(XLA_FFI_Error_Destroy_Args*);
  void* unused[9];
  XLA_FFI_Error* (*XLA_FFI_ThreadPool_NumThreads)(XLA_FFI_ThreadPool_NumThreads_Args*);
};

struct XLA_FFI_CallFrame {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  const XLA_FFI_Api* api;
  XLA_FFI_ExecutionContext* ctx;
  int32_t stage;
  XLA_FFI_Args args;
  XLA_FFI_Args rets;
  XLA_FFI_Attrs attrs;
};

}  // extern "C"
