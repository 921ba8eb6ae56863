// A hook around every operation of a step, to find out how the device's time is spent. Each operation reports begin,
// end, cost and label to an observer, if one is installed (te-bench --profile). Without an observer it costs one branch
// per operation. Operations on a tracing context (Context::trace) are reported to that context's observer and not
// executed (planner/cost_trace.h).
//
// An operation is a function of kernels/ (one or a few launches), a copy or fill, or a collective. Operations inside
// another operation are not reported.
#pragma once

#include <any>
#include <string>
#include <string_view>

#include "core/device.h"

namespace te {

/// Cost of an operation, independent of its implementation.
struct OpCost {
  double flops = 0;  ///< FLOPs of GEMMs and attention; other arithmetic is never the bottleneck
  double bytes = 0;  ///< device memory: each input read once, each output written once
};

struct OpCall {
  const char* name = "";  ///< "norm_forward", "gemm", "copy", "all_reduce"
  std::string label;      ///< text of the enclosing ProfileLabels: "linear_fc1 fprop", or empty
  OpCost cost;  ///< if the caller knows it: for copies, collectives, and ops without an argument struct
  /// The argument struct of an op (kernels::Gemm ...), from which cost/op_cost.h computes its cost; else empty.
  std::any args;
  std::string group{};  ///< group of a collective ("tensor", "data" ...)
};

/// Interface of observers. The thread that runs the step calls begin and end in pairs.
class OpObserver {
 public:
  OpObserver() { ++count_; }
  virtual ~OpObserver() { --count_; }
  OpObserver(const OpObserver&) = delete;
  OpObserver& operator=(const OpObserver&) = delete;
  virtual void begin(const Context& context, OpCall call) = 0;
  virtual void end(const Context& context) = 0;

  /// The observer of the operations of a context: the one that it was made with if it traces, else the installed one;
  /// or null.
  static OpObserver* of(const Context& context) { return context.executes() ? installed_ : context.tracer(); }
  /// Installs an observer of all contexts that execute, which must exist until it is replaced; null removes it.
  static void install(OpObserver* observer) { installed_ = observer; }
  /// True if there are observers: operations need labels.
  static bool exist() { return count_ > 0; }

 private:
  inline static OpObserver* installed_ = nullptr;
  inline static int count_ = 0;
};

/// Labels the operations in its scope. Scopes nest; their labels are joined by spaces. Only the part of a name after
/// its last dot is used, so that corresponding linear layers of all transformer layers have the same label.
class ProfileLabel {
 public:
  explicit ProfileLabel(std::string_view name, std::string_view detail = {}) {
    if (OpObserver::exist()) [[unlikely]]
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
  size_t length_ = 0;  ///< length of the label without this one
};

/// One operation, from construction to destruction. Callers that already know there is an observer use start().
class ProfileScope {
 public:
  ProfileScope() = default;
  /// Does nothing if name is null.
  ProfileScope(const Context& context, const char* name, double bytes, std::string_view group = {}) {
    if (OpObserver::of(context) != nullptr && name != nullptr) [[unlikely]]
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

 private:
  void finish();
  const Context* context_ = nullptr;  ///< null without an observer
};

}  // namespace te
