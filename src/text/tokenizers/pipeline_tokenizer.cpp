#include "text/tokenizers/pipeline_tokenizer.h"

#include <algorithm>

#include "core/error.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

/// Per-thread buffers, which are reused so that encoding a document allocates nothing in the steady state.
struct PipelineTokenizer::Workspace {
  ModelWorkspace model;
  PatternWorkspace pattern;
  std::string normalized, spare;
  std::vector<std::string> buffers;

  /// Releases the memory of a huge document.
  void trim() {
    constexpr size_t kKeep = size_t{4} << 20;
    for (std::string* buffer : {&normalized, &spare}) {
      if (buffer->capacity() > kKeep) *buffer = {};
    }
    for (std::string& buffer : buffers) {
      if (buffer.capacity() > kKeep) buffer = {};
    }
  }
};

class PipelineTokenizer::WorkspaceLoan {
 public:
  explicit WorkspaceLoan(const PipelineTokenizer& tokenizer) : tokenizer_(tokenizer) {
    {
      const std::lock_guard lock(tokenizer.workspaces_mutex_);
      if (!tokenizer.workspaces_.empty()) {
        workspace_ = std::move(tokenizer.workspaces_.back());
        tokenizer.workspaces_.pop_back();
      }
    }
    if (workspace_ == nullptr) workspace_ = std::make_unique<Workspace>();
  }
  ~WorkspaceLoan() {
    workspace_->trim();
    const std::lock_guard lock(tokenizer_.workspaces_mutex_);
    tokenizer_.workspaces_.push_back(std::move(workspace_));
  }
  WorkspaceLoan(const WorkspaceLoan&) = delete;
  WorkspaceLoan& operator=(const WorkspaceLoan&) = delete;
  Workspace& operator*() const { return *workspace_; }

 private:
  const PipelineTokenizer& tokenizer_;
  std::unique_ptr<Workspace> workspace_;
};

namespace {

std::unique_ptr<const TokenModel> make_model(const ModelSpec& spec, const std::string& where) {
  return std::visit(
      [&]<class Spec>(const Spec& model) -> std::unique_ptr<const TokenModel> {
        return std::make_unique<typename Spec::Model>(model, where);
      },
      spec);
}

}  // namespace

PipelineTokenizer::PipelineTokenizer(PipelineSpec spec, const std::string& name)
    : name_(name),
      model_(make_model(spec.model, "tokenizer " + name)),
      vocabulary_(model_->vocabulary()),
      normalizer_(std::move(spec.normalizer)),
      pre_tokenizer_(std::move(spec.pre_tokenizer)),
      decoder_(std::move(spec.decoder)),
      vocab_size_(vocabulary_.num_ids()) {
  add_tokens(std::move(spec.added_tokens), "tokenizer " + name);
}

PipelineTokenizer::~PipelineTokenizer() = default;

// The reference ignores the ids of added tokens: it numbers tokens that the vocabulary lacks after the vocabulary.
int32_t PipelineTokenizer::choose_id(const AddedToken& token, int64_t& next_id,
                                     const std::string& where) const {
  const int64_t limit = 2 * static_cast<int64_t>(vocabulary_.num_tokens() + added_tokens_.size()) + 65536;
  const auto in_model = vocabulary_.find(token.content);
  if (!token.id && !in_model && token.gets_no_id) {
    user_error(
        "{}: {}, a special token of the files in its folder, is not in the vocabulary; correct it in "
        "tokenizer_config.json",
        where, shown(token.content));
  }
  const int64_t wanted = token.id.value_or(in_model ? *in_model : next_id);
  if (wanted < 0 || wanted >= limit) {
    user_error("{}: added token {} has id {}; it must be 0 to {}", where, shown(token.content), wanted,
               limit - 1);
  }
  const auto id = static_cast<int32_t>(wanted);
  if (in_model ? *in_model != id : vocabulary_.has(id)) {
    user_error("{}: added token {} has id {}, but in the vocabulary {}; the ids must agree", where,
               shown(token.content), id,
               in_model ? fmt::format("its id is {}", *in_model)
                        : "this is the id of " + shown(vocabulary_.token(id)));
  }
  if (!in_model && id != next_id++) {
    user_error(
        "{}: added token {} has id {}, but Hugging Face assigns {}, because it numbers added tokens after "
        "the {} tokens of the vocabulary; list the added tokens without gaps in their ids",
        where, shown(token.content), id, next_id - 1, vocabulary_.num_tokens());
  }
  return id;
}

