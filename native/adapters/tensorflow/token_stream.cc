// The streams of token_stream.h.
#include "token_stream.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <map>

namespace heed::tf {
namespace {

// All open streams. Never destroyed: threads may decode while the process ends.
struct Streams {
  std::mutex mutex;
  std::map<int64_t, std::shared_ptr<TokenStream>> open;
  int64_t next = 1;
};
Streams& streams = *new Streams;

// A process that forks waits until no other thread holds the lock, which its child would find closed for ever.
void lock_streams() { streams.mutex.lock(); }
void unlock_streams() { streams.mutex.unlock(); }
[[maybe_unused]] const int registered = pthread_atfork(lock_streams, unlock_streams, unlock_streams);

}  // namespace

void TokenStream::reserve(int64_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  tokens_.reserve(static_cast<size_t>(count));
}

bool TokenStream::write(int32_t token) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return false;
    tokens_.push_back(token);
  }
  changed_.notify_one();
  return true;
}

void TokenStream::end() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
  }
  changed_.notify_one();
}

int64_t TokenStream::read(int32_t* tokens, int64_t capacity, double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  // The system's clock: waits on a steady one need a C library of 2020.
  const auto limit = std::chrono::system_clock::now() + std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6));
  changed_.wait_until(lock, limit, [&] { return read_ < tokens_.size() || ended_ || closed_; });
  const auto count = std::min<size_t>(tokens_.size() - read_, static_cast<size_t>(std::max<int64_t>(capacity, 0)));
  std::copy_n(tokens_.data() + read_, count, tokens);
  read_ += count;
  return count == 0 && (ended_ || closed_) ? -1 : static_cast<int64_t>(count);
}

void TokenStream::close() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
  }
  changed_.notify_one();
}

std::shared_ptr<TokenStream> find_stream(int64_t number) {
  const std::lock_guard<std::mutex> lock(streams.mutex);
  const auto found = streams.open.find(number);
  return found == streams.open.end() ? nullptr : found->second;
}

}  // namespace heed::tf

int64_t heed_token_stream_open() {
  const auto made = std::make_shared<heed::tf::TokenStream>();
  const std::lock_guard<std::mutex> lock(heed::tf::streams.mutex);
  heed::tf::streams.open.emplace(heed::tf::streams.next, made);
  return heed::tf::streams.next++;
}

int64_t heed_token_stream_read(int64_t number, int32_t* tokens, int64_t capacity, double seconds) {
  const auto stream = heed::tf::find_stream(number);
  return stream ? stream->read(tokens, capacity, seconds) : -1;
}

void heed_token_stream_end(int64_t number) {
  if (const auto stream = heed::tf::find_stream(number)) stream->end();
}

void heed_token_stream_close(int64_t number) {
  std::shared_ptr<heed::tf::TokenStream> stream;
  {
    const std::lock_guard<std::mutex> lock(heed::tf::streams.mutex);
    const auto found = heed::tf::streams.open.find(number);
    if (found == heed::tf::streams.open.end()) return;
    stream = found->second;
    heed::tf::streams.open.erase(found);
  }
  stream->close();
}
