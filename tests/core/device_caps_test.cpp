// Abilities of GPUs (core/device_caps.h): by architecture, by compiled code, and under TE_DEVICE_CAPS.
#include "core/device_caps.h"

#include <gtest/gtest.h>

namespace te {
namespace {

constexpr int kKiB = 1024;

/// Without the name, which caps_of() does not set.
DeviceCaps usable(int gpu_sm, int code_sm, std::string_view mask = "") {
  DeviceCaps caps = usable_caps("GPU", gpu_sm, code_sm, mask);
  caps.gpu = "";
  return caps;
}

template <class Body>
std::string refusal(const Body& body) {
  try {
    body();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(DeviceCaps, OfArchitectures) {
  struct Row {
    int sm;
    bool fp8, fp8_scale_groups, mx, hopper, clusters, dependent_launch;
    int shared;
  };
  for (const Row& row : {Row{80, false, false, false, false, false, false, 163},
                         {86, false, false, false, false, false, false, 99},
                         {87, false, false, false, false, false, false, 163},
                         {89, true, false, false, false, false, false, 99},
                         {90, true, true, false, kHasHopperKernels, true, true, 227},
                         {100, true, false, true, false, true, true, 227},
                         {103, true, false, true, false, true, true, 227},
                         {120, true, false, true, false, true, true, 99},
                         {121, true, false, true, false, true, true, 99}}) {
    const DeviceCaps caps = caps_of(row.sm);
    EXPECT_EQ(caps.sm, row.sm);
    EXPECT_EQ(caps.fp8, row.fp8) << row.sm;
    EXPECT_EQ(caps.fp8_scale_groups, row.fp8_scale_groups) << row.sm;
    EXPECT_EQ(caps.mx, row.mx) << row.sm;
    EXPECT_EQ(caps.hopper_kernels, row.hopper) << row.sm;
    EXPECT_EQ(caps.clusters, row.clusters) << row.sm;
    EXPECT_EQ(caps.dependent_launch, row.dependent_launch) << row.sm;
    EXPECT_EQ(caps.shared_bytes, row.shared * kKiB) << row.sm;
  }
}

TEST(DeviceCaps, MasksOnlyRemoveAbilities) {
  EXPECT_EQ(usable(90, 90), caps_of(90));
  EXPECT_EQ(usable(90, 90, "sm90"), caps_of(90));
  EXPECT_EQ(usable(90, 90, "sm80"), caps_of(80));
  EXPECT_EQ(usable(90, 90, "sm89"), caps_of(89));
  EXPECT_EQ(usable(80, 80, "sm90"), caps_of(80));
  // A Hopper GPU under the mask of Blackwell loses what Blackwell lacks, but gains nothing.
  DeviceCaps blackwell = caps_of(100);
  blackwell.sm = 90, blackwell.mx = false;
  EXPECT_EQ(usable(90, 90, "sm100"), blackwell);
  DeviceCaps less_shared = blackwell;
  less_shared.shared_bytes = 99 * kKiB;
  EXPECT_EQ(usable(90, 90, "sm120"), less_shared);
}

TEST(DeviceCaps, CompiledCodeLimitsTheGpu) {
  EXPECT_EQ(usable(90, 80), caps_of(80));  // PTX for Ampere on Hopper has no programmatic dependent launch
  EXPECT_EQ(usable(89, 86), caps_of(86));
  EXPECT_EQ(usable_caps("NVIDIA L4", 89, 89, "").gpu, "NVIDIA L4, sm_89");
  EXPECT_EQ(usable_caps("NVIDIA L4", 89, 86, "").gpu, "NVIDIA L4, sm_86, for which te-train was compiled");
  EXPECT_EQ(usable_caps("NVIDIA H200", 90, 90, "sm80").gpu, "NVIDIA H200, sm_80 under TE_DEVICE_CAPS=sm80");
  EXPECT_EQ(usable_caps("NVIDIA H200", 90, 90, "sm90").gpu, "NVIDIA H200, sm_90");
}

TEST(DeviceCaps, RefusalsSayWhatToDo) {
  EXPECT_EQ(refusal([] { usable(75, 75); }),
            "GPU has compute capability 7.5, but te-train needs 8.0 (Ampere) or newer; use a newer GPU, or "
            "training.device: cpu");
  EXPECT_EQ(
      refusal([] { usable(80, 0); }),
      "this te-train was not compiled for GPU (sm_80); configure with -DTE_CUDA_ARCHITECTURES=80 and build "
      "again");
  EXPECT_NE(refusal([] { usable(100, 0); }).find("-DTE_CUDA_ARCHITECTURES=100a"), std::string::npos);
  for (const char* mask : {"sm75", "80", "hopper"}) {
    EXPECT_EQ(refusal([&] { usable(90, 90, mask); }),
              fmt::format(
                  "TE_DEVICE_CAPS={}: unknown; use one of sm80, sm86, sm89, sm90, sm100, sm120, or unset it",
                  mask));
  }
}

TEST(DeviceCaps, TheCpuHasNone) {
  const Context cpu = Context::cpu();
  EXPECT_EQ(device_caps(cpu), DeviceCaps{});
}

}  // namespace
}  // namespace te
