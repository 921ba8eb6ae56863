#include "comm/replica_check.h"

#include <array>
#include <string_view>
#include <vector>

#include "core/random.h"

namespace te::comm {
namespace {

using parameters::Parameter;

/// A hash of 31 bits, so that its negative is an int32, too.
int32_t hash_of(const Context& context, const std::vector<Tensor>& tensors) {
  std::string bytes;
  for (const Tensor& tensor : tensors) {
    const size_t end = bytes.size();
    bytes.resize(end + tensor.bytes());
    context.copy_to_host(bytes.data() + end, tensor);
    context.synchronize();
  }
  const uint64_t hash = stream_of(bytes);
  return static_cast<int32_t>((hash ^ (hash >> 33)) & 0x7fffffff);
}

void check_group(const Context& context, parallel::Communicator& group,
                 const parameters::ParameterStore& parameters, const std::vector<const Parameter*>& shared) {
  if (group.size() == 1 || shared.empty()) return;
  // max(h) == -max(-h) only if h is equal on all ranks.
  std::vector<int32_t> hashes;
  for (const Parameter* parameter : shared) {
    hashes.push_back(hash_of(context, parameters.kept_values(*parameter)));
    hashes.push_back(-hashes.back());
  }
  const DeviceBuffer buffer(context, hashes.size() * sizeof(int32_t));
  const Tensor device{buffer.data(), DType::i32, {static_cast<int64_t>(hashes.size())}};
  context.copy_to_device(device, hashes.data());
  group.all_reduce(context, device, parallel::ReduceOp::max);
  context.copy_to_host(hashes.data(), device);
  context.synchronize();
  for (size_t i = 0; i < shared.size(); ++i) {
    TE_CHECK(hashes[2 * i] == -hashes[2 * i + 1], "the ranks of group {} have different values of {}",
             group.name(), shared[i]->name);
  }
}

}  // namespace

void check_replicas(const Context& context, const parameters::ParameterStore& parameters,
                    const parallel::Groups& groups) {
  if (!context.executes()) return;  // there are no values
  std::array<std::vector<const Parameter*>, kGradientGroups.size()> all;
  std::vector<const Parameter*> replicated, tied;
  for (const Parameter& parameter : parameters.parameters()) {
    if (!parameters.shards_values(parameters.buckets()[parameters.bucket_at(parameter.offset)]))
      all[static_cast<size_t>(parameter.group)].push_back(&parameter);
    if (parameter.sharing != parameters::Sharing::sharded) replicated.push_back(&parameter);
    if (parameter.tied()) tied.push_back(&parameter);
  }
  for (const GradientGroup group : kGradientGroups)
    check_group(context, groups.gradient_ranks(group), parameters, all[static_cast<size_t>(group)]);
  check_group(context, groups.tensor(), parameters, replicated);
  check_group(context, groups.embedding(), parameters, tied);
}

}  // namespace te::comm
