// Creates the normalizers of a tokenizer.json. Definitions: Hugging Face tokenizers, normalizers.
#include "text/tokenizers/normalizer.h"

#include <algorithm>
#include <functional>
#include <map>

#include "core/error.h"

namespace te::text {

Normalizer::Normalizer(const JsonReader& json) {
  if (json.is_null()) return;
  add_parts(json, "normalizers", steps_,
            [this](const std::string& type, const JsonReader& part) { add_part(type, part); });
}

void Normalizer::add_part(const std::string& type, const JsonReader& json) {
  static const std::map<std::string, std::function<NormalizerStep(const JsonReader&)>> kMakers = {
      {"NFC", [](const JsonReader&) { return make_normal_form(NormalForm::kNfc); }},
      {"NFD", [](const JsonReader&) { return make_normal_form(NormalForm::kNfd); }},
      {"NFKC", [](const JsonReader&) { return make_normal_form(NormalForm::kNfkc); }},
      {"NFKD", [](const JsonReader&) { return make_normal_form(NormalForm::kNfkd); }},
      {"Lowercase", [](const JsonReader&) { return make_lowercase(); }},
      {"Strip", make_strip},
      {"StripAccents", [](const JsonReader&) { return make_strip_accents(); }},
      {"Prepend", make_prepend},
      {"Replace", make_replace},
      {"Nmt", [](const JsonReader&) { return make_nmt(); }},
      {"BertNormalizer", make_bert},
      {"ByteLevel", [](const JsonReader&) { return make_byte_level(); }},
      {"Precompiled", make_precompiled}};
  const auto maker = kMakers.find(type);
  if (maker == kMakers.end()) {
    json.fail(
        fmt::format("the normalizer {} is not supported (Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, "
                    "StripAccents, Prepend, Replace, Nmt, BertNormalizer, ByteLevel and Precompiled are)",
                    shown(type)));
  }
  steps_.push_back(maker->second(json));
}

void Normalizer::apply(std::string& text, std::string& spare, PatternWorkspace& workspace) const {
  // One limit for all steps, because several steps in a row can expand a text.
  const size_t limit = BoundedText::limit_of(text.size());
  for (const NormalizerStep& step : steps_) {
    if (text.empty()) return;
    spare.clear();
    BoundedText result(spare, limit, "normalizer");
    step.apply(text, result, workspace);
    result.check();
    text.swap(spare);
  }
}

bool Normalizer::keeps_start(std::string_view space) const {
  return std::ranges::all_of(steps_, [&](const NormalizerStep& step) { return step.keeps_start(space); });
}

}  // namespace te::text
