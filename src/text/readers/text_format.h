// What a file of texts is: by its name where that says it, else by how its content begins.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace te::text {

/// kJsonl: a JSON object a line. kJson: a list of objects, or objects one after the other, over any number of lines.
enum class TextFormat : uint8_t { kAuto, kText, kJsonl, kJson };

/// kJsonl for .jsonl, .jsonlines and .ndjson, kJson for .json, kText for .txt, .text and .md, kAuto for all others;
/// in capitals too, and .gz, .zst or .xz after it does not count.
TextFormat format_of_name(const std::string& path);

constexpr size_t kFormatHead = size_t{64} << 10;  ///< bytes that say what a file is

struct ContentFormat {
  TextFormat format = TextFormat::kText;  ///< never kAuto
  bool like_json = false;                 ///< text that begins with a JSON object which lacks the field
};

/// `head`: the first kFormatHead bytes, or all. JSON where it begins with an object (or a list of them) whose field
/// `field` (find_field() of json_records.h) is a string; JSON lines also where two lines are objects without it, as
/// a reader will then name the fields that there are. Other text that is JSON may be anything: a config, a notebook.
ContentFormat format_of_content(std::string_view head, std::string_view field);

/// Of content that is JSON anyway: whether it is more than an object a line.
bool is_json_list(std::string_view head);

}  // namespace te::text
