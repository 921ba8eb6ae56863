// Errors come in two kinds.
//   UserError      the user can correct it: a key, a file, a tensor, a device. One line that names the thing,
//                  the rule and the remedy. Executables print that line and exit with code 2.
//   InternalError  a broken promise inside te-train. Names the place in the source. Exit code 1.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <exception>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

namespace te {

class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Throws UserError with a formatted one-line message: what, the rule, the remedy.
template <class... Args>
[[noreturn]] void user_error(fmt::format_string<Args...> format, Args&&... args) {
  throw UserError(fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void internal_error(const std::string& message, std::source_location where);

/// An exception as an executable reports it: one line and the exit code.
struct Failure {
  int exit_code = 1;
  std::string message;  ///< "error: ..." (UserError, code 2) or "internal error: ..." (all others, code 1)
};
Failure describe_failure(const std::exception_ptr& exception);

/// Runs an executable's body with as many threads as the process has cores (core/cpu_threads.h); turns exceptions into
/// one line on stderr and the exit code (0, 1 or 2).
int run_main(const char* program, int (*body)(int, char**), int argc, char** argv);

}  // namespace te

/// Checks an invariant; the message names the tensor or value and the rule. Kept in release builds: it is
/// only used where arguments are checked once per launch, never per element.
#define TE_CHECK(condition, ...)                                                                             \
  do {                                                                                                       \
    if (!(condition)) [[unlikely]]                                                                           \
      ::te::internal_error(fmt::format(__VA_ARGS__) + " [" #condition "]", std::source_location::current()); \
  } while (false)
