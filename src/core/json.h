// Reading and writing of JSON. The parser is compiled once, here, since it takes up to three seconds in each source
// that calls nlohmann::json::parse.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace te {

/// Throws nlohmann::json::parse_error.
nlohmann::json parse_json(std::string_view text);
/// Returns a discarded value (is_discarded()) if the text is not valid JSON.
nlohmann::json try_parse_json(std::string_view text);

/// The text of a json or ordered_json. Bytes that are not UTF-8, which names of files may have, become U+FFFD;
/// nlohmann::json::dump throws there. indent: spaces per level, -1: one line. ascii: escape all other characters.
template <class Json>
std::string dump_json(const Json& value, int indent = -1, bool ascii = false) {
  return value.dump(indent, ' ', ascii, Json::error_handler_t::replace);
}

}  // namespace te
