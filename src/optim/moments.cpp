#include "optim/moments.h"

#include <algorithm>

#include "core/float_types.h"
#include "kernels/adamw/moment_fp8.h"
#include "parameters/parameter_store.h"

namespace te::optim {
namespace {

using kernels::kAdamWGranule;

/// Calls visit(first element, number of elements, block index) for every block of n elements.
template <class Visit>
void for_each_block(int64_t n, Visit&& visit) {
  for (int64_t first = 0; first < n; first += kAdamWGranule)
    visit(first, std::min(kAdamWGranule, n - first), first / kAdamWGranule);
}

/// Rounds to nearest.
template <class Format>
void encode(const float* values, int64_t n, uint8_t* codes, uint8_t* exponents) {
  for_each_block(n, [&](int64_t first, int64_t count, int64_t block) {
    kernels::encode_block<Format>(
        values + first, count, [](int64_t) { return 0x8000u; }, codes + first, exponents[block]);
  });
}

/// T represents all decoded values exactly.
template <class Format, class T>
void decode(const uint8_t* codes, const uint8_t* exponents, int64_t n, T* out) {
  for_each_block(n, [&](int64_t first, int64_t count, int64_t block) {
    float values[kAdamWGranule];
    kernels::decode_block<Format>(codes + first, exponents[block], count, values);
    std::transform(values, values + count, out + first, from_float<T>);
  });
}

}  // namespace

void Moments::plan(MemoryPlan& plan, Planned<Moments>& moments, const char* name, DType dtype, int64_t n,
                   MemoryPlace place) {
  plan.add(place, {moments, moments.values}, name, MemoryKind::optimizer, dtype, {n});
  if (!moments.blocks()) return;
  plan.add(place, {moments, moments.exponents}, fmt::format("{}.exponents", name), MemoryKind::optimizer,
           DType::u8, {kernels::granules_of(n)});
}

int64_t Moments::offset_of(int64_t first, int64_t count) const {
  if (is_dense) return first;
  const auto after = std::ranges::upper_bound(runs, first, {}, &Run::first);
  if (after == runs.begin()) return -1;
  const Run& run = *(after - 1);
  return first + count <= run.first + run.count ? run.at + first - run.first : -1;
}

Moments Moments::part(int64_t shard_first, int64_t count) const {
  const int64_t first = offset_of(shard_first, count);
  TE_CHECK(first >= 0, "elements {}+{} of the shard have no moment", shard_first, count);
  Moments result{.values = parameters::ParameterStore::part(values, first, count)};
  if (!blocks()) return result;
  TE_CHECK(first % kAdamWGranule == 0, "moments start at element {}, inside a block", first);
  result.exponents =
      parameters::ParameterStore::part(exponents, first / kAdamWGranule, kernels::granules_of(count));
  return result;
}

DType Moments::stored_dtype() const {
  if (values.dtype == DType::e4m3) return DType::bf16;
  return values.dtype == DType::u8 ? DType::f32 : values.dtype;
}

void Moments::copy_raw(const Context& context, void* raw) const {
  context.copy_to_host(raw, values);
  if (blocks()) context.copy_to_host(static_cast<char*>(raw) + values.bytes(), exponents);
}

const void* Moments::from_raw(const void* raw, int64_t first, int64_t count, void* decoded) const {
  const auto* bytes = static_cast<const uint8_t*>(raw);
  if (!blocks()) return bytes + static_cast<size_t>(first) * dtype_size(values.dtype);
  const uint8_t* codes = bytes + first;
  const uint8_t* block = bytes + values.bytes() + first / kAdamWGranule;
  if (values.dtype == DType::e4m3) {
    decode<kernels::Fp8ExpAvg>(codes, block, count, static_cast<bfloat16*>(decoded));
  } else {
    decode<kernels::Fp8ExpAvgSq>(codes, block, count, static_cast<float*>(decoded));
  }
  return decoded;
}

void Moments::write(const Context& context, const float* host, void* rounded) const {
  const int64_t n = count();
  if (values.dtype == DType::f32) {
    context.copy_to_device(values, host);
  } else if (values.dtype == DType::bf16) {
    std::transform(host, host + n, static_cast<bfloat16*>(rounded), to_bf16);
    context.copy_to_device(values, rounded);
  } else {
    auto* codes = static_cast<uint8_t*>(rounded);
    (values.dtype == DType::e4m3 ? encode<kernels::Fp8ExpAvg> : encode<kernels::Fp8ExpAvgSq>)(host, n, codes,
                                                                                              codes + n);
    context.copy_to_device(values, codes);
    context.copy_to_device(exponents, codes + n);
  }
  context.synchronize();  // the host memory may be reused
}

void Moments::zero(const Context& context) const {
  context.zero(values);
  if (blocks()) context.zero(exponents);
}

}  // namespace te::optim
