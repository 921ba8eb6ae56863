#include "text/chat/rendered.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"

namespace te::text {
namespace {

using nlohmann::json;

struct Segment {
  const std::string& text;
  bool in_loss;
};

std::vector<Segment> segments_of(const JsonRecord& record) {
  const json* list = find_field(record.object, "segments");
  const auto refuse = [&] {
    user_error(
        "{}: `segments` must be a list of objects with `text` and `loss` (0 or 1); create the file with "
        "scripts/render_chat.py, or leave out --rendered",
        record.place);
  };
  if (list == nullptr || !list->is_array()) refuse();
  std::vector<Segment> segments;
  for (const json& item : *list) {
    if (!item.is_object()) refuse();
    const auto text = item.find("text"), loss = item.find("loss");
    if (text == item.end() || !text->is_string() || loss == item.end() || (*loss != 0 && *loss != 1))
      refuse();
    segments.push_back({text->get_ref<const std::string&>(), *loss == 1});
  }
  return segments;
}

/// Appends segments; encodes a segment together with the preceding text where that leaves the earlier tokens unchanged.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void add(const Segment& segment, const std::string& place) {
    std::vector<int32_t> whole;
    tokenizer_.encode(joint_ + segment.text, whole);
    const bool grows =
        whole.size() >= tokens_.size() && std::equal(tokens_.begin(), tokens_.end(), whole.begin());
    if (grows) {
      joint_ += segment.text;
      append(std::span(whole).subspan(tokens_.size()), segment.in_loss);
      tokens_ = std::move(whole);
      return;
    }
    std::vector<int32_t> separate, both = tokens_;
    tokenizer_.encode(segment.text, separate);
    both.insert(both.end(), separate.begin(), separate.end());
    // The texts can differ, for example by the space that SentencePiece prepends to a text.
    if (tokenizer_.decode(both) != joint_ + segment.text) {
      user_error(
          "{}: the tokenizer merges the end of a prompt and the beginning of `{}` in one token and cannot "
          "encode them separately; end the prompt, or begin the response, with a special token",
          place, segment.text.substr(0, 20));
    }
    joint_ = segment.text;
    tokens_ = std::move(separate);
    append(tokens_, segment.in_loss);
  }

  ChatTemplate::Encoded finish() {
    result_.end_with_loss();
    return std::move(result_);
  }

 private:
  void append(std::span<const int32_t> tokens, bool in_loss) {
    result_.tokens.insert(result_.tokens.end(), tokens.begin(), tokens.end());
    result_.mask.resize(result_.tokens.size(), in_loss ? 1 : 0);
  }

  const Tokenizer& tokenizer_;
  ChatTemplate::Encoded result_;
  std::string joint_;            // the text since the last segment that was encoded separately
  std::vector<int32_t> tokens_;  // the tokens of joint_
};

}  // namespace

ChatTemplate::Encoded encode_rendered(const JsonRecord& record, const Tokenizer& tokenizer) {
  Encoder encoder(tokenizer);
  for (const Segment& segment : segments_of(record)) encoder.add(segment, record.place);
  return encoder.finish();
}

}  // namespace te::text
