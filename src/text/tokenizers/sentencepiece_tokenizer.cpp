#include "text/tokenizers/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>

#include "core/error.h"
#include "text/tokenizers/sentencepiece_bpe.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

namespace {

/// ModelProto { normalizer_spec { add_dummy_prefix: false } }. Appended to a serialized model, it replaces the model's
/// value, because protobuf merges the parts of a message.
constexpr std::string_view kNoDummyPrefix("\x1a\x02\x18\x00", 4);

/// Whether transformers adds no space before texts although the model does. Its CodeLlamaTokenizer ignores the key.
bool adds_no_space(const TokenizerSettings& settings) {
  return !settings.add_prefix_space.value_or(true) && settings.tokenizer_class != "CodeLlamaTokenizer";
}

std::optional<int32_t> known(int id) {
  if (id < 0) return {};
  return id;
}

/// Status: the library's own type before version 0.2, absl's from 0.2.
template <typename Status>
void check(const Status& status, const std::string& name, const char* action) {
  if (status.ok()) return;
  std::string message(status.ToString());
  std::ranges::replace(message, '\n', ' ');
  user_error("tokenizer {}: SentencePiece cannot {}: {}", name, action, message);
}

/// The text of token ids. Version 0.2 takes a span and deprecates vectors, earlier versions take vectors only.
template <typename Processor>
auto decode_ids(const Processor& processor, const std::vector<int>& ids, std::string* text) {
  if constexpr (requires { processor.Decode(std::span<const int>(ids), text); }) {
    return processor.Decode(std::span<const int>(ids), text);
  } else {
    return processor.Decode(ids, text);
  }
}

}  // namespace

SentencePieceTokenizer::SentencePieceTokenizer(const std::string& model, const std::string& name,
                                               const TokenizerSettings& settings)
    : name_(name), processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()) {
  const std::string adapted = model + (adds_no_space(settings) ? std::string(kNoDummyPrefix) : "");
  check(processor_->LoadFromSerializedProto(adapted), name, "load the model");
  if (processor_->GetPieceSize() <= 0)
    user_error("tokenizer {}: the SentencePiece model has no pieces", name);
  std::vector<AddedToken> added = merge_added_tokens({}, settings, "tokenizer " + name);
  if (auto spec = read_sentencepiece_bpe(adapted, settings.legacy)) {
    spec->added_tokens = std::move(added);
    bpe_ = std::make_unique<PipelineTokenizer>(std::move(*spec), name);
    return;
  }
  for (const AddedToken& token : added) {
    if (token.if_known || find_token(token.content)) continue;
    user_error(
        "tokenizer {}: the files in its folder add the token {}, which is supported for plain BPE models "
        "only; use the tokenizer.json of the same model",
        name, shown(token.content));
  }
}

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

std::optional<int32_t> SentencePieceTokenizer::model_end() const {
  return known(processor_->eos_id());
}
std::optional<int32_t> SentencePieceTokenizer::model_begin() const {
  return known(processor_->bos_id());
}

void SentencePieceTokenizer::set_document_tokens(int32_t end, std::optional<int32_t> begin) {
  end_of_document_ = end;
  begin_of_document_ = begin;
}

int64_t SentencePieceTokenizer::vocab_size() const {
  return bpe_ != nullptr ? bpe_->vocab_size() : processor_->GetPieceSize();
}

std::optional<int32_t> SentencePieceTokenizer::find_special(std::string_view token) const {
  const auto id = find_token(token);
  return id && *id < processor_->GetPieceSize() && processor_->IsControl(*id) ? id : std::nullopt;
}

std::optional<int32_t> SentencePieceTokenizer::find_token(std::string_view token) const {
  if (bpe_ != nullptr) return bpe_->find_token(token);
  // For an unknown piece, PieceToId returns the id of the unknown symbol.
  // Old versions have a string_view of their own.
  const int id = processor_->PieceToId({token.data(), token.size()});
  if (processor_->IdToPiece(id) != token) return {};
  return id;
}

void SentencePieceTokenizer::encode_text(std::string_view text, std::vector<int32_t>& tokens,
                                         SpecialTokens special) const {
  if (text.empty()) return;
  if (bpe_ != nullptr) return encode_bpe(text, tokens, special);
  std::vector<int> ids;
  check(processor_->Encode({text.data(), text.size()}, &ids), name_, "encode a text");
  tokens.insert(tokens.end(), ids.begin(), ids.end());
}

void SentencePieceTokenizer::encode_bpe(std::string_view text, std::vector<int32_t>& tokens,
                                        SpecialTokens special) const {
  if (valid_utf8_prefix(text) == text.size()) return bpe_->encode(text, tokens, special);
  std::string repaired;
  for_each_utf8_run(text, [&](std::string_view run, bool valid) {
    if (valid) {
      repaired += run;
    } else {
      for (size_t i = 0; i < run.size(); ++i) append_utf8(0xFFFD, repaired);
    }
  });
  bpe_->encode(repaired, tokens, special);
}

std::string SentencePieceTokenizer::decode(std::span<const int32_t> tokens) const {
  std::string result;
  std::vector<int> run;  // without control symbols
  const auto flush = [&] {
    std::string text;
    check(decode_ids(*processor_, run, &text), name_, "decode tokens");
    result += text;
    run.clear();
  };
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocab_size()) {
      user_error("token {}: the tokenizer {} has ids 0 to {}; use the tokenizer that made the data", token,
                 name_, vocab_size() - 1);
    }
    if (token >= processor_->GetPieceSize()) {
      flush();
      result += bpe_->decode({&token, 1});
    } else if (processor_->IsControl(token)) {
      flush();
      result += processor_->IdToPiece(token);
    } else {
      run.push_back(token);
    }
  }
  flush();
  return result;
}

}  // namespace te::text
