// Reports an op to the profiler (core/profile.h) by its name and arguments. The profiler derives the cost itself
// (cost/op_cost.h), since that requires knowledge of all ops.
#pragma once

#include <type_traits>

#include "core/profile.h"
#include "core/tensor.h"

namespace te::kernels {

/// ProfileScope of a dispatched op. It passes on the argument struct if there is one. For ops whose arguments are
/// tensors, each read or written once, it reports the bytes moved.
class ProfiledOp {
 public:
  template <class... Args>
  ProfiledOp(const Context& context, const char* name, const Args&... args) {
    if (OpObserver::of(context) != nullptr) [[unlikely]] {
      if constexpr ((takes_struct<Args> && ...) && sizeof...(Args) == 1) {
        scope_.start(context, name, {}, std::any(args...));
      } else {
        scope_.start(context, name, {.bytes = (tensor_bytes(args) + ... + 0.0)}, {});
      }
    }
  }

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