void PipelineTokenizer::add_tokens(std::vector<AddedToken> added_tokens, const std::string& where) {
  constexpr size_t kMaxNames = size_t{64} << 20;
  added_tokens_ = std::move(added_tokens);
  std::erase_if(added_tokens_,
                [&](const AddedToken& token) { return token.if_known && !vocabulary_.find(token.content); });
  added_names_.reserve(added_tokens_.size());
  size_t names_bytes = 0;
  std::string spare;
  PatternWorkspace pattern;
  auto next_id = static_cast<int64_t>(vocabulary_.num_tokens());
  for (size_t i = 0; i < added_tokens_.size(); ++i) {
    AddedToken& token = added_tokens_[i];
    const int32_t id = choose_id(token, next_id, where);
    token.id = id;
    if (!added_by_id_.emplace(id, i).second || !added_ids_.emplace(token.content, id).second) {
      user_error("{}: added token {} (id {}) is a duplicate by content or id; remove one of the two", where,
                 shown(token.content), id);
    }
    vocab_size_ = std::max(vocab_size_, int64_t{id} + 1);
    std::string text = token.content;
    if (token.normalized) normalizer_.apply(text, spare, pattern);
    if ((names_bytes += text.size()) > kMaxNames) {
      user_error("{}: its normalizer expands the added tokens to more than {} bytes; correct its `Replace`",
                 where, kMaxNames);
    }
    added_names_.push_back(text);
    (token.normalized ? normalized_finder_ : raw_finder_).add(std::move(text), token);
  }
  raw_finder_.build();
  normalized_finder_.build();
}

void PipelineTokenizer::set_document_tokens(int32_t end, std::optional<int32_t> begin) {
  end_of_document_ = end;
  begin_of_document_ = begin;
}

std::optional<int32_t> PipelineTokenizer::find_token(std::string_view token) const {
  if (const auto found = added_ids_.find(token); found != added_ids_.end()) return found->second;
  return vocabulary_.find(token);
}

std::optional<int32_t> PipelineTokenizer::find_special(std::string_view token) const {
  const auto found = added_ids_.find(token);
  if (found == added_ids_.end() || !added_tokens_[added_by_id_.at(found->second)].special) return {};
  return found->second;
}

void PipelineTokenizer::encode_text(std::string_view text, std::vector<int32_t>& tokens,
                                    SpecialTokens special) const {
  if (text.empty()) return;
  const WorkspaceLoan loan(*this);
  Workspace& workspace = *loan;
  const bool valid = valid_utf8_prefix(text) == text.size();
  raw_finder_.split(
      text, special,
      [&](std::string_view part) {
        PreTokenizer::Span span = {part, valid, part.data() == text.data()};
        if (!normalizer_.empty()) {
          workspace.normalized.assign(part);
          normalizer_.apply(workspace.normalized, workspace.spare, workspace.pattern);
          span.text = workspace.normalized;
        }
        encode_span(span, special, workspace, tokens);
      },
      [&](int32_t id) { tokens.push_back(id); });
}

void PipelineTokenizer::encode_span(const PreTokenizer::Span& span, SpecialTokens special,
                                    Workspace& workspace, std::vector<int32_t>& tokens) const {
  normalized_finder_.split(
      span.text, special,
      [&](std::string_view part) {
        const PreTokenizer::Span rest = {part, span.valid, span.at_start && part.data() == span.text.data()};
        pre_tokenizer_.split(rest, workspace.pattern, workspace.buffers,
                             [&](std::string_view word) { model_->encode(word, workspace.model, tokens); });
      },
      [&](int32_t id) { tokens.push_back(id); });
}

std::string PipelineTokenizer::decode(std::span<const int32_t> tokens) const {
  std::vector<std::string> names;
  names.reserve(tokens.size());
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocab_size_) {
      user_error("token {}: the tokenizer {} has ids 0 to {}; use the tokenizer that made the data", token,
                 name_, vocab_size_ - 1);
    }
    const auto added = added_by_id_.find(token);
    if (added != added_by_id_.end()) {
      names.push_back(added_names_[added->second]);
    } else if (vocabulary_.has(token)) {
      names.emplace_back(vocabulary_.token(token));
    }
  }
  return decoder_.decode(std::move(names));
}

}  // namespace te::text
