// Normalizers that add, remove or replace text: Prepend, Replace, Strip, and the normal forms.
// Definitions: Hugging Face tokenizers, normalizers.
#include "text/tokenizers/normalizer.h"
#include "text/tokenizers/normalizer_step.h"

namespace te::text {

namespace {

class NormalFormStep : public NormalizerStep {
 public:
  explicit NormalFormStep(NormalForm form) : form_(form) {}
  void apply(std::string_view text, BoundedText& result, PatternWorkspace& /*workspace*/) const override {
    append_normal_form(form_, text, result.text());
  }

 private:
  NormalForm form_;
};

class PrependStep : public NormalizerStep {
 public:
  explicit PrependStep(std::string text) : text_(std::move(text)) {}
  void apply(std::string_view text, BoundedText& result, PatternWorkspace& /*workspace*/) const override {
    if (!text.empty()) result += text_;
    result += text;
  }

 private:
  std::string text_;
};

bool starts_with_space(std::string_view text, std::string_view space) {
  return text.starts_with(' ') || text.starts_with(space);
}

class ReplaceTextStep : public NormalizerStep {
 public:
  ReplaceTextStep(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}
  void apply(std::string_view text, BoundedText& result, PatternWorkspace& /*workspace*/) const override {
    append_replaced(text, from_, to_, result);
  }
  bool keeps_start(std::string_view space) const override {
    // If `from_` has several characters, the replacement is attributed to the last of them.
    return starts_with_space(to_, space) || (!to_.empty() && utf8_sequence_length(from_) == from_.size());
  }

 private:
  std::string from_, to_;
};

class ReplaceRegexStep : public NormalizerStep {
 public:
  ReplaceRegexStep(const JsonReader& regex, std::string to)
      : pattern_(regex.string(), regex.where()), to_(std::move(to)) {}
  void apply(std::string_view text, BoundedText& result, PatternWorkspace& workspace) const override {
    pattern_.split(workspace, text, valid_utf8_prefix(text) == text.size(),
                   [&](size_t begin, size_t end, bool is_match) {
                     result += is_match ? std::string_view(to_) : text.substr(begin, end - begin);
                   });
  }
  bool keeps_start(std::string_view space) const override { return starts_with_space(to_, space); }

 private:
  Pattern pattern_;
  std::string to_;
};

class StripStep : public NormalizerStep {
 public:
  StripStep(bool left, bool right) : left_(left), right_(right) {}
  void apply(std::string_view text, BoundedText& result, PatternWorkspace& /*workspace*/) const override {
    size_t begin = text.size(), end = 0, at = 0;  // [begin, end) is the text without white space at its ends
    for_each_character(text, [&](uint32_t c, std::string_view bytes) {
      if (!is_white_space(c)) {
        if (begin > at) begin = at;
        end = at + bytes.size();
      }
      at += bytes.size();
    });
    if (end == 0 && (left_ || right_)) return;
    if (!left_) begin = 0;
    if (!right_) end = text.size();
    result += text.substr(begin, end - begin);
  }
  bool keeps_start(std::string_view /*space*/) const override { return !left_; }

 private:
  bool left_, right_;
};

}  // namespace

NormalizerStepPtr make_normal_form(NormalForm form) {
  return std::make_shared<NormalFormStep>(form);
}

NormalizerStepPtr make_prepend(const JsonReader& json) {
  return std::make_shared<PrependStep>(json.at("prepend").string());
}

NormalizerStepPtr make_replace(const JsonReader& json) {
  const JsonReader pattern = json.at("pattern");
  const std::string& content = json.at("content").string();
  if (const auto text = pattern.find("String")) {
    if (text->string().empty()) text->fail("is empty; it must be a text to replace");
    return std::make_shared<ReplaceTextStep>(text->string(), content);
  }
  return std::make_shared<ReplaceRegexStep>(pattern.at("Regex"), content);
}

NormalizerStepPtr make_strip(const JsonReader& json) {
  return std::make_shared<StripStep>(json.at("strip_left").boolean(), json.at("strip_right").boolean());
}

}  // namespace te::text
