#include "core/device_caps.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "core/device_backend.h"

namespace te {
namespace {

constexpr int kOldest = 80;
constexpr std::array kNamed = {80, 86, 89, 90, 100, 120};

}  // namespace

DeviceCaps caps_of(int sm) {
  constexpr int kKiB = 1024;
  const bool large = sm == 80 || sm == 87;  // GPUs for data centers, and Jetson
  return {.sm = sm,
          .fp8 = sm >= 89,
          .fp8_scale_groups = sm == 90,
          .mx = sm >= 100,
          .hopper_kernels = sm == 90 && kHasHopperKernels,
          .clusters = sm >= 90,
          .dependent_launch = sm >= 90,
          .shared_bytes = (sm >= 90 && sm < 120 ? 227
                           : large              ? 163
                                                : 99) *
                          kKiB};
}

DeviceCaps common_caps(const DeviceCaps& a, const DeviceCaps& b) {
  return {.sm = std::min(a.sm, b.sm),
          .fp8 = a.fp8 && b.fp8,
          .fp8_scale_groups = a.fp8_scale_groups && b.fp8_scale_groups,
          .mx = a.mx && b.mx,
          .hopper_kernels = a.hopper_kernels && b.hopper_kernels,
          .clusters = a.clusters && b.clusters,
          .dependent_launch = a.dependent_launch && b.dependent_launch,
          .shared_bytes = std::min(a.shared_bytes, b.shared_bytes)};
}

DeviceCaps caps_named(std::string_view name) {
  std::string known;
  for (const int sm : kNamed) {
    const std::string own = fmt::format("sm{}", sm);
    if (name == own) return caps_of(sm);
    known += (known.empty() ? "" : ", ") + own;
  }
  user_error("TE_DEVICE_CAPS={}: unknown; use one of {}, or unset it", name, known);
}

DeviceCaps usable_caps(const std::string& name, int gpu_sm, int code_sm, std::string_view mask) {
  if (gpu_sm < kOldest) {
    user_error(
        "{} has compute capability {}.{}, but te-train needs 8.0 (Ampere) or newer; use a newer GPU, or "
        "training.device: cpu",
        name, gpu_sm / 10, gpu_sm % 10);
  }
  if (code_sm == 0) {
    user_error(
        "this te-train was not compiled for {} (sm_{}); configure with -DTE_CUDA_ARCHITECTURES={} and build "
        "again",
        name, gpu_sm, gpu_sm >= 90 ? fmt::format("{}a", gpu_sm) : std::to_string(gpu_sm));
  }
  DeviceCaps caps = common_caps(caps_of(gpu_sm), caps_of(code_sm));
  std::string why = caps.sm < gpu_sm ? ", for which te-train was compiled" : "";
  if (!mask.empty()) {
    const DeviceCaps masked = common_caps(caps, caps_named(mask));
    if (masked != caps) why = fmt::format(" under TE_DEVICE_CAPS={}", mask);
    caps = masked;
  }
  caps.gpu = fmt::format("{}, sm_{}{}", name, caps.sm, why);
  return caps;
}

DeviceCaps cuda_caps([[maybe_unused]] int ordinal) {
#ifdef TE_WITH_CUDA
  const DeviceInfo info = cuda_backend::info(ordinal);
  const char* mask = std::getenv("TE_DEVICE_CAPS");
  return usable_caps(info.name, 10 * info.capability_major + info.capability_minor,
                     cuda_backend::compiled_architecture(ordinal), mask != nullptr ? mask : "");
#else
  return {};
#endif
}

const DeviceCaps& device_caps(const Context& context) {
  static const DeviceCaps none;
  if (!context.is_cuda()) return none;
  static const DeviceCaps caps = cuda_caps(context.ordinal());
  return caps;
}

}  // namespace te
