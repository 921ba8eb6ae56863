// One optimizer step on the device: model, optimizer and all their memory. The trainer runs it on real data; te-bench
// times it.
#pragma once

#include <limits>
#include <span>

#include "checkpoint/training_state.h"
#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "model/model_stage.h"
#include "optim/optimizer.h"
#include "parallel/groups.h"
#include "train/fp8_statistics.h"
#include "train/pipeline.h"
#include "train/quantization_observer.h"
#include "train/swiglu_alignment.h"

namespace te::train {

/// This data-parallel rank's samples of one optimizer step in page-locked memory, reduced to its context-parallel
/// rank's tokens.
struct HostBatch {
  HostBuffer tokens, targets;  ///< int32 [samples of this data rank, local tokens of a sequence]
  HostBuffer document_start;   ///< int32 [samples of this data rank, seq], with data.document_mask
  int64_t counted = 0;         ///< targets of the global batch that are tokens
  int64_t unpadded =
      0;  ///< positions of the global batch that are no padding; needed if StepRunner::padded()
};

/// One microbatch on the host, int32 [microbatch, local tokens of a sequence]; document_start [microbatch, seq], with
/// data.document_mask.
struct HostMicrobatch {
  const int32_t *tokens = nullptr, *targets = nullptr, *document_start = nullptr;
};

class StepRunner {
 public:
  /// Plans all memory and allocates none. Takes the whole config, and passes its sections on to the parts of a step.
  /// The groups must outlive it. The context has the config's execution_options().
  StepRunner(const config::Config& config, const Context& context, const parallel::Groups& groups,
             const parameters::DataParallelOptions& options = {});
  /// For one rank.
  StepRunner(const config::Config& config, const Context& context);

  const MemoryPlan& plan() const { return plan_; }
  MemoryPlan& plan() { return plan_; }  ///< to add what is allocated with it
  model::ModelStage& model() { return model_; }
  optim::Optimizer& optimizer() { return optimizer_; }
  const parallel::Groups& groups() const { return model_.groups(); }
  /// Samples may end with padding.
  bool padded() const { return padded_; }

  void allocate();
  /// Initializes the weights on all ranks, as a function of the seed.
  void initialize();
  /// Call after FP32 master weights were loaded: writes the BF16 weights and FP8 copies.
  void publish_weights();

  /// Number of this data-parallel rank's samples per step, and the index of the first one in the global batch.
  int64_t local_samples() const { return local_samples_; }
  int64_t first_local_sample() const { return local_samples_ * groups().at()[parallel::Axis::data]; }
  /// The tokens of each sequence that this rank holds.
  const parallel::SequenceSplit& split() const { return model_.context_ranks().split(); }
  HostBatch make_host_batch() const;

  /// Launches optimizer step `step` (1-based; sets the learning rate) on the global batch that starts at `first_sample`
  /// (which seeds dropout), and the copy of its status to the host; does not wait for the device. `batch` must not
  /// change until the context has been synchronized. The update is skipped if the mean loss is above `largest_loss`.
  /// `loss_scale`: of FP16, train/loss_scaler.h.
  void launch(const HostBatch& batch, int64_t step, int64_t first_sample, bool count_fp8,
              double largest_loss = std::numeric_limits<double>::infinity(), double loss_scale = 1.0);
  /// Views of this rank's state between two steps.
  checkpoint::TrainingState training_state();
  /// Runs forward and backward of the first microbatch twice, one stage after the other, and discards the results;
  /// training_state() does not change. On GPUs the first launch() of a pipeline starts with it; otherwise only tests
  /// call it, between steps. The first use of a kernel, and GEMM autotuning, make the host wait for all launched work.
  /// If the hosts of several stages wait like this, each for communication that another has yet to launch, schedules
  /// with a cycle of stages (virtual stages) deadlock.
  void warm_up(const HostBatch& batch);
  /// With logging.loss_by_source and a blend, after the context has been synchronized: the loss of each of this
  /// data-parallel rank's samples in the last step, summed over counted tokens. Zero on all but one of the ranks with
  /// the same samples. Otherwise empty.
  std::span<const float> sample_losses() const;
  /// Runs forward and backward of microbatches, the same on all data-parallel ranks, with current scaling of each
  /// operand, then updates the FP8 scales from the amaxes. Weights do not change. `counted`: targets of a global batch.
  /// Waits for the device, under the watchdog, like evaluation.
  void calibrate(std::span<const HostMicrobatch> microbatches, int64_t counted);
  /// With logging.fp8_statistics_every: statistics of the quantizations in a forward and a backward pass of the step's
  /// first microbatch, with the weights and scales of the coming step. Call right before launch() with the same
  /// arguments. The state does not change. Covers this rank; waits for the device.
  Fp8Statistics observe(const HostBatch& batch, int64_t first_sample);
  /// Adds the loss of one microbatch to this rank's sum; waits for the device.
  void evaluate(const HostMicrobatch& microbatch);
  void begin_evaluation();
  double finish_evaluation();  ///< the sum of the losses since begin_evaluation() over all ranks

 private:
  void copy_batch(const HostBatch& batch);
  model::Pass training_pass(int64_t first_sample, int64_t microbatch) const;
  void copy_microbatch(const HostMicrobatch& microbatch);
  void weights_changed(bool count_fp8);

  const Context& context_;
  const int64_t micro_batch_size_, global_microbatches_, seq_length_;
  const uint64_t seed_;
  const bool document_mask_, padded_;
  model::ModelStage model_;
  optim::Optimizer optimizer_;
  Pipeline pipeline_;
  QuantizationObserver observer_;
  SwigluAlignment swiglu_;
  bool warm_ = false;                  ///< warm_up() has run
  bool counts_quantizations_ = false;  ///< count FP8 values of weights quantized before the gather
  int64_t local_samples_;
  MemoryPlan plan_;
  HostBuffer host_memory_;  ///< freed after the device memory, whose copies it serves
  DeviceBuffer memory_;
  /// Memory registered with the tensor-parallel ranks; destroyed before the memory.
  std::unique_ptr<parallel::PeerTransport::RegisteredMemory> registered_;
  DeviceBatch batch_;
  PlannedTensor valid_loss_;     ///< [1] fp32
  PlannedTensor sample_losses_;  ///< [local samples] fp32, or not there
  HostBuffer host_sample_losses_;
};

}  // namespace te::train
