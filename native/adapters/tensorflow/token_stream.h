// Tokens on their way from the op that decodes them to another thread, which reads them as they come.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "../../include/heed.h"

namespace heed::tf {

// One thread writes and one reads. The writer never waits for the reader.
class TokenStream {
 public:
  // Of the writer, first: makes room for all its tokens, so that writing needs no memory.
  void reserve(int64_t count);
  // Returns whether the reader wants more.
  bool write(int32_t token);
  // Of the writer: no more tokens will come.
  void end();
  // Of the reader: copies up to `capacity` tokens and returns their number, after it has waited up to `seconds` for the
  // first one; 0: none came in that time; -1: all were read, and no more will come.
  int64_t read(int32_t* tokens, int64_t capacity, double seconds);
  // Of the reader: wants no more tokens.
  void close();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int32_t> tokens_;
  size_t read_ = 0;
  bool ended_ = false, closed_ = false;
};

// The open stream of this number, or null.
std::shared_ptr<TokenStream> find_stream(int64_t number);

}  // namespace heed::tf

// For Python. Streams have numbers, so that no op ever follows an address from outside. Of a number that is not that of
// an open stream, `read` returns -1 and the others do nothing.
extern "C" {
HEED_API int64_t heed_token_stream_open();
HEED_API int64_t heed_token_stream_read(int64_t number, int32_t* tokens, int64_t capacity, double seconds);
HEED_API void heed_token_stream_end(int64_t number);
// Closes and forgets it.
HEED_API void heed_token_stream_close(int64_t number);
}
