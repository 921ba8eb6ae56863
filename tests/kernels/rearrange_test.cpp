#include "rearrange_cases.h"

namespace te::kernels {
namespace {

TEST(Rearrange, MovesWhatItShouldAndNothingElse) {
  check_rearrangements(Context::cpu());
}

TEST(Rearrange, RefusesWhatDoesNotFit) {
  const Context cpu = Context::cpu();
  TestTensor whole(cpu, DType::f32, {4, 24}), parts(cpu, DType::f32, {2, 4, 8}), index(cpu, DType::i32, {4});
  TestTensor other(cpu, DType::f32, {4, 24});
  EXPECT_THROW(column_pieces(cpu, {whole, parts, 9, 0, 8}), InternalError);
  EXPECT_THROW(column_pieces(cpu, {whole, parts, 8, 1, 8}), InternalError);
  EXPECT_THROW(column_pieces(cpu, {whole, whole.get().view({1, 4, 24}), 0, 0, 8}), InternalError);
  index.fill_ints({0, 1, 2, 4});
  EXPECT_THROW(row_order(cpu, {whole, index, other}), InternalError);
  index.fill_ints({0, 1, 2, 3});
  EXPECT_THROW(row_order(cpu, {whole, index, whole}), InternalError);
  EXPECT_NO_THROW(row_order(cpu, {whole, index, other}));
}

}  // namespace
}  // namespace te::kernels
