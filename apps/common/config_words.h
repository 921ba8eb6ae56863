// Completion words of te-train's config, for programs that link the library te_config.
#pragma once

#include "common/command_model.h"
#include "config/presets.h"
#include "config/provenance.h"

namespace te::apps {

inline ConfigWords config_words() {
  ConfigWords words;
  for (config::KeyChoices& key : config::key_choices())
    words.keys.push_back({std::move(key.path), std::move(key.values), key.is_path});
  words.presets = config::preset_sources();
  words.advice = config::set_suggestion;
  return words;
}

}  // namespace te::apps
