#include "core/memory_plan.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace te {
namespace {

// GPU kernels use 16-byte accesses, and bulk copies (TMA) need 128; 256 is the alignment of cudaMalloc.
constexpr int64_t kAlignment = 256;

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// The name of a buffer of all layers in tables: "layers.3.d_act" -> "layers.*.d_act".
std::string shown_name(std::string_view name) {
  std::string result;
  while (true) {
    const std::string_view part = name.substr(0, name.find('.'));
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    result += number ? "*" : part;
    if (part.size() == name.size()) return result;
    result += '.';
    name.remove_prefix(part.size() + 1);
  }
}

}  // namespace

void MemoryPlan::add(PlanSlot slot, std::string name, MemoryKind kind, DType dtype, Shape shape,
                     Scratch scratch) {
  TE_CHECK(shape.rank() > 0, "{}: planned tensors have a shape", name);
  *slot = {nullptr, dtype, shape};
  if (!scratch.lifetime.empty()) return add_scratch(slot, name, scratch);
  entries_.push_back({slot.get(), std::move(name), kind, slot->planned_bytes(), end_});
  end_ = aligned(end_ + slot->planned_bytes());
}

void MemoryPlan::add_host(PlanSlot slot, std::string name, MemoryKind kind, DType dtype, Shape shape) {
  *slot = {nullptr, dtype, shape};
  host_entries_.push_back({slot.get(), std::move(name), kind, slot->planned_bytes(), host_end_});
  host_end_ = aligned(host_end_ + slot->planned_bytes());
}

void MemoryPlan::add(MemoryPlace place, PlanSlot slot, const std::string& name, MemoryKind kind, DType dtype,
                     Shape shape) {
  if (place == MemoryPlace::host) return add_host(slot, name, kind, dtype, shape);
  add(slot, name, kind, dtype, shape);
}

void MemoryPlan::add_scratch(PlanSlot slot, const std::string& name, const Scratch& scratch) {
  TE_CHECK(!scratch.tag.empty(), "scratch {} has no tag", name);
  const auto& [first, before] = scratch_requests_.try_emplace(name, Request{*slot, scratch}).first->second;
  TE_CHECK(first.shape == slot->shape && first.dtype == slot->dtype && before.lifetime == scratch.lifetime &&
               before.tag == scratch.tag,
           "scratch {} is requested as {} {} and as {} {}, or with different tags or lifetimes", name,
           dtype_name(first.dtype), first.shape.str(), dtype_name(slot->dtype), slot->shape.str());
  const auto same = [&](const ScratchBuffer& buffer) { return buffer.tag == scratch.tag; };
  const auto found = std::ranges::find_if(scratch_, same);
  const auto buffer = static_cast<size_t>(found - scratch_.begin());
  if (found == scratch_.end()) scratch_.push_back({.name = shown_name(name), .tag = scratch.tag});
  scratch_[buffer].lifetime = scratch_[buffer].lifetime | scratch.lifetime;
  scratch_[buffer].bytes = std::max(scratch_[buffer].bytes, slot->planned_bytes());
  scratch_slots_.push_back({slot.get(), buffer});
}

std::pair<std::vector<ScratchBuffer>, int64_t> MemoryPlan::packed() const {
  std::vector<ScratchBuffer> buffers = scratch_;
  const int64_t bytes = pack(buffers, kAlignment);
  check_packing(buffers);
  for (ScratchBuffer& buffer : buffers) buffer.offset += end_;
  return {std::move(buffers), bytes};
}

void MemoryPlan::alias(PlanSlot slot, PlanSlot owner) {
  *slot = *owner;
  aliases_.push_back({slot.get(), owner.get()});
}

void MemoryPlan::overlay(int parts, const std::function<void(int part)>& add_part) {
  const int64_t begin = end_;
  int64_t end = begin;
  const size_t first = entries_.size();
  for (int part = 0; part < parts; ++part) {
    const size_t own = entries_.size();
    end_ = begin;
    add_part(part);
    const bool largest = end_ > end;
    for (size_t i = first; i < entries_.size(); ++i) {
      if (i >= own ? !largest : largest) entries_[i].counted = false;
    }
    end = std::max(end, end_);
  }
  end_ = end;
}

int64_t MemoryPlan::bytes(MemoryKind kind) const {
  int64_t sum = kind == MemoryKind::scratch ? packed().second : 0;
  for (const Entry& entry : entries_) sum += entry.kind == kind && entry.counted ? entry.bytes : 0;
  return sum;
}

int64_t MemoryPlan::total_bytes() const {
  return end_ + packed().second;
}

