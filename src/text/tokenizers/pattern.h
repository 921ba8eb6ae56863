// Regular expressions of Hugging Face tokenizers. They are written for Oniguruma (Ruby's syntax) and executed with
// PCRE2, so a pattern is translated first: classes that the two define differently are spelled out, and constructs
// without an equivalent in PCRE2 are refused. \p{...} classes follow Oniguruma's Unicode version (unicode_property.h);
// case folding is PCRE2's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "text/tokenizers/utf8.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace te::text {

/// Per-thread state for matching; can be used with any Pattern, one at a time.
class PatternWorkspace {
 public:
  PatternWorkspace();
  ~PatternWorkspace();
  PatternWorkspace(const PatternWorkspace&) = delete;
  PatternWorkspace& operator=(const PatternWorkspace&) = delete;

 private:
  friend class Pattern;
  pcre2_real_match_data_8* data_;
  pcre2_real_match_context_8* context_;
  pcre2_real_jit_stack_8* stack_;
};

struct PatternMatch {
  size_t begin = 0, end = 0;
};

class Pattern {
 public:
  /// `regex` has Oniguruma's syntax. UserError "WHERE: ..." if it is not supported or not a regular expression.
  Pattern(const std::string& regex, const std::string& where);

  /// Finds the first match at or after `from` in `text`, which must be UTF-8; lookbehinds see the text before `from`.
  /// UserError if matching takes too long.
  bool find(PatternWorkspace& workspace, std::string_view text, size_t from, PatternMatch& match) const;

  /// Splits `text`, which can contain any bytes, into matches and the text between them, and calls
  /// on_span(begin, end, is_match) for each, in order. An empty match counts unless it is at the end of the previous
  /// match. Runs of invalid UTF-8 bytes match nothing and are boundaries; `valid` means that there are none.
  template <class OnSpan>
  void split(PatternWorkspace& workspace, std::string_view text, bool valid, OnSpan on_span) const {
    if (valid) return split_run(workspace, text, 0, on_span);
    size_t offset = 0;
    for_each_utf8_run(text, [&](std::string_view run, bool run_valid) {
      if (run_valid) {
        split_run(workspace, run, offset, on_span);
      } else {
        on_span(offset, offset + run.size(), false);
      }
      offset += run.size();
    });
  }

  /// Appends `text`, which can contain any bytes, with the matches replaced by `to` to `result`.
  template <class Result>
  void append_replaced(PatternWorkspace& workspace, std::string_view text, std::string_view to,
                       Result& result) const {
    split(workspace, text, valid_utf8_prefix(text) == text.size(),
          [&](size_t begin, size_t end, bool is_match) {
            result += is_match ? to : text.substr(begin, end - begin);
          });
  }

 private:
  template <class OnSpan>
  void split_run(PatternWorkspace& workspace, std::string_view run, size_t offset, OnSpan& on_span) const {
    size_t from = 0, last_end = 0;
    bool matched = false;  // last_end is the end of a match
    PatternMatch match;
    while (from <= run.size() && find(workspace, run, from, match)) {
      if (matched && match.begin == match.end && match.end == last_end) {
        // Ignore an empty match at the end of the previous one: continue after the next character.
        from += from < run.size() ? utf8_sequence_length(run.substr(from)) : 1;
        continue;
      }
      if (match.begin > last_end) on_span(offset + last_end, offset + match.begin, false);
      on_span(offset + match.begin, offset + match.end, true);
      from = last_end = match.end;
      matched = true;
    }
    if (last_end < run.size()) on_span(offset + last_end, offset + run.size(), false);
  }

  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::string regex_, where_;  // for messages
  std::unique_ptr<pcre2_real_code_8, FreeCode> code_;
  bool jit_ = false;
};

/// Translates the pattern to PCRE2's syntax (with UTF, UCP and MULTILINE). UserError if there is no translation.
std::string translate_oniguruma(std::string_view regex, const std::string& where);

/// A regular expression that matches `text` literally.
std::string escape_regex(std::string_view text);

}  // namespace te::text
