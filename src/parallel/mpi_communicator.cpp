#include "parallel/mpi_communicator.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <vector>

#include "core/float_types.h"
#include "parallel/mpi_support.h"
#include "parallel/operation.h"

namespace te::parallel {
namespace {

constexpr int kCollectiveTag = 1, kChannelTag = 2;
/// Up to this total size, an all-reduce sends the full tensor to every rank: one round of communication instead of two.
constexpr size_t kOneRoundBytes = 64 << 10;

template <class T>
float widen(T value) {
  return to_float(value);
}
int64_t widen(int32_t value) {
  return value;
}
template <class T, class Wide>
T narrow(Wide value) {
  if constexpr (std::is_same_v<T, int32_t>) {
    return static_cast<int32_t>(value);
  } else {
    return from_float<T>(value);
  }
}

/// out[i] = parts[0][i] op parts[1][i] op ..., in this order. `out` may be one of the parts.
template <class T>
void reduce_typed(const std::vector<char*>& parts, void* out, int64_t count, ReduceOp op) {
  using Wide = decltype(widen(T{}));
  constexpr int64_t kBlock = 2048;
#pragma omp parallel for schedule(static)
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t block = std::min(kBlock, count - begin);
    Wide result[kBlock];
    for (size_t part = 0; part < parts.size(); ++part) {
      const T* values = reinterpret_cast<const T*>(parts[part]) + begin;
      if (part == 0) {
        for (int64_t i = 0; i < block; ++i) result[i] = widen(values[i]);
      } else if (op == ReduceOp::sum) {
        for (int64_t i = 0; i < block; ++i) result[i] += widen(values[i]);
      } else {
        for (int64_t i = 0; i < block; ++i) {
          const Wide value = widen(values[i]);
          // A NaN (unequal to itself) is replaced by any number.
          result[i] = value > result[i] || result[i] != result[i] ? value : result[i];
        }
      }
    }
    for (int64_t i = 0; i < block; ++i) static_cast<T*>(out)[begin + i] = narrow<T>(result[i]);
  }
}

void reduce(const std::vector<char*>& parts, DType dtype, void* out, int64_t count, ReduceOp op) {
  if (dtype == DType::i32) return reduce_typed<int32_t>(parts, out, count, op);
  visit_high_precision(dtype, [&](auto zero) { reduce_typed<decltype(zero)>(parts, out, count, op); });
}

char* bytes_of(const Tensor& t) {
  return static_cast<char*>(t.data);
}

}  // namespace

struct MpiCommunicator::Mpi {
  MPI_Comm comm = MPI_COMM_NULL;
  int exceptions = std::uncaught_exceptions();
  struct Sent {
    std::vector<char> bytes;
    MpiExchange exchange;
  };
  std::deque<Sent> sent;  // pending sends, oldest first
};

MpiCommunicator::MpiCommunicator(World& world, std::string name, std::vector<int> world_ranks)
    : Communicator(std::move(name), world_ranks,
                   static_cast<int>(std::ranges::find(world_ranks, world.rank()) - world_ranks.begin())),
      mpi_(std::make_unique<Mpi>()) {
  mpi_->comm = mpi_make_group(world_ranks);
}

MpiCommunicator::~MpiCommunicator() {
  if (std::uncaught_exceptions() > mpi_->exceptions) {
    // The receivers may never receive. MPI may still read the buffers, so they are not freed; the static list keeps
    // them reachable for the leak sanitizer.
    static std::vector<Mpi*>& kept = *new std::vector<Mpi*>;  // NOLINT(bugprone-unhandled-exception-at-new)
    kept.push_back(mpi_.release());
    return;
  }
  {
    const Operation operation("end", *this, Context::cpu());
    for (Mpi::Sent& sent : mpi_->sent) sent.exchange.wait();
  }
  MPI_Comm_free(&mpi_->comm);
}

std::vector<char*> MpiCommunicator::staging_parts(size_t bytes, char* own) {
  if (staging_.size() < bytes * static_cast<size_t>(size()))
    staging_.resize(bytes * static_cast<size_t>(size()));
  std::vector<char*> parts(static_cast<size_t>(size()));
  for (size_t part = 0; part < parts.size(); ++part) parts[part] = staging_.data() + part * bytes;
  parts[static_cast<size_t>(rank())] = own;
  return parts;
}

