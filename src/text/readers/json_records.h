// Streams JSON objects out of a file, one at a time in memory: JSON lines (an object a line), or one list of
// objects, spread over lines as it likes.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace te::text {

class LineReader;

enum class JsonLayout { kLines, kList, kByContent };

struct JsonRecord {
  const nlohmann::json& object;
  std::string place;  ///< "FILE:LINE" of its first line, for errors
  int64_t bytes;      ///< of the file, read since the last record
};

/// Calls on_record for every object of the file ("-": standard input), in order. Blank lines are skipped. kByContent
/// takes what the file begins with for the one or the other.
/// UserError "FILE:LINE: what; remedy" for anything that is no object. kList also accepts objects that follow one
/// another without a list around them. With `on_bad` an object that is malformed, or that on_record refuses with a
/// UserError, is handed to it as that message, and reading goes on.
void read_json_records(const std::string& path, JsonLayout layout,
                       const std::function<void(const JsonRecord& record)>& on_record,
                       const std::function<void(const std::string& message)>& on_bad = {});

/// Likewise for a file that is open, before its first line was read.
void read_json_records(LineReader& lines, JsonLayout layout,
                       const std::function<void(const JsonRecord& record)>& on_record,
                       const std::function<void(const std::string& message)>& on_bad = {});

/// The value of a field. A dotted path steps into objects: `a.b` is field b of the object in field a, unless
/// there is a field with the very name `a.b`. Null when it is not there.
const nlohmann::json* find_field(const nlohmann::json& object, std::string_view path);

/// The string in a field. UserError when it is not there or no string; `option` names what chooses the field.
const std::string& string_field(const JsonRecord& record, std::string_view path, std::string_view option);

}  // namespace te::text
