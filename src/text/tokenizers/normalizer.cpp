// Definitions: Hugging Face tokenizers, normalizers.
#include "text/tokenizers/normalizer.h"

#include "core/error.h"

namespace te::text {

Normalizer::Normalizer(const JsonReader& json) {
  if (!json.is_null()) add(json, 0);
}

void Normalizer::add(const JsonReader& json, int depth) {
  constexpr size_t kMost = 64;
  if (depth > 8 || steps_.size() >= kMost) json.fail("has too many parts");
  const std::string& type = json.at("type").string();
  if (type == "Sequence") {
    const JsonReader list = json.at("normalizers");
    for (size_t i = 0; i < list.array().size(); ++i) add(list.element(i), depth + 1);
  } else if (type == "Prepend") {
    steps_.push_back({Kind::kPrepend, "", json.at("prepend").string(), nullptr});
  } else if (type == "Replace") {
    const JsonReader pattern = json.at("pattern");
    const std::string& content = json.at("content").string();
    if (const auto text = pattern.find("String")) {
      if (text->string().empty()) text->fail("is empty; it must be a text to replace");
      steps_.push_back({Kind::kReplaceText, text->string(), content, nullptr});
    } else {
      const JsonReader regex = pattern.at("Regex");
      steps_.push_back(
          {Kind::kReplaceRegex, "", content, std::make_shared<const Pattern>(regex.string(), regex.where())});
    }
  } else {
    json.fail(
        fmt::format("the normalizer {} is not supported (Sequence, Prepend and Replace are)", shown(type)));
  }
}

void append_replaced(std::string_view text, std::string_view from, std::string_view to, std::string& result) {
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, done)) {
    result += text.substr(done, at - done);
    result += to;
    done = at + from.size();
  }
  result += text.substr(done);
}

void Normalizer::apply(std::string& text, std::string& spare, PatternWorkspace& workspace) const {
  for (const Step& step : steps_) {
    if (text.empty()) return;
    spare.clear();
    switch (step.kind) {
      case Kind::kPrepend:
        spare += step.content;
        spare += text;
        break;
      case Kind::kReplaceText:
        append_replaced(text, step.text, step.content, spare);
        break;
      case Kind::kReplaceRegex:
        step.pattern->split(workspace, text, valid_utf8_prefix(text) == text.size(),
                            [&](size_t begin, size_t end, bool is_match) {
                              spare += is_match ? std::string_view(step.content)
                                                : std::string_view(text).substr(begin, end - begin);
                            });
        break;
    }
    text.swap(spare);
  }
}

}  // namespace te::text