int64_t MemoryPlan::host_bytes(MemoryKind kind) const {
  int64_t sum = 0;
  for (const Entry& entry : host_entries_) sum += entry.kind == kind ? entry.bytes : 0;
  return sum;
}

std::string MemoryPlan::table() const {
  const auto rows = [](auto&& bytes_of_kind, std::string_view last, int64_t total) {
    std::string text;
    for (int kind = 0; kind < kMemoryKinds; ++kind) {
      const int64_t sum = bytes_of_kind(static_cast<MemoryKind>(kind));
      if (sum > 0)
        text += fmt::format("  {:<26}{:>12}\n", to_string(static_cast<MemoryKind>(kind)), human_bytes(sum));
    }
    return text + fmt::format("  {:<26}{:>12}\n", last, human_bytes(total));
  };
  std::string text = rows([this](MemoryKind kind) { return bytes(kind); }, "total", total_bytes());
  if (host_end_ == 0) return text;
  return text + "host memory (page-locked with a GPU):\n" +
         rows([this](MemoryKind kind) { return host_bytes(kind); }, "total on the host", host_end_);
}

std::string MemoryPlan::buffers() const {
  std::vector<std::pair<int64_t, std::string>> lines;
  const auto add = [&](int64_t bytes, std::string_view kind, const std::string& rest) {
    lines.emplace_back(bytes, fmt::format("  {:>12}  {:<24} {}\n", human_bytes(bytes), kind, rest));
  };
  for (const Entry& entry : entries_) {
    if (!entry.counted) continue;
    add(entry.bytes, to_string(entry.kind),
        fmt::format("{} {} {}", entry.name, dtype_name(entry.slot->dtype), entry.slot->shape.str()));
  }
  for (const Entry& entry : host_entries_) {
    add(entry.bytes, to_string(entry.kind),
        fmt::format("{} {} {}, on the host", entry.name, dtype_name(entry.slot->dtype),
                    entry.slot->shape.str()));
  }
  for (const ScratchBuffer& buffer : packed().first)
    add(buffer.bytes, "scratch, packed", fmt::format("{} at {}", buffer.name, human_bytes(buffer.offset)));
  std::ranges::stable_sort(lines, [](auto& a, auto& b) { return a.first > b.first; });
  std::string text;
  for (const auto& [bytes, line] : lines) text += line;
  return text;
}

DeviceBuffer MemoryPlan::allocate(const Context& context) {
  auto [buffers, scratch_bytes] = packed();
  const int64_t total = end_ + scratch_bytes;
  DeviceBuffer block(context, static_cast<size_t>(total));
  context.zero({block.data(), DType::u8, {total}});
  fill_slots(block.data(), std::move(buffers));
  return block;
}

void MemoryPlan::fill_slots(void* block, std::vector<ScratchBuffer> buffers) {
  scratch_ = std::move(buffers);
  block_ = block;
  for (const Entry& entry : entries_) entry.slot->data = static_cast<char*>(block_) + entry.offset;
  for (const ScratchSlot& scratch : scratch_slots_)
    scratch.slot->data = static_cast<char*>(block_) + scratch_[scratch.buffer].offset;
  for (const Alias& alias : aliases_) alias.slot->data = alias.owner->data;
}

HostBuffer MemoryPlan::allocate_host(const Context& context) {
  if (host_end_ == 0) return {};
  HostBuffer block(context, static_cast<size_t>(host_end_));
  auto* const data = block.as<char>();
  constexpr int64_t kPart = 1 << 20;
  const int64_t written = context.executes() ? host_end_ : 0;
#pragma omp parallel for schedule(static)
  for (int64_t at = 0; at < written; at += kPart)
    std::memset(data + at, 0, static_cast<size_t>(std::min(kPart, host_end_ - at)));
  for (const Entry& entry : host_entries_) entry.slot->data = data + entry.offset;
  return block;
}

void MemoryPlan::begin_step(const Context& context, int step) {
  for (const ScratchBuffer& buffer : scratch_) {
    if (buffer.lifetime.contains(step) == buffer.lifetime.contains(step_)) continue;
    // Bytes of 0xff are NaN in every floating-point type.
    context.fill_bytes({static_cast<char*>(block_) + buffer.offset, DType::u8, {buffer.bytes}}, 0xff);
  }
  step_ = step;
}

std::string human_bytes(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) return fmt::format("{:.2f} GiB", value / (1 << 30));
  if (bytes >= int64_t{1} << 20) return fmt::format("{:.1f} MiB", value / (1 << 20));
  if (bytes >= 10240) return fmt::format("{:.1f} KiB", value / 1024);
  return fmt::format("{} B", bytes);
}

}  // namespace te
