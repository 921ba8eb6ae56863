// Pre-tokenizers of tokenizer.json: split a text into words, which the model encodes one by one.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizers/code_point_set.h"
#include "text/tokenizers/cuts.h"
#include "text/tokenizers/json_reader.h"
#include "text/tokenizers/pattern.h"
#include "text/tokenizers/unicode_script.h"

namespace te::text {

class PreTokenizer {
 public:
  /// A part of a document.
  struct Piece {
    std::string_view text;
    bool valid;     ///< is valid UTF-8
    bool at_start;  ///< is at the beginning of the document
  };

  /// `json`: the value of "pre_tokenizer": null, Sequence, Split, ByteLevel, Whitespace, WhitespaceSplit,
  /// BertPreTokenizer, Digits, Punctuation, Metaspace, CharDelimiterSplit, FixedLength, UnicodeScripts. UserError for
  /// others, and for a ByteLevel that is not last.
  explicit PreTokenizer(const JsonReader& json);

  bool byte_level() const { return byte_level_; }  ///< whether ByteLevel is the last pre-tokenizer
  /// The text that represents a space, if words depend on Piece::at_start; else nullopt.
  std::optional<std::string_view> space_at_start() const;

  /// Calls on_word(word) for the words of a piece, in order.
  template <class OnWord>
  void split(const Piece& piece, PatternWorkspace& workspace, std::vector<std::string>& buffers,
             OnWord on_word) const {
    buffers.resize(steps_.size());
    run(0, piece, workspace, buffers, on_word);
  }

 private:
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Prepend { kNever, kFirst, kAlways };
  enum class Cut { kNone, kPattern, kCharacters, kWords, kLengths, kScripts };
  struct Step {
    Cut cut = Cut::kNone;
    std::shared_ptr<const Pattern> pattern;  // kPattern
    const CodePointSet* set = nullptr;       // kCharacters
    size_t length = 0;                       // kLengths
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
    Prepend prepend = Prepend::kNever;
    std::string space;            // the text to prepend
    bool replace_spaces = false;  // whether spaces are replaced by `space`
  };

  PreTokenizer() = default;
  void add(const JsonReader& json, int depth);
  void add_part(const std::string& type, const JsonReader& json);
  void add_pattern(const std::string& regex, const std::string& where, Behavior behavior,
                   bool invert = false);
  void add_set(const CodePointSet& set, Behavior behavior);
  void add_byte_level(bool add_prefix_space, bool use_regex);
  void add_metaspace(const JsonReader& json);
  static Behavior read_behavior(const JsonReader& json);

  /// The piece after prepending and replacing spaces; its text is in `buffer` if it changes.
  static Piece with_spaces(const Step& step, const Piece& piece, std::string& buffer);

  template <class OnWord>
  void run(size_t index, const Piece& piece, PatternWorkspace& workspace, std::vector<std::string>& buffers,
           OnWord& on_word) const {
    if (piece.text.empty()) return;
    if (index == steps_.size()) return on_word(piece.text);
    const Step& step = steps_[index];
    const Piece changed = with_spaces(step, piece, buffers[index]);
    if (step.cut == Cut::kNone) return run(index + 1, changed, workspace, buffers, on_word);
    cut(step, changed, workspace, [&](size_t begin, size_t end) {
      const Piece part = {changed.text.substr(begin, end - begin), changed.valid,
                          changed.at_start && begin == 0};
      run(index + 1, part, workspace, buffers, on_word);
    });
  }

  /// Calls on_piece(begin, end, is_match) for the matches of a step and the text between them.
  template <class OnPiece>
  static void find(const Step& step, const Piece& piece, PatternWorkspace& workspace, OnPiece on_piece) {
    switch (step.cut) {
      case Cut::kNone:
        return on_piece(0, piece.text.size(), false);
      case Cut::kPattern:
        return step.pattern->split(workspace, piece.text, piece.valid, on_piece);
      case Cut::kCharacters:
        return cut_at_characters(*step.set, piece.text, on_piece);
      case Cut::kWords:
        return cut_words(piece.text, on_piece);
      case Cut::kLengths:
        return cut_lengths(step.length, piece.text, on_piece);
      case Cut::kScripts:
        return cut_scripts(piece.text, on_piece);
    }
  }

  /// Calls on_part(begin, end) for the parts that result from the matches and the step's behavior.
  template <class OnPart>
  static void cut(const Step& step, const Piece& piece, PatternWorkspace& workspace, OnPart on_part) {
    size_t held_begin = 0, held_end = 0;
    bool held = false, previous = false;  // whether a part is pending; whether the previous piece was a match
    find(step, piece, workspace, [&](size_t begin, size_t end, bool is_match) {
      is_match = is_match != step.invert;
      if (step.behavior == Behavior::kIsolated) return on_part(begin, end);
      if (step.behavior == Behavior::kRemoved) {
        if (!is_match) on_part(begin, end);
        return;
      }
      const bool joins = step.behavior == Behavior::kContiguous           ? is_match == previous
                         : step.behavior == Behavior::kMergedWithPrevious ? is_match && !previous
                                                                          : !is_match && previous;
      if (held && joins) {
        held_end = end;
      } else {
        if (held) on_part(held_begin, held_end);
        held_begin = begin;
        held_end = end;
      }
      held = true;
      previous = is_match;
    });
    if (held) on_part(held_begin, held_end);
  }

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace te::text
