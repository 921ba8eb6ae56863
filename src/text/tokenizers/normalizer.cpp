// Creates the normalizers of a tokenizer.json. Definitions: Hugging Face tokenizers, normalizers.
#include "text/tokenizers/normalizer.h"

#include <algorithm>

#include "core/error.h"

namespace te::text {

Normalizer::Normalizer(const JsonReader& json) {
  if (!json.is_null()) add(json, 0);
}

void Normalizer::add(const JsonReader& json, int depth) {
  constexpr size_t kMax = 64;
  if (depth > 8 || steps_.size() >= kMax) json.fail("has too many parts");
  const std::string& type = json.at("type").string();
  if (type == "Sequence") {
    const JsonReader list = json.at("normalizers");
    for (size_t i = 0; i < list.array().size(); ++i) add(list.element(i), depth + 1);
  } else if (type == "NFC") {
    steps_.push_back(make_normal_form(NormalForm::kNfc));
  } else if (type == "NFD") {
    steps_.push_back(make_normal_form(NormalForm::kNfd));
  } else if (type == "NFKC") {
    steps_.push_back(make_normal_form(NormalForm::kNfkc));
  } else if (type == "NFKD") {
    steps_.push_back(make_normal_form(NormalForm::kNfkd));
  } else if (type == "Lowercase") {
    steps_.push_back(make_lowercase());
  } else if (type == "Strip") {
    steps_.push_back(make_strip(json));
  } else if (type == "StripAccents") {
    steps_.push_back(make_strip_accents());
  } else if (type == "Prepend") {
    steps_.push_back(make_prepend(json));
  } else if (type == "Replace") {
    steps_.push_back(make_replace(json));
  } else if (type == "Nmt") {
    steps_.push_back(make_nmt());
  } else if (type == "BertNormalizer") {
    steps_.push_back(make_bert(json));
  } else if (type == "ByteLevel") {
    steps_.push_back(make_byte_level());
  } else if (type == "Precompiled") {
    steps_.push_back(make_precompiled(json));
  } else {
    json.fail(
        fmt::format("the normalizer {} is not supported (Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, "
                    "StripAccents, Prepend, Replace, Nmt, BertNormalizer, ByteLevel and Precompiled are)",
                    shown(type)));
  }
}

void Normalizer::apply(std::string& text, std::string& spare, PatternWorkspace& workspace) const {
  // One limit for all steps, because several steps in a row can expand a text.
  const size_t limit = BoundedText::limit_of(text.size());
  for (const NormalizerStepPtr& step : steps_) {
    if (text.empty()) return;
    spare.clear();
    BoundedText result(spare, limit, "normalizer");
    step->apply(text, result, workspace);
    result.check();
    text.swap(spare);
  }
}

bool Normalizer::keeps_start(std::string_view space) const {
  return std::ranges::all_of(steps_, [&](const NormalizerStepPtr& step) { return step->keeps_start(space); });
}

}  // namespace te::text
