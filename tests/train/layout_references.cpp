#include "layout_references.h"

#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "core/error.h"
#include "testing/mpi.h"

namespace te::testing {
namespace {

// --- traces as bytes -----------------------------------------------------------------------------------------

class Packer {
 public:
  std::string bytes;

  template <class T>
  requires std::is_arithmetic_v<T>
  void operator()(T& value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof(value)); }
  void size(size_t& count) { (*this)(count); }
};

class Unpacker {
 public:
  explicit Unpacker(const std::string& bytes) : bytes_(bytes) {}
  template <class T>
  requires std::is_arithmetic_v<T>
  void operator()(T& value) {
    TE_CHECK(at_ + sizeof(value) <= bytes_.size(), "a trace of {} bytes ends early", bytes_.size());
    std::memcpy(&value, bytes_.data() + at_, sizeof(value));
    at_ += sizeof(value);
  }
  void size(size_t& count) { (*this)(count); }

 private:
  const std::string& bytes_;
  size_t at_ = 0;
};

// One description for both directions: containers get the number of elements in the archive.
template <class Archive, class T>
requires std::is_arithmetic_v<T>
void visit(Archive& archive, T& value) {
  archive(value);
}
template <class Archive>
void visit(Archive& archive, Part& part);

template <class Archive, class Container>
void visit_elements(Archive& archive, Container& container) {
  size_t count = container.size();
  archive.size(count);
  container.resize(count);
  for (auto& element : container) visit(archive, element);
}
template <class Archive>
void visit(Archive& archive, std::string& text) {
  visit_elements(archive, text);
}
template <class Archive, class T>
void visit(Archive& archive, std::vector<T>& values) {
  visit_elements(archive, values);
}
template <class Archive, class Key, class Value>
void visit(Archive& archive, std::map<Key, Value>& map) {
  std::vector<Key> keys;
  for (const auto& [key, value] : map) keys.push_back(key);
  visit(archive, keys);
  for (const Key& key : keys) visit(archive, map[key]);
}
template <class Archive>
void visit(Archive& archive, Part& part) {
  visit(archive, part.name), visit(archive, part.numel);
  visit(archive, part.index), visit(archive, part.value);
}
template <class Archive>
void visit(Archive& archive, Trace& trace) {
  visit(archive, trace.loss), visit(archive, trace.grad_norm), visit(archive, trace.z_loss);
  visit(archive, trace.valid_loss), visit(archive, trace.grads), visit(archive, trace.mains);
  visit(archive, trace.fp8), visit(archive, trace.buckets);
}

}  // namespace

std::vector<const Trace*> LayoutReferences::of(const std::vector<config::Config>& configs) {
  std::vector<std::pair<std::string, const config::Config*>> missing;
  std::vector<const Trace*> found;
  for (const config::Config& config : configs) {
    const auto [trace, added] = traces_.try_emplace(config::to_yaml(config));
    if (added) missing.emplace_back(trace->first, &config);
    found.push_back(&trace->second);
  }
  const auto ranks = static_cast<size_t>(world().size());
  for (size_t first = 0; first < missing.size(); first += ranks) {
    const size_t mine = first + static_cast<size_t>(world().rank()),
                 end = std::min(first + ranks, missing.size());
    std::string bytes, failure;
    if (mine < end) {
      try {
        Trace& trace = traces_.at(missing[mine].first);
        trace = train_small(*missing[mine].second, parallel::Groups::single(), options_);
        Packer packer;
        visit(packer, trace);
        bytes = std::move(packer.bytes);
      } catch (const std::exception& error) {
        failure = error.what();
      }
    }
    for (size_t i = first; i < end; ++i) {
      const int root = static_cast<int>(i - first);
      const std::string failed = world().broadcast_string(failure, {}, root);
      if (!failed.empty()) throw std::runtime_error("reference run on one rank: " + failed);
      const std::string sent = world().broadcast_string(bytes, {}, root);
      if (world().rank() == root) continue;
      Unpacker unpacker(sent);
      visit(unpacker, traces_.at(missing[i].first));
    }
  }
  return found;
}

}  // namespace te::testing
