// Error of writing a checkpoint to disk.
#pragma once

#include "core/error.h"

namespace te::checkpoint {

/// The file system is full, read-only, or unavailable. A later save may succeed, so the run can continue. After other
/// UserErrors of a save another attempt would fail, too.
class WriteError : public UserError {
 public:
  using UserError::UserError;
};

template <class... Args>
[[noreturn]] void write_error(fmt::format_string<Args...> format, Args&&... args) {
  throw WriteError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace te::checkpoint
