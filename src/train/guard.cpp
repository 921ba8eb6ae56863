#include "train/guard.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "train/loss_spikes.h"
#include "train/metrics.h"
#include "train/robust_spread.h"

namespace te::train {
namespace {

constexpr size_t kGaps = 16, kMinGaps = 4;
constexpr double kGuardThreshold = 6.0;  ///< robust standard deviations above the median gap

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

double guard_limit(const config::GuardConfig& config, const std::vector<double>& gaps) {
  if (gaps.size() < kMinGaps) return config.tolerance;
  const double center = median_of(gaps);
  return std::max(config.tolerance, center + kGuardThreshold * robust_deviation(gaps, center));
}

std::optional<double> guard_gap(const std::vector<double>& fp8, const std::vector<double>& bf16) {
  const double a = mean_of(fp8), b = mean_of(bf16);
  if (!std::isfinite(b)) return {};
  if (!std::isfinite(a)) return std::numeric_limits<double>::infinity();
  return (a - b) / std::abs(b);
}

Guard::Guard(const config::Config& config, const Context& context, StepRunner& runner,
             StepPrecision& precision, Services services)
    : config_(config),
      context_(context),
      runner_(runner),
      precision_(precision),
      services_(std::move(services)),
      copy_(context, runner),
      batch_(runner.make_host_batch()) {
  if (const char* outlier = std::getenv("TE_TEST_OUTLIER");
      outlier != nullptr && std::sscanf(outlier, "%" SCNd64 ":%d", &outlier_step_, &outlier_log2_) != 2)
    user_error("TE_TEST_OUTLIER: expected STEP:LOG2, such as 35:30");
  log_info(
      "guard: FP8 is compared with BF16 every {} steps; a copy of the state takes {} of host memory per "
      "rank",
      config.guard.every, human_bytes(state_copy_bytes(runner)));
}

// --- before a step -----------------------------------------------------------------------------------------

void Guard::inject_outlier(int64_t step) {
  const int outlier = outlier_step_ > 0 && step >= outlier_step_ ? outlier_log2_ : 0;
  fp8::Recipe& recipe = runner_.model().recipe();
  if (recipe.test_outlier() == outlier) return;
  recipe.set_test_outlier(context_, outlier);
  runner_.model().weights_changed(false);
}

void Guard::before_step(checkpoint::Progress& progress) {
  const config::GuardConfig& options = config_.guard;
  if (!keep_record_) record_.clear();
  keep_record_ = false;
  const int64_t step = progress.step + 1;
  const bool due = progress.step > 0 && progress.step % options.every == 0 && progress.guard.began < 0 &&
                   precision_.all_fp8(progress, step, options.compare_steps) &&
                   progress.step + options.compare_steps <= config_.training.train_steps;
  if (due) compare(progress);
}

// The BF16 steps come first, as the FP8 steps after them are the run itself. Updates of loss spikes are skipped if the
// run skips them.
void Guard::compare(checkpoint::Progress& progress) {
  const double before = now_seconds();
  checkpoint::Guard& guard = progress.guard;
  copy_.save(progress);
  precision_.set(true);
  optim::Optimizer& optimizer = runner_.optimizer();
  LossSpikes spikes(config_, progress.spikes);
  guard.began = progress.step;
  guard.bf16.clear();
  guard.fp8.clear();
  for (int64_t i = 0; i < config_.guard.compare_steps; ++i) {
    const int64_t first_sample = progress.consumed_samples + i * config_.training.global_batch_size;
    services_.read(first_sample, batch_);
    runner_.launch(batch_, progress.step + 1 + i, first_sample, false, spikes.skip_limit());
    services_.wait(progress.step + 1 + i);
    const optim::StepStatus status = optimizer.status();
    optimizer.finish_step(status.skipped != 0);
    guard.bf16.push_back(mean_loss(status.loss_sum, batch_.counted));
    if (std::isfinite(guard.bf16.back()) && std::isfinite(status.grad_norm)) spikes.add(guard.bf16.back());
  }
  const checkpoint::Guard compared = guard;
  progress = copy_.restore();
  guard = compared;
  precision_.set(false);
  seconds_ = now_seconds() - before;
}

// --- after a step ------------------------------------------------------------------------------------------

Guard::Verdict Guard::after_step(checkpoint::Progress& progress, double loss) {
  checkpoint::Guard& guard = progress.guard;
  if (guard.began < 0) return Verdict::none;
  if (runner_.model().recipe().high_precision()) {  // as the precision changed on resume
    log_info("guard: the comparison that began after step {} is dropped: step {} ran without FP8",
             guard.began, progress.step);
    discard(progress);
    return Verdict::none;
  }
  guard.fp8.push_back(loss);
  if (guard.fp8.size() < guard.bf16.size()) return Verdict::none;
  const Verdict verdict = decide(progress);
  guard.drop_comparison();
  if (verdict != Verdict::roll_back) copy_.drop();
  if (verdict == Verdict::bf16) guard.bf16_until = progress.step + config_.guard.bf16_steps;
  if (verdict != Verdict::roll_back) return verdict;
  // Steps are repeated, but the collected gaps are kept.
  const checkpoint::Guard known = guard;
  start_ = copy_.restore();
  start_.guard = known;
  start_.guard.bf16_until = start_.step + config_.guard.bf16_steps;
  copy_.drop();
  keep_record_ = true;
  return verdict;
}

Guard::Verdict Guard::decide(checkpoint::Progress& progress) {
  checkpoint::Guard& guard = progress.guard;
  const std::optional<double> gap = guard_gap(guard.fp8, guard.bf16);
  if (!gap) {
    log_warning("guard: no comparison in steps {} to {}: the BF16 losses are not finite either",
                guard.began + 1, progress.step);
    return Verdict::none;
  }
  const double limit = guard_limit(config_.guard, guard.gaps);
  const bool excess = *gap > limit;
  record_ = {{"gap", *gap}, {"limit", limit}, {"excess", excess ? 1 : 0}, {"seconds", seconds_}};
  if (!excess) {
    guard.gaps.push_back(*gap);
    if (guard.gaps.size() > kGaps) guard.gaps.erase(guard.gaps.begin());
    log_info("guard: steps {} to {}: FP8 {:+.4f}% versus BF16 (limit {:.4f}%), {:.1f} s", guard.began + 1,
             progress.step, 100 * *gap, 100 * limit, seconds_);
    return Verdict::fine;
  }
  ++guard.excesses;
  const config::GuardAction action = config_.guard.action;
  const bool back = action == config::GuardAction::rollback && copy_.has_copy();
  const std::string then =
      action == config::GuardAction::warn
          ? "training continues (guard.action warn)"
          : fmt::format("{} {} steps run in BF16",
                        back ? fmt::format("back to step {}; from there,", guard.began) : "the next",
                        config_.guard.bf16_steps);
  log_warning("guard: steps {} to {}: FP8 {:+.4f}% versus BF16, above the limit of {:.4f}%: {}",
              guard.began + 1, progress.step, 100 * *gap, 100 * limit, then);
  if (action == config::GuardAction::warn) return Verdict::warn;
  return back ? Verdict::roll_back : Verdict::bf16;
}

void Guard::discard(checkpoint::Progress& progress) {
  progress.guard.drop_comparison();
  copy_.drop();
}

}  // namespace te::train
