// Parsing of JSON. The parser is compiled once, here, since it takes up to three seconds in each source that calls
// nlohmann::json::parse.
#pragma once

#include <nlohmann/json.hpp>

#include <string_view>

namespace te {

/// Throws nlohmann::json::parse_error.
nlohmann::json parse_json(std::string_view text);
/// Returns a discarded value (is_discarded()) if the text is not valid JSON.
nlohmann::json try_parse_json(std::string_view text);

}  // namespace te
