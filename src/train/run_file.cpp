#include "train/run_file.h"

#include "checkpoint/folder.h"
#include "checkpoint/write_error.h"
#include "core/error.h"
#include "core/log.h"

namespace te::train {

void write_run_file(const std::filesystem::path& path, const std::string& text) {
  try {
    checkpoint::write_text(path, text);
  } catch (const checkpoint::WriteError& error) {
    log_warning("{}; training continues without this file", error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    user_error("logging.directory: {}: {}", path.string(), error.code().message());
  }
}

}  // namespace te::train
