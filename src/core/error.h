// There are two kinds of errors.
//   UserError      the user can correct it: a key, a file, a tensor, a device. Its message is one line: what is wrong,
//                  where, and what to do. Executables print the line and exit with code 2.
//   InternalError  a violated invariant of te-train. Its message has the source location. Exit code 1.
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

/// Throws UserError with a formatted one-line message.
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

/// Runs an executable's body with as many threads as the process has cores (core/cpu_threads.h). Reports an exception
/// as one line on stderr. Returns the exit code (0, 1 or 2).
int run_main(const char* program, int (*body)(int, char**), int argc, char** argv);

}  // namespace te

/// Checks an invariant; the message names the tensor or value and the rule. Active in release builds, too: use it for
/// checks per launch, not per element.
#define TE_CHECK(condition, ...)                                                                             \
  do {                                                                                                       \
    if (!(condition)) [[unlikely]]                                                                           \
      ::te::internal_error(fmt::format(__VA_ARGS__) + " [" #condition "]", std::source_location::current()); \
  } while (false)
