#include "rearrange_cases.h"

namespace te::kernels {
namespace {

TEST(Rearrange, MovesOnlyTheGivenElements) {
  check_rearrangements(Context::cpu());
}

TEST(Rearrange, RejectsInvalidArguments) {
  const Context cpu = Context::cpu();
  TestTensor full(cpu, DType::f32, {4, 24}), parts(cpu, DType::f32, {2, 4, 8}), index(cpu, DType::i32, {4});
  TestTensor other(cpu, DType::f32, {4, 24});
  EXPECT_THROW(column_chunks(cpu, {full, parts, 9, 0, 8}), InternalError);
  EXPECT_THROW(column_chunks(cpu, {full, parts, 8, 1, 8}), InternalError);
  EXPECT_THROW(column_chunks(cpu, {full, full.get().view({1, 4, 24}), 0, 0, 8}), InternalError);
  const Tensor groups = full.get().view({2, 2, 24}), part = parts.get().view({2, 4, 8});
  EXPECT_THROW(copy_block(cpu, {groups, part, 0, 17, 0, 1}), InternalError);
  EXPECT_THROW(copy_block(cpu, {groups, part, 1, 0, 0, 2}), InternalError);
  EXPECT_THROW(copy_block(cpu, {groups, part, 0, 0, 3, 2}), InternalError);
  EXPECT_THROW(copy_block(cpu, {groups, groups, 0, 0, 0, 2}), InternalError);
  EXPECT_NO_THROW(copy_block(cpu, {groups, part, 0, 16, 2, 2}));
  index.fill_ints({0, 1, 2, 4});
  EXPECT_THROW(row_order(cpu, {full, index, other}), InternalError);
  index.fill_ints({0, 1, 2, 3});
  EXPECT_THROW(row_order(cpu, {full, index, full}), InternalError);
  EXPECT_NO_THROW(row_order(cpu, {full, index, other}));
}

}  // namespace
}  // namespace te::kernels
