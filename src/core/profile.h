// A hook around every operation of a step: who spends the device's time, and on what. Off unless an observer
// is installed (te-bench --profile); then each operation tells the observer when it starts and ends, what it
// must move and compute, and under which label it runs. Switched off it costs one branch an operation. An observer may
// also have a step rehearsed (planner/cost_trace.h): its operations are told, in order, and none of them is done.
//
// An operation is a kernel of kernels/ (one launch or a few), a copy or fill, or a collective. Operations
// that others call to do their work are part of those and not seen.
#pragma once

#include <any>
#include <string>
#include <string_view>

namespace te {

class Context;

/// What an operation has to do, whoever implements it.
struct OpCost {
  double flops = 0;  ///< of GEMMs and attention; other arithmetic never limits
  double bytes = 0;  ///< device memory: each input read once, each output written once
};

struct OpCall {
  const char* name = "";  ///< "norm_forward", "gemm", "copy", "all_reduce"
  std::string label;      ///< of the ProfileLabels around it: "linear_fc1 fprop", or empty
  OpCost cost;            ///< as far as the caller knows it: copies, collectives, ops of plain tensors
  /// The arguments of an op that takes a struct of them (kernels::Gemm ...), from which cost/op_cost.h finds its cost;
  /// else empty.
  std::any args;
  std::string group{};  ///< of a collective: its ranks' group ("tensor", "data" ...)
};

/// Who listens. Calls come from the thread that drives the step, begin and end in pairs.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void begin(const Context& context, OpCall call) = 0;
  virtual void end(const Context& context) = 0;
  /// False in a rehearsal: operations are told and not done, and the memory that they name need not be there.
  virtual bool executes() const { return true; }

  /// The one that is installed, or null.
  static OpObserver* active() { return active_; }
  static bool is_tracing() { return active_ != nullptr && !active_->executes(); }
  /// Installs an observer, or none with null; it must outlive its time in place.
  static void install(OpObserver* observer) { active_ = observer; }

 private:
  inline static OpObserver* active_ = nullptr;
};

/// Names the operations within its scope; scopes nest, and the labels are joined by spaces. Of a name with
/// dots the last part is taken, so that equal linears of all layers share a label.
class ProfileLabel {
 public:
  explicit ProfileLabel(std::string_view name, std::string_view detail = {}) {
    if (OpObserver::active() != nullptr) [[unlikely]]
      push(name, detail);
  }
  ~ProfileLabel() {
    if (pushed_) [[unlikely]]
      pop();
  }
  ProfileLabel(const ProfileLabel&) = delete;
  ProfileLabel& operator=(const ProfileLabel&) = delete;

  static const std::string& current();

 private:
  void push(std::string_view name, std::string_view detail);
  void pop();
  bool pushed_ = false;
  size_t length_ = 0;  ///< of the label before
};

/// One operation, from construction to destruction. start() is for callers that have found an observer.
class ProfileScope {
 public:
  ProfileScope() = default;
  /// A null name is no operation.
  ProfileScope(const Context& context, const char* name, double bytes, std::string_view group = {}) {
    if (OpObserver::active() != nullptr && name != nullptr) [[unlikely]]
      start(context, name, {.bytes = bytes}, {}, group);
  }
  ~ProfileScope() {
    if (context_ != nullptr) [[unlikely]]
      finish();
  }
  ProfileScope(const ProfileScope&) = delete;
  ProfileScope& operator=(const ProfileScope&) = delete;

  void start(const Context& context, const char* name, const OpCost& cost, std::any args,
             std::string_view group = {});
  /// The operation is only told, not to be done.
  bool traced_only() const { return context_ != nullptr && OpObserver::is_tracing(); }

 private:
  void finish();
  const Context* context_ = nullptr;  ///< null: nobody listens
};

}  // namespace te
