#include "generate/evaluation/requests.h"

#include <algorithm>

#include "core/error.h"
#include "generate/evaluation/python_text.h"
#include "text/tokenizers/parallel_encoder.h"

namespace te::generate {
namespace {

using Tokens = std::vector<int32_t>;

/// Moves the white space at the end of a request's context to the continuation.
Request moved_space(const Request& request) {
  const std::string_view context = python::rstrip(request.context);
  return {std::string(context), request.context.substr(context.size()) + request.continuation};
}

/// Texts to encode; consecutive equal texts are stored once.
class TextList {
 public:
  size_t add(std::string text) {
    if (texts_.empty() || texts_.back() != text) texts_.push_back(std::move(text));
    return texts_.size() - 1;
  }
  const std::vector<std::string>& all() const { return texts_; }

 private:
  std::vector<std::string> texts_;
};

}  // namespace

RequestEncoder::RequestEncoder(const text::Tokenizer& tokenizer, bool begin, int64_t vocab_size,
                               int64_t max_length)
    : tokenizer_(tokenizer),
      begin_(begin),
      vocab_size_(vocab_size),
      max_length_(max_length),
      prefix_(tokenizer.begin_of_document().value_or(tokenizer.end_of_document())),
      prefix_text_(tokenizer.decode({&prefix_, 1})) {}

Tokens RequestEncoder::with_begin(std::string_view text, Tokens tokens) const {
  if (begin_ && !text.starts_with(prefix_text_)) tokens.insert(tokens.begin(), prefix_);
  return tokens;
}

void RequestEncoder::check_tokens(std::span<const TokenRequest> requests, const std::string& place) const {
  for (const TokenRequest& request : requests)
    for (const int32_t token : request.tokens)
      if (token >= vocab_size_)
        user_error("{}: tokenizer {} produces token {}, the model's vocabulary has {} tokens", place,
                   tokenizer_.name(), token, vocab_size_);
}

TokenRequest RequestEncoder::request(Tokens context, const Tokens& continuation,
                                     const std::string& place) const {
  const auto scored = static_cast<int64_t>(continuation.size());
  if (context.empty() || scored == 0)
    user_error("{}: the tokenizer produces no token for a {}", place,
               scored == 0 ? "continuation" : "context");
  if (scored > max_length_)
    user_error("{}: a continuation has {} tokens, the model's context has {}", place, scored, max_length_);
  TokenRequest result{std::move(context), scored};
  result.tokens.insert(result.tokens.end(), continuation.begin(), continuation.end());
  const int64_t excess = result.inputs() - max_length_;
  if (excess > 0) result.tokens.erase(result.tokens.begin(), result.tokens.begin() + excess);
  result.truncated = excess > 0;
  return result;
}

// The first window has the prefix token as context; every other window has as much context as the model supports.
std::vector<TokenRequest> RequestEncoder::windows(const Tokens& tokens) const {
  std::vector<TokenRequest> result;
  const auto count = static_cast<int64_t>(tokens.size());
  for (int64_t done = 0; done < count;) {
    const int64_t scored = std::min(count - done, max_length_), end = done + scored;
    TokenRequest window{{}, scored};
    if (done == 0) window.tokens.push_back(prefix_);
    window.tokens.insert(window.tokens.end(), tokens.begin() + std::max<int64_t>(0, end - max_length_ - 1),
                         tokens.begin() + end);
    result.push_back(std::move(window));
    done = end;
  }
  return result;
}

std::vector<std::vector<TokenRequest>> RequestEncoder::encode(const Task& task,
                                                              std::span<const Document> documents) const {
  TextList contexts, full_texts;
  std::vector<std::pair<size_t, size_t>> places;  // of each request
  for (const Document& document : documents) {
    for (const Request& request : document.requests) {
      const Request moved = request.context.empty() ? request : moved_space(request);
      places.emplace_back(contexts.add(moved.context), full_texts.add(moved.context + moved.continuation));
    }
  }
  const std::vector<Tokens> context_tokens = text::encode_batch(tokenizer_, contexts.all());
  const std::vector<Tokens> full_tokens = text::encode_batch(tokenizer_, full_texts.all());
  std::vector<std::vector<TokenRequest>> result;
  size_t next = 0;
  for (const Document& document : documents) {
    const std::string place = fmt::format("task {}, document {}", task.name, document.id);
    for (size_t i = 0; i < document.requests.size(); ++i, ++next) {
      const auto [at, full_at] = places[next];
      const std::string &context_text = contexts.all()[at], &full_text = full_texts.all()[full_at];
      Tokens full = full_tokens[full_at];
      if (task.kind == TaskKind::rolling) {
        result.push_back(windows(with_begin(full_text, std::move(full))));
        check_tokens(result.back(), place);
        continue;
      }
      Tokens context;
      if (document.requests[i].context.empty()) {
        if (full.empty() || full[0] != prefix_) full.insert(full.begin(), prefix_);
        context = {prefix_};
      } else {
        full = with_begin(full_text, std::move(full));
        context = with_begin(context_text, context_tokens[at]);
      }
      // As in lm-evaluation-harness, the continuation starts after as many tokens as the context alone has, even if a
      // token of the full text spans the boundary.
      const size_t begin = std::min(context.size(), full.size());
      result.push_back(
          {request(context, Tokens(full.begin() + static_cast<std::ptrdiff_t>(begin), full.end()), place)});
      check_tokens(result.back(), place);
    }
  }
  return result;
}

}  // namespace te::generate
