// One optimizer step on the device: model, optimizer and all their memory. The trainer drives it with real
// data; te-bench times it.
#pragma once

#include <limits>
#include <span>

#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "model/model_stage.h"
#include "optim/optimizer.h"
#include "parallel/groups.h"
#include "train/fp8_statistics.h"
#include "train/pipeline.h"
#include "train/swiglu_alignment.h"

namespace te::train {

/// This data rank's samples of one optimizer step in page-locked memory; of their tokens those of its context rank.
struct HostBatch {
  HostBuffer tokens, targets;  ///< int32 [samples of this data rank, tokens of a sequence here]
  HostBuffer document_start;   ///< int32 [samples of this data rank, seq], with data.document_mask
  int64_t counted = 0;         ///< targets of the global batch that are not -1
};

/// One microbatch on the host, int32 [micro batch, tokens of a sequence here]; document_start [micro batch, seq], with
/// data.document_mask.
struct HostMicrobatch {
  const int32_t *tokens = nullptr, *targets = nullptr, *document_start = nullptr;
};

class StepRunner {
 public:
  /// Plans all memory; allocates none. The whole config: every part of a step is made here, and given its sections. The
  /// groups must outlive it. The context has the config's execution_options().
  StepRunner(const config::Config& config, const Context& context, const parallel::Groups& groups);
  /// All on one rank.
  StepRunner(const config::Config& config, const Context& context);

  const MemoryPlan& plan() const { return plan_; }
  MemoryPlan& plan() { return plan_; }  ///< for what else shall be allocated with it
  model::ModelStage& model() { return model_; }
  optim::Optimizer& optimizer() { return optimizer_; }
  const parallel::Groups& groups() const { return model_.groups(); }

  void allocate();
  /// Initial weights, a function of the seed, on all ranks.
  void initialize();
  /// After main parameters were loaded: values and FP8 copies.
  void publish_weights();

  /// Samples of a step that this data rank trains on, and the first of them in the global batch.
  int64_t local_samples() const { return local_samples_; }
  int64_t first_local_sample() const { return local_samples_ * groups().at().data; }
  /// Which tokens of its samples this rank holds.
  const parallel::SequenceSplit& split() const { return model_.context_ranks().split(); }
  HostBatch make_host_batch() const;

  /// Launches optimizer step `step` (from 1: the learning rate depends on it) on the global batch from `first_sample`
  /// (the dropout masks depend on it), and the copy of its status to the host; returns before the device is done.
  /// `batch` must stay as it is until the context has been synchronized. Nothing is updated by a step whose mean loss
  /// is above `largest_loss`. `loss_scale`: of FP16, train/loss_scaler.h.
  void launch(const HostBatch& batch, int64_t step, int64_t first_sample, bool count_fp8,
              double largest_loss = std::numeric_limits<double>::infinity(), double loss_scale = 1.0);
  /// Forward and backward of the first microbatch, twice, one stage after the other, whose results are dropped: it
  /// leaves the state as it was, bit for bit. On GPUs the first launch() of a pipeline begins with it; elsewhere for
  /// tests alone, between steps. A kernel's first use, or the search for a GEMM's algorithm, makes the host wait for
  /// all that has been launched, and messages to stages whose hosts wait likewise never arrive: in a schedule whose
  /// messages go around in a ring (virtual stages) that has no end.
  void warm_up(const HostBatch& batch);
  /// With logging.loss_by_source and a blend, and once the context has been synchronized: the loss of each of this data
  /// rank's samples in the last step, sums over their counted tokens. Zeros on all but one of its ranks. Else empty.
  std::span<const float> sample_losses() const;
  /// Forward and backward of microbatches, the same on all data ranks, each operand cast with its own scale, and an
  /// update of the FP8 scales from the amaxes: no weight changes. `counted`: targets of a global batch. Waits for the
  /// device, under a watchdog's guard, as evaluation does.
  void calibrate(std::span<const HostMicrobatch> microbatches, int64_t counted);
  /// With logging.fp8_statistics_every: what is cast in a forward and a backward pass of the step's first microbatch,
  /// with the weights and scales that the step is going to use. Right before launch() with the same arguments; it
  /// leaves the state as it was, bit for bit. Of this rank; waits for the device.
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
  const int64_t micro_batch_size_, seq_length_;
  const uint64_t seed_;
  const bool document_mask_;
  model::ModelStage model_;
  optim::Optimizer optimizer_;
  Pipeline pipeline_;
  SwigluAlignment swiglu_;
  bool warm_ = false;          ///< every kernel of the passes has run
  bool counts_casts_ = false;  ///< of weights that are cast before they travel
  int64_t local_samples_;
  MemoryPlan plan_;
  HostBuffer host_memory_;  ///< outlives the device's, which is freed when all copies are done
  DeviceBuffer memory_;
  /// With the tensor and the data ranks; ends before the memory does.
  std::vector<std::unique_ptr<parallel::PeerTransport::RegisteredMemory>> registered_;
  std::unique_ptr<parallel::PeerLinks::RegisteredBuffers> registered_buffers_;  ///< likewise with the stages
  DeviceBatch batch_;
  Tensor valid_loss_;     ///< [1] fp32
  Tensor sample_losses_;  ///< [local samples] fp32, or not there
  HostBuffer host_sample_losses_;
};

}  // namespace te::train
