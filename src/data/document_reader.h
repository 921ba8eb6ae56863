// Streams documents out of text and JSONL files, one at a time in memory.
//
//   text   a document is what stands between two lines equal to the separator, unchanged; without a
//          separator it is the whole file
//   JSONL  every line is an object, the document is the string in one of its fields; blank lines are skipped
//
// Empty documents are dropped.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace te {

enum class TextFormat { kAuto, kText, kJsonl };  ///< kAuto: JSONL for .jsonl and .ndjson, else text

struct DocumentOptions {
  TextFormat format = TextFormat::kAuto;
  std::string jsonl_field = "text";
  std::string separator;  ///< the line between documents of a text file, without its break; "" for none
};

/// The files of an input: a file itself, "-" (standard input), or for a folder every file below it, sorted by
/// path, without hidden and binary ones (`skipped` counts the latter). UserError when there is none.
std::vector<std::string> list_input_files(const std::string& input, int64_t* skipped);

/// Calls on_document(text, bytes) for every document of a file, in order; bytes: of the file read since the
/// last call. UserError "FILE:LINE: what; mend" for text with NUL bytes, for lines that are no JSON object
/// with that field, and for files that cannot be read.
void read_documents(const std::string& path, const DocumentOptions& options,
                    const std::function<void(std::string_view text, int64_t bytes)>& on_document);

}  // namespace te
