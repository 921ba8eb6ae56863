#include "core/error.h"

#include <cstdio>
#include <exception>

namespace te {

void internal_error(const std::string& message, std::source_location where) {
  throw InternalError(fmt::format("{} ({}:{})", message, where.file_name(), where.line()));
}

int run_main(const char* program, int (*body)(int, char**), int argc, char** argv) {
  try {
    return body(argc, argv);
  } catch (const UserError& error) {
    std::fprintf(stderr, "%s: error: %s\n", program, error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: internal error: %s\n", program, error.what());
    return 1;
  }
}

}  // namespace te
