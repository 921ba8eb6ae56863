// Normalizers that add, remove or replace text: Prepend, Replace, Strip, and the normal forms.
// Definitions: Hugging Face tokenizers, normalizers.
#include <memory>

#include "text/tokenizers/normalizer.h"
#include "text/tokenizers/normalizer_step.h"

namespace te::text {

namespace {

bool starts_with_space(std::string_view text, std::string_view space) {
  return text.starts_with(' ') || text.starts_with(space);
}

NormalizerStep make_replace_text(const std::string& from, const std::string& to) {
  return {.apply = [from, to](std::string_view text, BoundedText& result,
                              PatternWorkspace&) { append_replaced(text, from, to, result); },
          .keeps_start =
              [from, to](std::string_view space) {
                // If `from` has several characters, the replacement is attributed to the last of them.
                return starts_with_space(to, space) ||
                       (!to.empty() && utf8_sequence_length(from) == from.size());
              }};
}

}  // namespace

NormalizerStep make_normal_form(NormalForm form) {
  return {[form](std::string_view text, BoundedText& result, PatternWorkspace&) {
    append_normal_form(form, text, result.text());
  }};
}

NormalizerStep make_prepend(const JsonReader& json) {
  return {
      [prefix = json.at("prepend").string()](std::string_view text, BoundedText& result, PatternWorkspace&) {
        if (!text.empty()) result += prefix;
        result += text;
      }};
}

NormalizerStep make_replace(const JsonReader& json) {
  const JsonReader pattern = json.at("pattern");
  const std::string& to = json.at("content").string();
  if (const auto text = pattern.find("String")) {
    if (text->string().empty()) text->fail("is empty; it must be a text to replace");
    return make_replace_text(text->string(), to);
  }
  const JsonReader regex = pattern.at("Regex");
  const auto compiled = std::make_shared<const Pattern>(regex.string(), regex.where());
  return {.apply =
              [compiled, to](std::string_view text, BoundedText& result, PatternWorkspace& workspace) {
                compiled->append_replaced(workspace, text, to, result);
              },
          .keeps_start = [to](std::string_view space) { return starts_with_space(to, space); }};
}

NormalizerStep make_strip(const JsonReader& json) {
  const bool left = json.at("strip_left").boolean(), right = json.at("strip_right").boolean();
  return {
      .apply = [left, right](std::string_view text, BoundedText& result,
                             PatternWorkspace&) { result += stripped(text, left, right, is_white_space); },
      .keeps_start = [left](std::string_view) { return !left; }};
}

}  // namespace te::text
