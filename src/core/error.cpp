#include "core/error.h"

#include <cstdio>
#include <exception>

#include "core/cpu_threads.h"
#include "core/printable.h"

namespace te {

void internal_error(const std::string& message, std::source_location where) {
  throw InternalError(fmt::format("{} ({}:{})", message, where.file_name(), where.line()));
}

Failure describe_failure(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const UserError& error) {
    return {2, fmt::format("error: {}", error.what())};
  } catch (const std::exception& error) {
    return {1, fmt::format("internal error: {}", error.what())};
  } catch (...) {
    return {1, "internal error: exception of an unknown type"};
  }
}

int run_main(const char* program, int (*body)(int, char**), int argc, char** argv) {
  try {
    use_threads(available_threads());
    return body(argc, argv);
  } catch (...) {
    const Failure failure = describe_failure(std::current_exception());
    std::fprintf(stderr, "%s: %s\n", program, printable(failure.message).c_str());
    return failure.exit_code;
  }
}

}  // namespace te
