// Reads documents from text and JSON files, plain or compressed (see byte_stream.h).
//
//   text   a document is the whole file, the text between two separator lines or two blank lines, or each line; its
//          text is unchanged, without the separators
//   JSONL  every line is an object, the document is the string in one of its fields
//   JSON   a list of such objects, with any line breaks
//
// Empty documents are dropped. Only one document, or one chunk of a very long text, is in memory at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "text/readers/text_format.h"

namespace te::text {

enum class DocumentBoundary { kFile, kBlankLine, kLine, kSeparator };

struct DocumentOptions {
  TextFormat format = TextFormat::kAuto;  ///< kAuto: see text_format.h
  std::string json_field = "text";        ///< a dotted path, see find_field() of json_records.h
  DocumentBoundary boundary = DocumentBoundary::kFile;
  std::string separator;  ///< kSeparator: the line between documents, without its line break
  size_t max_chunk_bytes = size_t{64} << 20;
};

/// A document, or a part of a document longer than max_chunk_bytes. A chunk ends before a space between two ASCII
/// letters if there is one near the limit (so tokenizers that split text into words give the same tokens for the chunks
/// as for the whole text), else between two UTF-8 characters.
struct DocumentChunk {
  std::string_view text;
  bool last = true;   ///< the document ends here
  int64_t bytes = 0;  ///< bytes of the file read since the last chunk
};

/// Calls on_chunk for every document of a file, in order. UserError "FILE:LINE: what; remedy" for text with NUL bytes,
/// for lines that are not a JSON object with the field, and for files that cannot be read. If `on_bad` is given, it
/// gets the message for such an object instead, and the object is skipped; exceptions of on_chunk are always passed on.
/// on_guess gets a message if the content rather than the name determines the format, or if the two disagree.
/// Returns the number of boundary lines between documents; nullopt for JSON files, which have none.
std::optional<int64_t> read_documents(const std::string& path, const DocumentOptions& options,
                                      const std::function<void(const DocumentChunk& chunk)>& on_chunk,
                                      const std::function<void(const std::string& message)>& on_bad = {},
                                      const std::function<void(const std::string& message)>& on_guess = {});

}  // namespace te::text
