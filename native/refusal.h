// How a call that is not as the C interface asks is refused: with words, and without an exception that leaves the
// library.
#pragma once

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace heed {

// Why a call is refused. The text stays until the thread's next refusal.
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

template <class... Values>
void require(bool holds, const char* format, Values... values) {
  if (!holds) refuse(format, values...);
}

// No exception may leave the library. All others say that memory is short.
template <class Function>
const char* refusal(const char* out_of_memory, const Function& function) {
  try {
    function();
    return nullptr;
  } catch (const Refused& refused) {
    return refused.why;
  } catch (...) {
    return out_of_memory;
  }
}

// More would only cost memory: threads live on, and each needs scratch.
inline int most_threads(int threads) { return std::min(threads, 256); }

}  // namespace heed
