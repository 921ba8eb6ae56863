#include "core/memory_plan.h"

#include <algorithm>
#include <utility>

namespace te {
namespace {

// GPU kernels use 16-byte accesses and the bulk copy engine wants 128; 256 is what cudaMalloc itself gives.
constexpr int64_t kAlignment = 256;

}  // namespace

std::string_view memory_kind_name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::parameters:
      return "parameters";
    case MemoryKind::fp8_weights:
      return "FP8 weights";
    case MemoryKind::main_params:
      return "main parameters (FP32)";
    case MemoryKind::main_grads:
      return "main gradients (FP32)";
    case MemoryKind::optimizer:
      return "optimizer moments";
    case MemoryKind::activations:
      return "activations";
    case MemoryKind::scratch:
      return "scratch";
    case MemoryKind::fp8_state:
      return "FP8 state";
    case MemoryKind::data:
      return "tokens and losses";
  }
  return "?";
}

void MemoryPlan::add(Tensor& slot, std::string name, MemoryKind kind, DType dtype, Shape shape) {
  slot = {nullptr, dtype, shape};
  const int64_t bytes = shape.numel() * static_cast<int64_t>(dtype_size(dtype));
  entries_.push_back({&slot, std::move(name), kind, bytes, end_});
  end_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void MemoryPlan::alias(Tensor& slot, const Tensor& owner, DType dtype, Shape shape) {
  const int64_t bytes = shape.numel() * static_cast<int64_t>(dtype_size(dtype));
  const int64_t available = owner.shape.numel() * static_cast<int64_t>(dtype_size(owner.dtype));
  TE_CHECK(bytes <= available, "alias of {} bytes on a buffer of {}", bytes, available);
  slot = {nullptr, dtype, shape};
  aliases_.push_back({&slot, &owner});
}

int64_t MemoryPlan::bytes(MemoryKind kind) const {
  int64_t sum = 0;
  for (const Entry& entry : entries_) sum += entry.kind == kind ? entry.bytes : 0;
  return sum;
}

int64_t MemoryPlan::total_bytes() const {
  return end_;
}

std::string MemoryPlan::table() const {
  std::string text;
  for (int kind = 0; kind < kMemoryKinds; ++kind) {
    const int64_t sum = bytes(static_cast<MemoryKind>(kind));
    if (sum > 0)
      text +=
          fmt::format("  {:<26}{:>12}\n", memory_kind_name(static_cast<MemoryKind>(kind)), human_bytes(sum));
  }
  return text + fmt::format("  {:<26}{:>12}\n", "total", human_bytes(end_));
}

std::string MemoryPlan::buffers() const {
  std::vector<const Entry*> sorted;
  for (const Entry& entry : entries_) sorted.push_back(&entry);
  std::stable_sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->bytes > b->bytes; });
  std::string text;
  for (const Entry* entry : sorted) {
    text +=
        fmt::format("  {:>12}  {:<24} {} {} {}\n", human_bytes(entry->bytes), memory_kind_name(entry->kind),
                    entry->name, dtype_name(entry->slot->dtype), entry->slot->shape.str());
  }
  return text;
}

DeviceBuffer MemoryPlan::allocate(const Context& context) {
  DeviceBuffer block(context, static_cast<size_t>(end_));
  context.zero({block.data(), DType::u8, {end_}});
  for (const Entry& entry : entries_) entry.slot->data = static_cast<char*>(block.data()) + entry.offset;
  for (const Alias& alias : aliases_) alias.slot->data = alias.owner->data;
  return block;
}

std::string human_bytes(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) return fmt::format("{:.2f} GiB", value / (1 << 30));
  if (bytes >= int64_t{1} << 20) return fmt::format("{:.1f} MiB", value / (1 << 20));
  if (bytes >= 10240) return fmt::format("{:.1f} KiB", value / 1024);
  return fmt::format("{} B", bytes);
}

}  // namespace te
