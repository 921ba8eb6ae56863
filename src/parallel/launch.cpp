#include "parallel/launch.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <string_view>

#include "core/cpu_threads.h"
#include "core/error.h"
#include "core/log.h"
#include "parallel/operation.h"

namespace te::parallel {

bool ranks_share_gpus() {
  const char* value = std::getenv("TE_RANKS_SHARE_GPUS");
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

Context open_cuda_device(World& world, const ExecutionOptions& options) {
  std::optional<Context> context;
  world.run_collectively([&] {
    const int count = cuda_device_count();
    context.emplace(Context::cuda(count == 0 ? 0 : world.local_rank() % count, options));
  });
  if (world.size() == 1) return std::move(*context);
  if (ranks_share_gpus()) {
    // NCCL refuses two ranks on one GPU of a host. With different host ids it uses sockets between them.
    setenv("NCCL_HOSTID", fmt::format("{}-rank-{}", world.hostname(), world.rank()).c_str(), 0);
    if (world.leader())
      log_warning(
          "TE_RANKS_SHARE_GPUS: ranks may share a GPU, for tests of layouts; NCCL communicates over sockets");
    return std::move(*context);
  }

  // If the launcher makes only one GPU visible to each rank, all ordinals are 0; the PCI address identifies the GPU.
  const std::vector<std::string> devices =
      world.gather_strings(fmt::format("{}\n{}", world.hostname(), context->info().bus_id));
  world.run_collectively([&] {
    std::map<std::string, std::vector<int>> users;
    for (int rank = 0; rank < world.size(); ++rank) users[devices[static_cast<size_t>(rank)]].push_back(rank);
    for (const auto& [device, ranks] : users) {
      if (ranks.size() == 1) continue;
      const size_t end = device.find('\n');
      user_error("device cuda: ranks {} on host {} would share the GPU {}; start at most one rank per GPU",
                 list_ranks(ranks), device.substr(0, end), device.substr(end + 1));
    }
  });
  return std::move(*context);
}

Context open_device(World& world, std::string_view device, const ExecutionOptions& options) {
  const bool usable = world.min_i64(cuda_device_count()) > 0;
  if (device == "cpu" || (device == "auto" && !usable)) return Context::cpu(options);
  return open_cuda_device(world, options);
}

int threads_of_rank(World& world) {
  if (world.size() == 1) return available_threads();
  const std::string host = world.hostname() + "\n";
  std::vector<CpuLimits> host_limits;
  size_t self = 0;
  const std::vector<std::string> all = world.gather_strings(host + to_text(read_cpu_limits()));
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::string& text = all[static_cast<size_t>(rank)];
    if (rank == world.rank()) self = host_limits.size();
    if (text.starts_with(host)) host_limits.push_back(cpu_limits_from_text(text.substr(host.size())));
  }
  return thread_count(host_limits, self);
}

std::string binding_table(World& world, const Context& context, const ProcessGrid& grid) {
  const DeviceInfo info = context.info();
  const std::string device =
      context.is_cuda() ? fmt::format("cuda:{} {} {}", context.ordinal(), info.name, info.bus_id) : info.name;
  const std::vector<std::string> hosts = world.gather_strings(world.hostname());
  const std::vector<std::string> devices = world.gather_strings(device);
  size_t host_width = 4, device_width = 6;
  for (const std::string& host : hosts) host_width = std::max(host_width, host.size());
  for (const std::string& name : devices) device_width = std::max(device_width, name.size());
  std::string table =
      fmt::format("{:>4}  {:<{}}  {:<{}}  place\n", "rank", "host", host_width, "device", device_width);
  for (int rank = 0; rank < world.size(); ++rank) {
    table += fmt::format("{:>4}  {:<{}}  {:<{}}  {}\n", rank, hosts[static_cast<size_t>(rank)], host_width,
                         devices[static_cast<size_t>(rank)], device_width, grid.coordinates(rank).str());
  }
  return table;
}

}  // namespace te::parallel
