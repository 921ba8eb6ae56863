// The source is read once, tensor by tensor in runs of rows. Each run is distributed to the files of all ranks, which
// are all open. A rank stores its elements of a tensor in the row order of the full tensor, so its file is written
// sequentially.
#include "checkpoint/reshard.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "checkpoint/folder.h"
#include "checkpoint/loader.h"
#include "checkpoint/rank_files.h"
#include "core/error.h"
#include "core/printable.h"
#include "core/random.h"
#include "kernels/elementwise/elementwise.h"
#include "model/model_stage.h"

namespace te::checkpoint {
namespace {

constexpr int64_t kRunBytes = 16 << 20;

/// The shards that a rank of the target saves, from a plan of its stage without memory.
struct RankPlan {
  RankPlan(const config::Config& config, const parallel::ProcessGrid& grid, int rank, bool optimizer)
      : groups(parallel::Groups::dry_run(grid, rank)), stage(config, groups) {
    stage.plan(memory, Context::cpu(),
               {.activations = std::vector<int>(static_cast<size_t>(stage.num_chunks()), 1)});
    shards = stored_shards(stage.parameters(), optimizer, config.optimizer.name);
  }

  parallel::Groups groups;
  model::ModelStage stage;
  MemoryPlan memory;
  std::vector<StoredShard> shards;
};

/// A rank's shard of a tensor, and the number of elements written.
struct Holder {
  size_t rank = 0, shard = 0;
  int64_t written = 0;
};

class Resharding {
 public:
  Resharding(const Reader& source, const config::Config& config, const parallel::ProcessGrid& grid,
             const ReshardOptions& options)
      : source_(source), config_(config), options_(options), fp8_(source.fp8()) {
    const bool optimizer = options.optimizer && source.has_optimizer();
    // Parameters that the run did not train have no moments.
    config::Config trained = config;
    if (optimizer)
      trained.trains = [&](const ParameterId& id) { return source.info("exp_avg/" + id.name()).has_value(); };
    for (int rank = 0; rank < grid.world; ++rank) {
      RankPlan& plan = plans_.emplace_back(trained, grid, rank, optimizer);
      for (const parameters::Parameter& parameter : plan.stage.parameters().parameters())
        parameters_.try_emplace(parameter.name, &parameter);
      for (size_t i = 0; i < plan.shards.size(); ++i)
        holders_[plan.shards[i].name].push_back({static_cast<size_t>(rank), i});
    }
    for (auto& [name, holders] : holders_) check(name, holders);
    for (const LogicalTensor& tensor : source.tensors()) {
      if (holders_.contains(tensor.name) || (tensor.is_moment() && !optimizer)) continue;
      user_error("{}: tensor {} does not belong to its config's model; use another checkpoint",
                 source.folder().string(), printable(tensor.name));
    }
  }

  Manifest write(const std::filesystem::path& folder) {
    const int ranks = static_cast<int>(plans_.size());
    std::vector<Fp8State> states = split_fp8();
    for (int rank = 0; rank < ranks; ++rank)
      files_.emplace_back(folder, RankInfo{rank, ranks}, plans_[static_cast<size_t>(rank)].shards);
    for (auto& [name, holders] : holders_) copy(source_.at(name), holders);
    std::vector<Manifest> parts;
    for (size_t rank = 0; rank < files_.size(); ++rank) parts.push_back(files_[rank].finish(states[rank]));
    parts[0].progress = source_.progress();
    parts[0].config = config::to_yaml(config_);
    parts[0].datasets = source_.manifest().datasets;
    parts[0].base = source_.manifest().base;
    return merge(parts);
  }

 private:
  /// Checks that the source's tensor fits the model, and sets the shards' dtype to the stored one.
  void check(const std::string& name, const std::vector<Holder>& holders) {
    const TensorInfo stored = checked_info(source_, config_.model.vocab_size, name, parameter_of(name));
    for (const Holder& holder : holders) plans_[holder.rank].shards[holder.shard].dtype = stored.dtype;
  }
  const parameters::Parameter& parameter_of(const std::string& name) const {
    const size_t prefix = name.starts_with("exp_avg") ? name.find('/') + 1 : 0;
    return *parameters_.at(name.substr(prefix));
  }

  void copy(const LogicalTensor& stored, std::vector<Holder>& holders);
  void read_run(const LogicalTensor& stored, const Block& run, std::byte* out) const;
  void distribute(const LogicalTensor& stored, const Block& run, Holder& holder);
  std::vector<Fp8State> split_fp8();

