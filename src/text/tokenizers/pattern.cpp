// A small wrapper of PCRE2.
#include "text/tokenizers/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <limits>
#include <new>

#include "core/error.h"

namespace te::text {

namespace {

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

PCRE2_SPTR units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

}  // namespace

PatternWorkspace::PatternWorkspace()
    : data_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      stack_(pcre2_jit_stack_create(size_t{32} << 10, size_t{8} << 20, nullptr)) {
  // stack_ is null where the system does not allow executable memory: there is no JIT compiler then.
  if (data_ == nullptr || context_ == nullptr) throw std::bad_alloc();
  if (stack_ != nullptr) pcre2_jit_stack_assign(context_, nullptr, stack_);
}

PatternWorkspace::~PatternWorkspace() {
  pcre2_match_data_free(data_);
  pcre2_match_context_free(context_);
  if (stack_ != nullptr) pcre2_jit_stack_free(stack_);
}

void Pattern::FreeCode::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

Pattern::Pattern(const std::string& regex, const std::string& where) : regex_(regex), where_(where) {
  const std::string translated = translate_oniguruma(regex, where);
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  code_.reset(pcre2_compile(units(translated), translated.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE,
                            &error, &at, context.get()));
  if (code_ == nullptr) {
    user_error("{}: the regular expression {} is not supported: {} (at byte {} of {})", where, shown(regex),
               pcre2_message(error), at, shown(translated));
  }
  jit_ = pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE) == 0;
}

bool Pattern::find(PatternWorkspace& workspace, std::string_view text, size_t from,
                   PatternMatch& match) const {
  static const std::string_view kEmpty = "";
  if (text.data() == nullptr) text = kEmpty;
  // The limit allows backtracking over a long run of white space a few times, but not once per character.
  const uint64_t limit = uint64_t{10'000'000} + 16 * text.size();
  pcre2_set_match_limit(workspace.context_, static_cast<uint32_t>(std::min<uint64_t>(
                                                limit, std::numeric_limits<uint32_t>::max())));
  const int result = jit_ && workspace.stack_ != nullptr
                         ? pcre2_jit_match(code_.get(), units(text), text.size(), from, PCRE2_NO_UTF_CHECK,
                                           workspace.data_, workspace.context_)
                         : pcre2_match(code_.get(), units(text), text.size(), from, PCRE2_NO_UTF_CHECK,
                                       workspace.data_, workspace.context_);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) {
    user_error("{}: matching the regular expression {} with a text of {} bytes failed: {}", where_,
               shown(regex_), text.size(), pcre2_message(result));
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(workspace.data_);
  match = {offsets[0], offsets[1]};
  return true;
}

}  // namespace te::text
