// Refuses invalid calls with a message, without letting an exception leave the library.
#pragma once

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace heed {

// Thrown by `refuse`. The text lives until the next refusal of the same thread.
struct Refused {
  const char* why;
};

__attribute__((format(printf, 1, 2))) inline void refuse(const char* format, ...) {
  static thread_local char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  throw Refused{text};
}

// Clang warns of a format without values that is not a literal here; it is one where this is called.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-security"
template <class... Values>
void require(bool holds, const char* format, Values... values) {
  if (!holds) refuse(format, values...);
}
#pragma GCC diagnostic pop

// Calls function() and returns why it was refused, or null. Any other exception means that memory ran out.
template <class Function>
const char* catch_refusal(const char* out_of_memory, const Function& function) {
  try {
    function();
    return nullptr;
  } catch (const Refused& refused) {
    return refused.why;
  } catch (...) {
    return out_of_memory;
  }
}

// More threads would only cost memory: they live on, and each needs scratch.
inline int cap_threads(int threads) { return std::min(threads, 256); }

}  // namespace heed