  const Reader& source_;
  const config::Config& config_;
  const ReshardOptions& options_;
  Fp8State fp8_;
  std::deque<RankPlan> plans_;
  std::map<std::string, const parameters::Parameter*> parameters_;
  std::map<std::string, std::vector<Holder>> holders_;  ///< by name of the logical tensor
  std::vector<RankFiles> files_;
  std::vector<std::byte> run_, part_;
  int64_t bytes_ = 0;
};

void Resharding::copy(const LogicalTensor& stored, std::vector<Holder>& holders) {
  const int64_t rows = parameter_of(stored.name).shard.global[0], cols = stored.cols();
  const auto size = static_cast<int64_t>(dtype_size(stored.dtype));
  const int64_t step = std::max<int64_t>(1, kRunBytes / (cols * size));
  for (int64_t row = 0; row < rows; row += step) {
    const Block run = Block::rows(row, std::min(step, rows - row), cols);
    run_.resize(static_cast<size_t>(run.count * size));
    read_run(stored, run, run_.data());
    for (Holder& holder : holders) distribute(stored, run, holder);
    bytes_ += run.count * size;
    if (options_.progress) options_.progress(bytes_);
  }
  for (const Holder& holder : holders) {
    const int64_t total = plans_[holder.rank].shards[holder.shard].count();
    TE_CHECK(holder.written == total, "{}: only {} of {} elements of a shard were written", stored.name,
             holder.written, total);
  }
}

// Rows that the source lacks pad the vocabulary. As in the loader, weights get their initial values and moments zero.
void Resharding::read_run(const LogicalTensor& stored, const Block& run, std::byte* out) const {
  const int64_t there = std::clamp<int64_t>(stored.numel() - run.first, 0, run.count);
  const auto size = static_cast<int64_t>(dtype_size(stored.dtype));
  if (there > 0) source_.read(stored, {run.col, run.width, run.first, there}, out);
  if (there == run.count) return;
  const int64_t missing = run.count - there;
  std::memset(out + there * size, 0, static_cast<size_t>(missing * size));
  const parameters::Parameter& parameter = parameter_of(stored.name);
  if (stored.is_moment() || parameter.init != parameters::Init::normal) return;
  std::vector<float> values(static_cast<size_t>(missing));
  const Context cpu = Context::cpu();
  kernels::fill_normal(cpu, {values.data(), DType::f32, {missing}}, parameter.std, config_.training.seed,
                       stream_of(parameter.name), static_cast<uint64_t>(run.first + there));
  kernels::cast(cpu, {values.data(), DType::f32, {missing}}, {out + there * size, stored.dtype, {missing}});
}

void Resharding::distribute(const LogicalTensor& stored, const Block& run, Holder& holder) {
  const auto size = static_cast<int64_t>(dtype_size(stored.dtype));
  part_.clear();
  int64_t before = 0, written = holder.written;
  for (const Block& block : plans_[holder.rank].shards[holder.shard].blocks) {
    for_each_overlap(block, run, [&](int64_t at, int64_t in_run, int64_t count) {
      TE_CHECK(before + at == written,
               "{}: a rank does not store its elements in the full tensor's row order", stored.name);
      const std::byte* from = run_.data() + in_run * size;
      part_.insert(part_.end(), from, from + count * size);
      written += count;
    });
    before += block.count;
  }
  if (!part_.empty()) files_[holder.rank].write(holder.shard, part_.data(), part_.size());
  holder.written = written;
}

// Assigns rows to the ranks that save them, in the order of the stage's table.
std::vector<Fp8State> Resharding::split_fp8() {
  std::vector<Fp8State> states(plans_.size());
  if (fp8_.rows.empty()) return states;
  std::map<std::pair<std::string, std::string>, const Fp8State::Row*> left;
  for (const Fp8State::Row& row : fp8_.rows) left[{row.operand.name, row.operand.role}] = &row;
  for (size_t rank = 0; rank < plans_.size(); ++rank) {
    const parameters::StoreLayout& layout = plans_[rank].stage.parameters().layout();
    const fp8::ScaleTable& table = plans_[rank].stage.recipe().table();
    states[rank] = {.history_len = fp8_.history_len, .position = fp8_.position, .rows = {}};
    for (int i = 0; i < table.size(); ++i) {
      if (!saves_fp8(layout, table.info(i).group)) continue;
      const auto found = left.find({table.info(i).linear.name(), fp8::role_name(table.info(i).role)});
      if (found == left.end()) continue;
      states[rank].rows.push_back(*found->second);
      left.erase(found);
    }
  }
  if (!left.empty()) {
    user_error("{}: has FP8 state of {}, which its config does not quantize; use another checkpoint",
               source_.folder().string(), left.begin()->first.first);
  }
  return states;
}

}  // namespace

std::filesystem::path reshard(const Reader& source, const config::Config& config,
                              const parallel::ProcessGrid& grid, const std::filesystem::path& directory,
                              const ReshardOptions& options) {
  Resharding resharding(source, config, grid, options);
  const int64_t step = source.progress().step;
  std::filesystem::path folder;
  guard_file_system([&] {
    const std::filesystem::path temporary = begin_folder(directory, step);
    try {
      folder = commit_folder(directory, step, to_text(resharding.write(temporary)));
    } catch (...) {
      discard_folder(temporary);
      throw;
    }
  });
  return folder;
}

}  // namespace te::checkpoint
