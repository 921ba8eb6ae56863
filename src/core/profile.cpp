#include "core/profile.h"

#include <utility>

namespace te {
namespace {

std::string& label() {
  static std::string text;
  return text;
}

int depth = 0;  ///< nesting depth of running operations; only the outermost is reported

}  // namespace

const std::string& ProfileLabel::current() {
  return label();
}

void ProfileLabel::push(std::string_view name, std::string_view detail) {
  std::string& text = label();
  pushed_ = true;
  length_ = text.size();
  for (std::string_view part : {name.substr(name.rfind('.') + 1), detail}) {
    if (part.empty()) continue;
    if (!text.empty()) text += ' ';
    text += part;
  }
}

void ProfileLabel::pop() {
  label().resize(length_);
}

void ProfileScope::start(const Context& context, const char* name, const OpCost& cost, std::any args,
                         std::string_view group) {
  context_ = &context;
  if (depth++ > 0) return;
  OpObserver::of(context)->begin(
      context,
      {.name = name, .label = label(), .cost = cost, .args = std::move(args), .group = std::string(group)});
}

void ProfileScope::finish() {
  if (--depth > 0) return;
  if (OpObserver* const observer = OpObserver::of(*context_)) observer->end(*context_);
}

}  // namespace te
