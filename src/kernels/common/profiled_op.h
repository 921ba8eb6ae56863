// What a profiler is told of an op (core/profile.h): its name and arguments. What these cost it looks up itself
// (cost/op_cost.h), since that needs to know all ops.
#pragma once

#include <type_traits>

#include "core/profile.h"
#include "core/tensor.h"

namespace te::kernels {

/// The ProfileScope of a dispatched op. An op with a struct of arguments hands that over; one whose arguments are
/// tensors, each read or written once, has said what it moves.
class ProfiledOp {
 public:
  template <class... Args>
  ProfiledOp(const Context& context, const char* name, const Args&... args) {
    if (OpObserver::active() != nullptr) [[unlikely]] {
      if constexpr ((takes_struct<Args> && ...) && sizeof...(Args) == 1) {
        scope_.start(context, name, {}, std::any(args...));
      } else {
        scope_.start(context, name, {.bytes = (tensor_bytes(args) + ... + 0.0)}, {});
      }
    }
  }
  bool traced_only() const { return scope_.traced_only(); }

 private:
  template <class T>
  static constexpr bool takes_struct = std::is_class_v<T> && !std::is_same_v<T, Tensor>;
  template <class T>
  static double tensor_bytes(const T& argument) {
    if constexpr (std::is_same_v<T, Tensor>) return static_cast<double>(argument.bytes());
    return 0.0;
  }

  ProfileScope scope_;
};

}  // namespace te::kernels
