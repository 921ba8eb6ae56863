// Determines the format of a text file by its name, or by the beginning of its content if the name does not tell.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace te::text {

/// kJsonl: one JSON object per line. kJson: a list of objects, or consecutive objects, over any number of lines.
enum class TextFormat : uint8_t { kAuto, kText, kJsonl, kJson };

/// kJsonl for .jsonl, .jsonlines and .ndjson, kJson for .json, kText for .txt, .text and .md, kAuto for all others.
/// Ignores case and a final .gz, .zst or .xz.
TextFormat format_of_name(const std::string& path);

constexpr size_t kFormatHead = size_t{64} << 10;  ///< bytes of a file that format_of_content() examines

struct ContentFormat {
  TextFormat format = TextFormat::kText;  ///< never kAuto
  bool like_json = false;                 ///< text that begins with a JSON object without the field
};

/// `head`: the first kFormatHead bytes of a file, or all of a shorter one. The format is JSON if the content begins
/// with an object, or a list of objects, whose field `field` (find_field() of json_records.h) is a string. It is JSON
/// lines also if the first two lines are objects without the field, so that the reader's error lists the fields that
/// they have. Other JSON counts as text, because it can be anything (a config, a notebook).
ContentFormat format_of_content(std::string_view head, std::string_view field);

/// Whether a line (without its line break) is what a script of scripts/ writes last to a pipe if it fails:
/// "incomplete: NAME has failed" (complete_lines() in script_files.py). It is never JSON.
bool is_script_failure(std::string_view line);

/// For content that is JSON: whether it is a list, or objects that span lines, rather than one object per line.
bool is_json_list(std::string_view head);

}  // namespace te::text
