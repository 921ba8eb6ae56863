// A queue of batches: the owner thread fills and drains it in order, worker threads encode. Batches are reused, so no
// memory is allocated in the steady state.
#include "text/tokenizers/parallel_encoder.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "core/cpu_threads.h"
#include "core/error.h"

namespace te::text {

namespace {

constexpr size_t kBatchBytes = size_t{64} << 10;
constexpr size_t kBatchDocuments = 4096;  // bounds batches of empty documents

/// Concatenated documents and, after encoding, their tokens.
struct Batch {
  std::string text;
  std::vector<size_t> text_ends;
  std::vector<int64_t> tags;
  std::vector<int32_t> tokens;
  std::vector<size_t> token_ends;  // per encoded document; fewer than documents after an error
  std::exception_ptr error;
  bool done = false;

  void append(std::string_view document, int64_t tag) {
    text += document;
    text_ends.push_back(text.size());
    tags.push_back(tag);
  }
  void clear() {
    if (text.capacity() > 16 * kBatchBytes) *this = Batch();  // release the memory of a huge document
    text.clear();
    text_ends.clear();
    tags.clear();
    tokens.clear();
    token_ends.clear();
    error = nullptr;
    done = false;
  }
};

}  // namespace

struct ParallelEncoder::Impl {
  const Tokenizer& tokenizer;
  const ParallelEncoderOptions options;
  const Sink sink;

  // Used by the owner thread only.
  std::unique_ptr<Batch> filling = std::make_unique<Batch>();
  std::vector<std::unique_ptr<Batch>> spare;
  std::deque<std::unique_ptr<Batch>> in_flight;  // oldest first
  size_t bytes_in_flight = 0;
  std::vector<std::thread> workers;

  // The mutex protects these and the `done` of every batch.
  std::mutex mutex;
  std::condition_variable work_added, batch_done;
  std::deque<Batch*> waiting;
  bool stopping = false;

  Impl(const Tokenizer& tokenizer, const ParallelEncoderOptions& options, Sink sink)
      : tokenizer(tokenizer), options(options), sink(std::move(sink)) {
    const int threads = options.threads == 0 ? available_threads() : options.threads;
    workers.reserve(static_cast<size_t>(threads));
    try {
      while (workers.size() < workers.capacity()) workers.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      const size_t started = workers.size();
      stop();
      user_error(
          "threads: the system allows {} of {} threads ({}): use fewer, or raise its limit "
          "(ulimit -u, ulimit -v, pids of a container)",
          started, threads, error.what());
    }
  }

  ~Impl() { stop(); }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    work_added.notify_all();
    for (std::thread& worker : workers) worker.join();
    workers.clear();
  }

  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      work_added.wait(lock, [this] { return stopping || !waiting.empty(); });
      if (stopping) return;
      Batch* batch = waiting.front();
      waiting.pop_front();
      lock.unlock();
      encode(*batch);
      lock.lock();
      batch->done = true;
      batch_done.notify_one();
    }
  }

  void encode(Batch& batch) const {
    try {
      size_t begin = 0;
      for (const size_t end : batch.text_ends) {
        tokenizer.encode(std::string_view(batch.text).substr(begin, end - begin), batch.tokens,
                         options.special);
        if (options.end_of_document) batch.tokens.push_back(tokenizer.end_of_document());
        batch.token_ends.push_back(batch.tokens.size());
        begin = end;
      }
    } catch (...) {
      batch.error = std::current_exception();
    }
  }

  /// Passes the current batch to the workers.
  void submit() {
    if (filling->text_ends.empty()) return;
    bytes_in_flight += filling->text.size();
    in_flight.push_back(std::move(filling));
    {
      const std::lock_guard lock(mutex);
      waiting.push_back(in_flight.back().get());
    }
    work_added.notify_one();
    if (spare.empty()) {
      filling = std::make_unique<Batch>();
    } else {
      filling = std::move(spare.back());
      spare.pop_back();
    }
  }

  /// Whether the oldest batch is encoded; `wait` blocks until it is.
  bool oldest_done(bool wait) {
    std::unique_lock lock(mutex);
    const Batch& oldest = *in_flight.front();
    if (wait) batch_done.wait(lock, [&oldest] { return oldest.done; });
    return oldest.done;
  }

  /// Passes batches to the sink, oldest first: those that are ready, and, by waiting, as many as needed until at most
  /// `limit` bytes and `max_batches` batches are in flight.
  void drain(size_t limit, size_t max_batches) {
    while (!in_flight.empty() && oldest_done(bytes_in_flight > limit || in_flight.size() > max_batches)) {
      std::unique_ptr<Batch> batch = std::move(in_flight.front());
      in_flight.pop_front();
      bytes_in_flight -= batch->text.size();
      size_t begin = 0;
      for (size_t i = 0; i < batch->token_ends.size(); ++i) {
        const size_t end = batch->token_ends[i];
        sink(std::span<const int32_t>(batch->tokens).subspan(begin, end - begin), batch->tags[i]);
        begin = end;
      }
      if (batch->error) std::rethrow_exception(batch->error);
      batch->clear();
      spare.push_back(std::move(batch));
    }
  }
};

ParallelEncoder::ParallelEncoder(const Tokenizer& tokenizer, const ParallelEncoderOptions& options,
                                 Sink sink) {
  constexpr int kMaxThreads = 1024;
  if (options.threads < 0 || options.threads > kMaxThreads) {
    user_error("threads: {} must be 0 (all) to {}; correct it", options.threads, kMaxThreads);
  }
  impl_ = std::make_unique<Impl>(tokenizer, options, std::move(sink));
}

ParallelEncoder::~ParallelEncoder() = default;

void ParallelEncoder::add(std::string_view text, int64_t tag) {
  const Batch& batch = *impl_->filling;
  if (batch.text.size() + text.size() > kBatchBytes || batch.text_ends.size() >= kBatchDocuments) {
    impl_->submit();
    // The number of batches is bounded too, because empty documents have no bytes.
    impl_->drain(static_cast<size_t>(impl_->options.max_bytes_in_flight), 16 * impl_->workers.size() + 64);
  }
  impl_->filling->append(text, tag);
}

void ParallelEncoder::finish() {
  impl_->submit();
  while (!impl_->in_flight.empty()) impl_->drain(0, 0);
}

std::vector<std::vector<int32_t>> encode_batch(const Tokenizer& tokenizer, std::span<const std::string> texts,
                                               int threads, SpecialTokens special) {
  std::vector<std::vector<int32_t>> result;
  result.reserve(texts.size());
  ParallelEncoder encoder(
      tokenizer, {.threads = threads, .special = special},
      [&](std::span<const int32_t> tokens, int64_t) { result.emplace_back(tokens.begin(), tokens.end()); });
  for (const std::string& text : texts) encoder.add(text);
  encoder.finish();
  return result;
}

}  // namespace te::text
