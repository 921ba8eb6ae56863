// Streams documents out of text and JSON files, plain or compressed (see byte_stream.h).
//
//   text   a document is the whole file, or what stands between two separator lines, or between blank lines, or
//          each line; its text is unchanged, separators left out
//   JSONL  every line is an object, the document is the string in one of its fields
//   JSON   a list of such objects, spread over lines as it likes
//
// Empty documents are dropped. One document is in memory at a time, and of a very long text a piece.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "text/readers/text_format.h"

namespace te::text {

enum class DocumentBoundary { kFile, kBlankLine, kLine, kSeparator };

struct DocumentOptions {
  TextFormat format = TextFormat::kAuto;  ///< kAuto: see text_format.h
  std::string json_field = "text";        ///< a dotted path, see find_field() of json_records.h
  DocumentBoundary boundary = DocumentBoundary::kFile;
  std::string separator;  ///< kSeparator: the line between documents, without its break
  size_t max_piece_bytes = size_t{64} << 20;
};

/// A document, or part of one longer than max_piece_bytes. Pieces end before a space between two ASCII letters
/// where there is one near the limit, else between two characters of UTF-8, so that tokenizers that split
/// text into words give the same tokens for the pieces as for the whole.
struct DocumentPiece {
  std::string_view text;
  bool last = true;   ///< the document ends here
  int64_t bytes = 0;  ///< of the file, read since the last piece
};

/// Calls on_piece for every document of a file, in order. UserError "FILE:LINE: what; remedy" for text with NUL
/// bytes, for lines that are no JSON object with that field, and for files that cannot be read.
/// Returns how many lines were boundaries between documents (of a text file). With `on_bad` it gets what is wrong with
/// such an object, which is left out; errors of on_piece are none of the object's. on_guess gets a sentence where not
/// the name but the content has said what the file is, or the two say different things.
int64_t read_documents(const std::string& path, const DocumentOptions& options,
                       const std::function<void(const DocumentPiece& piece)>& on_piece,
                       const std::function<void(const std::string& message)>& on_bad = {},
                       const std::function<void(const std::string& message)>& on_guess = {});

}  // namespace te::text
