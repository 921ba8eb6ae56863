// Translates Oniguruma's syntax (Ruby's flavor, which Hugging Face tokenizers use) to PCRE2's.
#include <algorithm>
#include <cctype>
#include <vector>

#include "core/error.h"
#include "text/tokenizers/pattern.h"
#include "text/tokenizers/unicode_property.h"

namespace te::text {

namespace {

constexpr std::string_view kHexDigit = "0-9A-Fa-f";

class Translator {
 public:
  Translator(std::string_view regex, const std::string& where) : regex_(regex), where_(where) {}

  std::string translate() {
    while (at_ < regex_.size()) {
      const char c = regex_[at_];
      if (c == '\\') {
        escape(false);
      } else if (c == '[') {
        bracketed_class();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        interval();
      } else {
        literal();
      }
    }
    return std::move(result_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    user_error("{}: {} in the regular expression {} is not supported", where_, what, shown(regex_));
  }
  char peek(size_t ahead) const { return at_ + ahead < regex_.size() ? regex_[at_ + ahead] : '\0'; }

  /// Writes a set of characters that the next `length` bytes denote.
  void put_class(const CharacterSet& set, bool negated, bool in_class, size_t length = 2) {
    at_ += length;
    if (in_class && !negated && set.lost.empty()) {
      result_ += set.content;
      if (peek(0) == '-' && peek(1) != ']') result_ += '\\';  // no range begins here
      return;
    }
    std::string text;
    if (set.lost.empty()) {
      text = fmt::format("[{}{}]", negated ? "^" : "", set.content);
    } else if (negated) {
      text = fmt::format("(?:[{}]|[^{}])", set.lost, set.content);
    } else {
      text = fmt::format("(?:(?![{}])[{}])", set.lost, set.content);
    }
    if (!in_class) {
      result_ += text;
      return;
    }
    if (peek(0) == '-' && peek(1) != ']') refuse("a `-` after a negated class inside brackets");
    alternatives_ += "|" + text;
  }

  /// At a backslash.
  void escape(bool in_class) {
    const char c = peek(1);
    if (caseless() && (c == 'x' || c == 'u')) refuse("a character given by number where case is ignored");
    switch (c) {
      case '\0':
        refuse("a backslash at the end");
      case 's':
      case 'S':
        return put_class({std::string(space_characters()), ""}, c == 'S', in_class);
      case 'w':
      case 'W':
        return put_class({word_characters(in_class), ""}, c == 'W', in_class);
      case 'd':
      case 'D':
        return put_class(*unicode_property("Nd"), c == 'D', in_class);
      case 'h':  // a hexadecimal digit in Ruby, horizontal space in PCRE2
      case 'H':
        return put_class({std::string(kHexDigit), ""}, c == 'H', in_class);
      case 'v':  // vertical tab in Ruby
        result_ += R"(\x{0b})";
        at_ += 2;
        return;
      case 'x':
        return hexadecimal();
      case 'p':
      case 'P':
        return property(in_class);
      case 'u':
        result_ += fmt::format(R"(\x{{{}}})", hexadecimal_digits(2, 4));
        at_ += 6;
        return;
      case 'b':
      case 'B':
        if (in_class) refuse("\\b inside brackets");
        word_boundary(c == 'b');
        return;
      default:
        // Escapes with the same meaning in both, and all punctuation. Octal numbers and backreferences are refused.
        if (std::string_view("nrtfaeAzZRX").find(c) == std::string_view::npos &&
            (std::isalnum(static_cast<unsigned char>(c)) != 0)) {
          refuse(fmt::format("\\{}", c));
        }
        result_ += regex_.substr(at_, 2);
        at_ += 2;
    }
  }

  /// \b or \B.
  void word_boundary(bool here) {
    const std::string before = fmt::format("(?<=[{}])", word_characters(false)),
                      after = fmt::format("(?=[{}])", word_characters(false)),
                      not_before = fmt::format("(?<![{}])", word_characters(false)),
                      not_after = fmt::format("(?![{}])", word_characters(false));
    result_ += here ? fmt::format("(?:{}{}|{}{})", before, not_after, not_before, after)
                    : fmt::format("(?:{}{}|{}{})", before, after, not_before, not_after);
    at_ += 2;
  }

  std::string_view hexadecimal_digits(size_t offset, size_t count) const {
    const std::string_view digits = regex_.substr(std::min(at_ + offset, regex_.size()), count);
    if (digits.size() != count ||
        digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) {
      refuse(fmt::format("\\{} without {} hexadecimal digits", peek(1), count));
    }
    return digits;
  }

  /// \p{Name}, \p{^Name} or \P{Name}.
  void property(bool in_class) {
    const size_t close = regex_.find('}', at_);
    if (peek(2) != '{') {  // the letter itself
      result_ += peek(1);
      at_ += 2;
      return;
    }
    if (close == std::string_view::npos) refuse("\\p{ without }");
    std::string_view name = regex_.substr(at_ + 3, close - at_ - 3);
    bool negated = peek(1) == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    if (in_class && caseless()) refuse("a property inside brackets that ignore case");
    const auto set = unicode_property(name, in_class);
    if (!set) refuse("the property " + shown(regex_.substr(at_, close + 1 - at_)));
    put_class(*set, negated, in_class, close + 1 - at_);
  }

  void hexadecimal() {
    if (peek(2) == '{') {  // the same in both
      result_ += "\\x";
      at_ += 2;
      const size_t close = regex_.find('}', at_);
      if (close == std::string_view::npos) refuse("\\x{ without }");
      result_ += regex_.substr(at_, close + 1 - at_);
      at_ = close + 1;
      return;
    }
    const std::string_view digits = hexadecimal_digits(2, 2);
    if (digits[0] >= '8') refuse("a byte above 7F (\\x80 to \\xFF)");
    result_ += fmt::format(R"(\x{{{}}})", digits);
    at_ += 4;
  }

  bool caseless() const { return caseless_.back(); }

  /// Copies one byte, also that of an operator.
  void literal() {
    const char c = regex_[at_];
    if (c == ')' && caseless_.size() > 1) caseless_.pop_back();
    if (caseless()) check_folding();
    result_ += c;
    ++at_;
  }

  /// If case is ignored, Oniguruma also matches one character with several (\u00df with ss), which PCRE2 does not.
  void check_folding() const {
    static constexpr std::string_view kFolded[] = {"ss", "ff", "fi", "fl", "st"};
    const auto lower = [this](size_t ahead) {
      return static_cast<char>(std::tolower(static_cast<unsigned char>(peek(ahead))));
    };
    if (static_cast<unsigned char>(peek(0)) >= 0x80) refuse("a letter beyond ASCII where case is ignored");
    for (const std::string_view pair : kFolded) {
      if (lower(0) == pair[0] && lower(1) == pair[1]) {
        refuse(fmt::format("{} (which also matches a single letter) where case is ignored", pair));
      }
    }
  }

  /// At an opening bracket.
  void bracketed_class() {
    const size_t start = result_.size();
    alternatives_.clear();
    ++at_;
    const bool negated = peek(0) == '^';
    if (negated) ++at_;
    if (peek(0) == ']') refuse("] at the beginning of brackets");
    while (at_ < regex_.size() && regex_[at_] != ']') {
      if (regex_[at_] == '[' && posix_class()) continue;
      if (regex_[at_] == '[') refuse("[ inside brackets (a nested class)");
      if (regex_[at_] == '&' && peek(1) == '&') refuse("&& inside brackets (an intersection)");
      if (regex_[at_] == '\\') {
        escape(true);
      } else {
        if (caseless() && static_cast<unsigned char>(peek(0)) >= 0x80)
          refuse("a letter beyond ASCII where case is ignored");
        result_ += regex_[at_++];
      }
    }
    if (at_ == regex_.size()) refuse("[ without ]");
    ++at_;
    const std::string content = result_.substr(start);
    result_.resize(start);
    if (alternatives_.empty()) {
      result_ += fmt::format("[{}{}]", negated ? "^" : "", content);
      return;
    }
    // The set needs more than one class.
    const std::string any =
        fmt::format("(?:{}{})", content.empty() ? "(?!)" : "[" + content + "]", alternatives_);
    result_ += negated ? fmt::format("(?:(?!{})(?s:.))", any) : any;
  }

  /// At an opening bracket inside brackets: [:name:] or [:^name:], if it is one.
  bool posix_class() {
    const size_t close = regex_.find(":]", at_);
    if (peek(1) != ':' || close == std::string_view::npos) return false;
    std::string_view name = regex_.substr(at_ + 2, close - at_ - 2);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    const auto set = unicode_posix_class(name);
    if (!set) return false;
    if (caseless()) refuse("a class such as [:alpha:] where case is ignored");
    put_class(*set, negated, true, close + 2 - at_);
    return true;
  }

  /// At an opening parenthesis: copies the prefix that determines the kind of group.
  void group() {
    static constexpr std::string_view kKinds[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    const std::string_view rest = regex_.substr(at_);
    std::string_view opening = "(";
    if (rest.starts_with("(?") || rest.starts_with("(*")) {
      if (options()) return;
      opening = "";
      for (const std::string_view kind : kKinds) {
        if (rest.starts_with(kind)) opening = kind;
      }
      if (opening.empty()) refuse("the group " + shown(rest.substr(0, 4)));
    }
    caseless_.push_back(caseless());
    result_ += opening;
    at_ += opening.size();
  }

  /// Translates (?im-im:...), or (?im-im) at the very beginning; false if it is something else. i ignores case; m lets
  /// . match a newline, which is called s in PCRE2.
  bool options() {
    const size_t end = regex_.find_first_not_of("im-", at_ + 2);
    if (end == std::string_view::npos || (regex_[end] != ':' && regex_[end] != ')')) return false;
    std::string flags(regex_.substr(at_ + 2, end - at_ - 2));
    if (flags.empty() || flags.find('-') != flags.rfind('-')) return false;
    const bool whole = regex_[end] == ')';
    if (whole && at_ != 0) return false;  // elsewhere its scope differs between the two
    const size_t minus = std::min(flags.find('-'), flags.size()), i = flags.rfind('i');
    const bool ignores = i == std::string::npos ? caseless() : i < minus;
    std::ranges::replace(flags, 'm', 's');
    result_ += fmt::format("(?{}{}", flags, regex_[end]);
    at_ = end + 1;
    if (whole) {
      caseless_.back() = ignores;
    } else {
      caseless_.push_back(ignores);
    }
    return true;
  }

  /// At an opening brace: a repetition or a literal brace.
  void interval() {
    const size_t close = regex_.find('}', at_);
    const std::string_view inside =
        close == std::string_view::npos ? "" : regex_.substr(at_ + 1, close - at_ - 1);
    const size_t comma = inside.find(',');
    const bool numbers =
        !inside.empty() && inside != "," &&
        inside.find_first_not_of("0123456789,") == std::string_view::npos &&
        inside.find(',', comma == std::string_view::npos ? 0 : comma + 1) == std::string_view::npos;
    if (!numbers) {
      result_ += "\\{";
      ++at_;
      return;
    }
    result_ += fmt::format("{{{}{}}}", comma == 0 ? "0" : "", inside);
    at_ = close + 1;
    // Ruby reads {2}+ and {2}? as a second repetition, PCRE2 as possessive and lazy.
    if (peek(0) == '+' || (peek(0) == '?' && comma == std::string_view::npos)) {
      refuse(fmt::format("{{{}}}{}", inside, peek(0)));
    }
  }

  std::string_view regex_;
  const std::string& where_;
  size_t at_ = 0;
  std::string result_;
  std::vector<bool> caseless_ = {false};  // for each open group, the innermost last
  std::string alternatives_;              // alternatives of the current bracketed class, each after a |
};

}  // namespace

std::string translate_oniguruma(std::string_view regex, const std::string& where) {
  return Translator(regex, where).translate();
}

std::string escape_regex(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (std::string_view(R"(\.+*?()|[]{}^$#&-~)").find(c) != std::string_view::npos) result += '\\';
    result += c;
  }
  return result;
}

}  // namespace te::text
