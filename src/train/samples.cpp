#include "train/samples.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "core/json.h"
#include "core/log.h"
#include "core/printable.h"
#include "parallel/watchdog.h"
#include "train/metrics.h"

namespace te::train {
namespace {

using nlohmann::json;

/// The text on one line, in quotes.
std::string shown(const std::string& text) {
  return printable(dump_json(json(text)));
}

}  // namespace

std::vector<Sample> make_on_first_replica(SampleMaker& maker, parallel::World& world, bool first) {
  std::vector<Sample> samples;
  std::optional<parallel::Watchdog::Pause> pause;
  if (first) {
    samples = maker.make();
  } else {
    pause.emplace();
  }
  world.barrier();
  return samples;
}

void SampleLog::start_at(int64_t step) {
  file_.truncated(step - 1, json_step);
}

void SampleLog::write(int64_t step, const std::vector<Sample>& samples) {
  for (const Sample& sample : samples) {
    const json record = {{"step", step},
                         {"prompt", sample.prompt},
                         {"text", sample.text},
                         {"ending", sample.finish_reason},
                         {"tokens", sample.tokens}};
    file_.append(dump_json(record) + "\n");
    log_info("sample of step {} | {} -> {} ({})", step, shown(sample.prompt), shown(sample.text),
             sample.finish_reason);
  }
}

}  // namespace te::train