void MpiCommunicator::do_all_reduce(const Context&, const Tensor& t, ReduceOp op) {
  MpiExchange exchange(mpi_->comm, kCollectiveTag);
  if (t.bytes() * static_cast<size_t>(size()) <= kOneRoundBytes) {
    const std::vector<char*> parts = staging_parts(t.bytes(), bytes_of(t));
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      exchange.receive(parts[static_cast<size_t>(peer)], t.bytes(), peer);
      exchange.send(t.data, t.bytes(), peer);
    }
    exchange.wait();
    return reduce(parts, t.dtype, t.data, t.numel(), op);
  }
  // Every rank reduces one slice; then the slices are gathered.
  const auto slice = [&](int part) {
    const int64_t begin = t.numel() * part / size(), end = t.numel() * (part + 1) / size();
    return Tensor{bytes_of(t) + static_cast<size_t>(begin) * dtype_size(t.dtype), t.dtype, {end - begin}};
  };
  const Tensor own = slice(rank());
  const std::vector<char*> parts = staging_parts(own.bytes(), bytes_of(own));
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    exchange.receive(parts[static_cast<size_t>(peer)], own.bytes(), peer);
    exchange.send(slice(peer).data, slice(peer).bytes(), peer);
  }
  exchange.wait();
  reduce(parts, t.dtype, own.data, own.numel(), op);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    exchange.receive(slice(peer).data, slice(peer).bytes(), peer);
    exchange.send(own.data, own.bytes(), peer);
  }
  exchange.wait();
}

void MpiCommunicator::do_all_gather(const Context& context, const Tensor& in, const Tensor& out) {
  MpiExchange exchange(mpi_->comm, kCollectiveTag);
  const size_t bytes = in.bytes();
  char* const own = bytes_of(out) + static_cast<size_t>(rank()) * bytes;
  if (own != in.data) std::memcpy(own, in.data, bytes);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    exchange.receive(bytes_of(out) + static_cast<size_t>(peer) * bytes, bytes, peer);
    exchange.send(own, bytes, peer);
  }
  exchange.wait();
}

void MpiCommunicator::do_all_to_all(const Context&, const Tensor& in, const RowRanges& sent,
                                    const Tensor& out, const RowRanges& received) {
  MpiExchange exchange(mpi_->comm, kCollectiveTag);
  for (int peer = 0; peer < size(); ++peer) {
    const RowRange &to = sent[static_cast<size_t>(peer)], &from = received[static_cast<size_t>(peer)];
    const Tensor source = in.slice_rows(to.first, to.count), target = out.slice_rows(from.first, from.count);
    if (peer == rank()) {
      if (to.count > 0) std::copy_n(bytes_of(source), source.bytes(), bytes_of(target));
      continue;
    }
    if (from.count > 0) exchange.receive(target.data, target.bytes(), peer);
    if (to.count > 0) exchange.send(source.data, source.bytes(), peer);
  }
  exchange.wait();
}

void MpiCommunicator::do_reduce_scatter(const Context&, const Tensor& in, const Tensor& out) {
  MpiExchange exchange(mpi_->comm, kCollectiveTag);
  const size_t bytes = out.bytes();
  char* const own = bytes_of(in) + static_cast<size_t>(rank()) * bytes;
  const std::vector<char*> parts = staging_parts(bytes, own);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    exchange.receive(parts[static_cast<size_t>(peer)], bytes, peer);
    exchange.send(bytes_of(in) + static_cast<size_t>(peer) * bytes, bytes, peer);
  }
  exchange.wait();
  reduce(parts, in.dtype, out.data, out.numel(), ReduceOp::sum);
}

void MpiCommunicator::do_send(const Context&, const Tensor& t, int peer) {
  reap_sends();
  Mpi::Sent& sent = mpi_->sent.emplace_back(
      Mpi::Sent{std::vector<char>(bytes_of(t), bytes_of(t) + t.bytes()), {mpi_->comm, kChannelTag}});
  sent.exchange.send(sent.bytes.data(), sent.bytes.size(), peer);
}

void MpiCommunicator::do_receive(const Context&, const Tensor& t, int peer) {
  MpiExchange exchange(mpi_->comm, kChannelTag);
  exchange.receive(t.data, t.bytes(), peer);
  exchange.wait();
  reap_sends();
}

void MpiCommunicator::reap_sends() {
  while (!mpi_->sent.empty() && mpi_->sent.front().exchange.test()) mpi_->sent.pop_front();
}

void MpiCommunicator::do_barrier(const Context&) {
  std::vector<MPI_Request> request(1);
  TE_MPI_CHECK(MPI_Ibarrier(mpi_->comm, request.data()));
  mpi_wait(request);
}

}  // namespace te::parallel
