#include "parallel/nccl_communicator.h"

#include <nccl.h>

#include <algorithm>
#include <exception>

#include "core/cuda_check.h"
#include "parallel/flight_recorder.h"
#include "parallel/operation.h"
#include "parallel/watchdog.h"
#include "parallel/world.h"

namespace te::parallel {
namespace {

void nccl_check(ncclResult_t result, const char* call, ncclComm_t comm) {
  if (result == ncclSuccess) return;
  const std::string operation = Operation::describe_current();
  const char* detail = ncclGetLastError(comm);
  internal_error(fmt::format("{}{}{}: {} ({})", operation, operation.empty() ? "" : ": ", call,
                             ncclGetErrorString(result), detail == nullptr ? "" : detail),
                 std::source_location::current());
}
#define TE_NCCL_CHECK(comm, call) nccl_check((call), #call, comm)

/// NCCL's type for reducing a tensor.
ncclDataType_t reduced_type(const Tensor& t) {
  switch (t.dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    default:
      return ncclInt32;  // Communicator refuses all others
  }
}

ncclRedOp_t nccl_op(ReduceOp op) {
  return op == ReduceOp::sum ? ncclSum : ncclMax;
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(World& world, const Context& context, std::string name, const std::vector<int>& ranks,
                   int max_ctas);
  ~NcclCommunicator() override;
  /// Sends one element to connect the two ranks of a channel.
  void connect_channel(const Context& context);

 private:
  void do_all_reduce(const Context& context, const Tensor& t, ReduceOp op) override;
  void do_all_gather(const Context& context, const Tensor& in, const Tensor& out) override;
  void do_all_to_all(const Context& context, const Tensor& in, const RowRanges& sent, const Tensor& out,
                     const RowRanges& received) override;
  void do_reduce_scatter(const Context& context, const Tensor& in, const Tensor& out) override;
  void do_send(const Context& context, const Tensor& t, int peer) override;
  void do_receive(const Context& context, const Tensor& t, int peer) override;
  void do_barrier(const Context& context) override;

  void launched(const Context& context);
  Watchdog::Report report(bool find_pending);

  int exceptions_ = std::uncaught_exceptions();
  ncclComm_t comm_ = nullptr;
  DeviceBuffer barrier_word_;
  FlightRecorder flight_recorder_;
  int probe_ = 0;
};

NcclCommunicator::NcclCommunicator(World& world, const Context& context, std::string name,
                                   const std::vector<int>& ranks, int max_ctas)
    : Communicator(std::move(name), ranks,
                   static_cast<int>(std::ranges::find(ranks, world.rank()) - ranks.begin())),
      barrier_word_(context, sizeof(float)),
      flight_recorder_(context) {
  const Operation operation("connect", *this, context);
  TE_CUDA_CHECK(cudaSetDevice(context.ordinal()));
  ncclUniqueId id{};
  if (rank() == 0) TE_NCCL_CHECK(nullptr, ncclGetUniqueId(&id));
  const std::string bytes = world.broadcast_string(std::string(id.internal, sizeof(id.internal)), ranks);
  std::copy(bytes.begin(), bytes.end(), id.internal);

  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  config.splitShare = 0;
  if (max_ctas > 0) config.maxCTAs = max_ctas;
  TE_NCCL_CHECK(nullptr, ncclCommInitRankConfig(&comm_, size(), id, rank(), &config));
  context.zero({barrier_word_.data(), DType::f32, {1}});
  context.synchronize();
  probe_ = Watchdog::add_probe([this](bool find_pending) { return report(find_pending); });
}

NcclCommunicator::~NcclCommunicator() {
  Watchdog::remove_probe(probe_);
  // After an exception the peers may never complete the operations that are on the CUDA streams.
  if (std::uncaught_exceptions() > exceptions_) {
    ncclCommAbort(comm_);
  } else {
    ncclCommFinalize(comm_);
    ncclCommDestroy(comm_);
  }
}

void NcclCommunicator::connect_channel(const Context& context) {
  const Tensor word{barrier_word_.data(), DType::f32, {1}};
  if (rank() == 0) send(context, word, 1);
  if (rank() == 1) receive(context, word, 0);
  context.synchronize();
}

Watchdog::Report NcclCommunicator::report(bool find_pending) {
  Watchdog::Report report;
  ncclResult_t result = ncclSuccess;
  if (ncclCommGetAsyncError(comm_, &result) != ncclSuccess ||
      (result != ncclSuccess && result != ncclInProgress)) {
    report.error = fmt::format("NCCL group {} (ranks {}) failed: {}", name(), list_ranks(world_ranks()),
                               ncclGetErrorString(result));
  }
  if (find_pending) report.pending = flight_recorder_.oldest_pending();
  return report;
}

/// Called after every launch. Does not record while the CUDA stream is captured: the event would become part of the
/// graph.
void NcclCommunicator::launched(const Context& context) {
  if (Watchdog::timeout() == 0) return;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  TE_CUDA_CHECK(cudaStreamIsCapturing(cuda_stream(context), &capture));
  if (capture != cudaStreamCaptureStatusNone) return;
  const std::string_view activity = ScopedActivity::current();
  flight_recorder_.add(context, fmt::format("{}{}{}", Operation::describe_current(),
                                            activity.empty() ? "" : ", during ", activity));
}

void NcclCommunicator::do_all_reduce(const Context& context, const Tensor& t, ReduceOp op) {
  TE_NCCL_CHECK(comm_, ncclAllReduce(t.data, t.data, static_cast<size_t>(t.numel()), reduced_type(t),
                                     nccl_op(op), comm_, cuda_stream(context)));
  launched(context);
}

void NcclCommunicator::do_all_gather(const Context& context, const Tensor& in, const Tensor& out) {
  TE_NCCL_CHECK(comm_, ncclAllGather(in.data, out.data, in.bytes(), ncclUint8, comm_, cuda_stream(context)));
  launched(context);
}

// The sends and receives of a NCCL group run as one operation, including this rank's own part.
void NcclCommunicator::do_all_to_all(const Context& context, const Tensor& in, const RowRanges& sent,
                                     const Tensor& out, const RowRanges& received) {
  TE_NCCL_CHECK(comm_, ncclGroupStart());
  for (int peer = 0; peer < size(); ++peer) {
    const RowRange &to = sent[static_cast<size_t>(peer)], &from = received[static_cast<size_t>(peer)];
    const Tensor source = in.slice_rows(to.first, to.count), target = out.slice_rows(from.first, from.count);
    if (to.count > 0)
      TE_NCCL_CHECK(comm_,
                    ncclSend(source.data, source.bytes(), ncclUint8, peer, comm_, cuda_stream(context)));
    if (from.count > 0)
      TE_NCCL_CHECK(comm_,
                    ncclRecv(target.data, target.bytes(), ncclUint8, peer, comm_, cuda_stream(context)));
  }
  TE_NCCL_CHECK(comm_, ncclGroupEnd());
  launched(context);
}

void NcclCommunicator::do_reduce_scatter(const Context& context, const Tensor& in, const Tensor& out) {
  TE_NCCL_CHECK(comm_, ncclReduceScatter(in.data, out.data, static_cast<size_t>(out.numel()),
                                         reduced_type(in), ncclSum, comm_, cuda_stream(context)));
  launched(context);
}

void NcclCommunicator::do_send(const Context& context, const Tensor& t, int peer) {
  TE_NCCL_CHECK(comm_, ncclSend(t.data, t.bytes(), ncclUint8, peer, comm_, cuda_stream(context)));
  launched(context);
}

void NcclCommunicator::do_receive(const Context& context, const Tensor& t, int peer) {
  TE_NCCL_CHECK(comm_, ncclRecv(t.data, t.bytes(), ncclUint8, peer, comm_, cuda_stream(context)));
  launched(context);
}

void NcclCommunicator::do_barrier(const Context& context) {
  const Tensor word{barrier_word_.data(), DType::f32, {1}};
  do_all_reduce(context, word, ReduceOp::sum);
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(World& world, const Context& context, std::string name,
                                                     std::vector<int> world_ranks, int max_ctas,
                                                     bool channel) {
  auto made = std::make_unique<NcclCommunicator>(world, context, std::move(name), world_ranks, max_ctas);
  if (channel) made->connect_channel(context);
  return made;
}

}  // namespace te::parallel
