// Pre-tokenizers of tokenizer.json: split a text into words, which the model encodes one by one.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizers/code_point_set.h"
#include "text/tokenizers/json_reader.h"
#include "text/tokenizers/pattern.h"
#include "text/tokenizers/splits.h"
#include "text/tokenizers/unicode_script.h"

namespace te::text {

class PreTokenizer {
 public:
  /// A part of a document.
  struct Span {
    std::string_view text;
    bool valid;     ///< is valid UTF-8
    bool at_start;  ///< is at the beginning of the document
  };

  /// `json`: the value of "pre_tokenizer": null, Sequence, Split, ByteLevel, Whitespace, WhitespaceSplit,
  /// BertPreTokenizer, Digits, Punctuation, Metaspace, CharDelimiterSplit, FixedLength, UnicodeScripts. UserError for
  /// others, and for a ByteLevel that is not last.
  explicit PreTokenizer(const JsonReader& json);

  bool byte_level() const { return byte_level_; }  ///< whether ByteLevel is the last pre-tokenizer
  /// The text that represents a space, if words depend on Span::at_start; else nullopt.
  std::optional<std::string_view> space_at_start() const;

  /// Calls on_word(word) for the words of a span, in order.
  template <class OnWord>
  void split(const Span& span, PatternWorkspace& workspace, std::vector<std::string>& buffers,
             OnWord on_word) const {
    buffers.resize(steps_.size());
    run(0, span, workspace, buffers, on_word);
  }

 private:
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Prepend { kNever, kFirst, kAlways };
  enum class SplitBy { kNone, kPattern, kCharacters, kWords, kLengths, kScripts };
  struct Step {
    SplitBy split_by = SplitBy::kNone;
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
  void add_part(const std::string& type, const JsonReader& json);
  void add_pattern(const std::string& regex, const std::string& where, Behavior behavior,
                   bool invert = false);
  void add_set(const CodePointSet& set, Behavior behavior);
  void add_byte_level(bool add_prefix_space, bool use_regex);
  void add_metaspace(const JsonReader& json);
  static Behavior read_behavior(const JsonReader& json);

  /// The span after prepending and replacing spaces; its text is in `buffer` if it changes.
  static Span with_spaces(const Step& step, const Span& span, std::string& buffer);

  template <class OnWord>
  void run(size_t index, const Span& span, PatternWorkspace& workspace, std::vector<std::string>& buffers,
           OnWord& on_word) const {
    if (span.text.empty()) return;
    if (index == steps_.size()) return on_word(span.text);
    const Step& step = steps_[index];
    const Span changed = with_spaces(step, span, buffers[index]);
    if (step.split_by == SplitBy::kNone) return run(index + 1, changed, workspace, buffers, on_word);
    split_span(step, changed, workspace, [&](size_t begin, size_t end) {
      const Span part = {changed.text.substr(begin, end - begin), changed.valid,
                         changed.at_start && begin == 0};
      run(index + 1, part, workspace, buffers, on_word);
    });
  }

  /// Calls on_span(begin, end, is_match) for the matches of a step and the text between them.
  template <class OnSpan>
  static void find(const Step& step, const Span& span, PatternWorkspace& workspace, OnSpan on_span) {
    switch (step.split_by) {
      case SplitBy::kNone:
        return on_span(0, span.text.size(), false);
      case SplitBy::kPattern:
        return step.pattern->split(workspace, span.text, span.valid, on_span);
      case SplitBy::kCharacters:
        return split_at_characters(*step.set, span.text, on_span);
      case SplitBy::kWords:
        return split_words(span.text, on_span);
      case SplitBy::kLengths:
        return split_lengths(step.length, span.text, on_span);
      case SplitBy::kScripts:
        return split_scripts(span.text, on_span);
    }
  }

  /// Calls on_part(begin, end) for the parts that result from the matches and the step's behavior.
  template <class OnPart>
  static void split_span(const Step& step, const Span& span, PatternWorkspace& workspace, OnPart on_part) {
    size_t held_begin = 0, held_end = 0;
    bool held = false, previous = false;  // whether a part is pending; whether the previous span was a match
    find(step, span, workspace, [&](size_t begin, size_t end, bool is_match) {
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
