#include "core/log.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <string>

namespace te {

void init_log(int rank, spdlog::level::level_enum level) {
  auto out = std::make_shared<spdlog::sinks::stdout_sink_mt>();
  auto logger = std::make_shared<spdlog::logger>("te", out);
  logger->set_pattern(rank >= 0 ? "[%H:%M:%S rank " + std::to_string(rank) + "] %v" : "[%H:%M:%S] %v");
  logger->set_level(level);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(logger);
}

}  // namespace te
