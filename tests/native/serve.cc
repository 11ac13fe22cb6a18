// Calls functions of the core for another process, as a program of its own: tests run it under an emulator.
//
//   heed_serve FD ADDRESS BYTES
//
// FD is memory that both processes map at ADDRESS, so pointers into it mean the same to both. Reads requests from
// standard input, until it ends, and writes a reply to each to standard output.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "heed.h"

namespace {

struct Request {
  char name[40];       // of a function
  int64_t text;        // whether it returns a string
  uint64_t values[8];  // its arguments: integers and pointers
};

struct Reply {
  int64_t value;  // with `text`, whether there is one
  int64_t bytes;  // of the text that follows
};

bool read_all(void* to, size_t bytes) { return std::fread(to, 1, bytes, stdin) == bytes; }

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) return 2;
  const int fd = std::atoi(arguments[1]);
  void* const address = reinterpret_cast<void*>(std::strtoull(arguments[2], nullptr, 0));
  const size_t bytes = std::strtoull(arguments[3], nullptr, 0);
  if (mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != address) return 3;
  if (heed_version() <= 0) return 4;  // links the core
  for (Request request; read_all(&request, sizeof(request));) {
    typedef uint64_t (*Function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
    const Function function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, request.name));
    if (!function) return 5;
    const uint64_t* v = request.values;
    const uint64_t result = function(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);
    const char* const text = request.text ? reinterpret_cast<const char*>(result) : nullptr;
    const Reply reply = {request.text ? text != nullptr : static_cast<int64_t>(result),
                         text ? static_cast<int64_t>(std::strlen(text)) : 0};
    std::fwrite(&reply, sizeof(reply), 1, stdout);
    std::fwrite(text, 1, static_cast<size_t>(reply.bytes), stdout);
    std::fflush(stdout);
  }
  return 0;
}
