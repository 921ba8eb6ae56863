// Reads JSON objects from a file, with one object in memory at a time: JSON lines (one object per line), or one list of
// objects with any line breaks.
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
  std::string place;  ///< "FILE:LINE" of its first line, for error messages
  int64_t bytes;      ///< bytes of the file read since the last record
};

/// Calls on_record for every object of the file ("-": standard input), in order. Blank lines are skipped. kList also
/// accepts consecutive objects without a list around them. kByContent chooses the layout by the beginning of the file.
/// UserError "FILE:LINE: what; remedy" for anything that is not an object. If `on_bad` is given, it gets the message
/// for an object that is malformed or that on_record refuses with a UserError, and reading continues. A line that says
/// that a script has failed (is_script_failure()) is a UserError even then, and so is a malformed object of a list that
/// seems to contain the next object.
void read_json_records(const std::string& path, JsonLayout layout,
                       const std::function<void(const JsonRecord& record)>& on_record,
                       const std::function<void(const std::string& message)>& on_bad = {});

/// Likewise for an open file of which no line has been read.
void read_json_records(LineReader& lines, JsonLayout layout,
                       const std::function<void(const JsonRecord& record)>& on_record,
                       const std::function<void(const std::string& message)>& on_bad = {});

/// For on_record: calls `use`, whose exceptions read_json_records() passes to its caller even if on_bad is given. For
/// errors that the object does not cause, such as a failed write.
void bypass_on_bad(const std::function<void()>& use);

/// The value of a field; null if there is none. A dotted path descends into objects: `a.b` is field b of the object in
/// field a, unless there is a field named `a.b`.
const nlohmann::json* find_field(const nlohmann::json& object, std::string_view path);

/// The string in a field. UserError if the field is missing or not a string; `option` is the command-line option that
/// names the field, for the message.
const std::string& string_field(const JsonRecord& record, std::string_view path, std::string_view option);

}  // namespace te::text
