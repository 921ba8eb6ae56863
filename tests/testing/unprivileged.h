// Tests of file permissions, which the superuser does not need.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

namespace te::testing {

/// Drops the superuser's permission to read and write everything; restores it when destroyed.
class Unprivileged {
 public:
  Unprivileged() : user_(::geteuid()) {
    if (user_ == 0) {
      EXPECT_EQ(::seteuid(65534), 0);
    }
  }
  ~Unprivileged() {
    if (user_ == 0) {
      EXPECT_EQ(::seteuid(0), 0);
    }
  }
  Unprivileged(const Unprivileged&) = delete;
  Unprivileged& operator=(const Unprivileged&) = delete;

 private:
  uid_t user_;
};

}  // namespace te::testing
