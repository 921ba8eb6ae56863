// CUDA dropout against the CPU reference, bitwise: vectors, partial tails, and groups divided by rows or pointers.
#include "kernels/dropout/dropout.h"
#include "testing/testing.h"

namespace te::kernels {
namespace {

using testing::TestTensor;

struct DropoutCase {
  int64_t rows, cols;
  uint64_t first_row;
};
const DropoutCase kDropoutCases[] = {{1, 1, 0},    {1, 3, 1},      {5, 7, 3},
                                     {4, 4, 1},    {3, 10, 2},     {3, 12, 5},
                                     {64, 768, 9}, {33, 1023, 77}, {257, 4100, 1'000'000'007}};

std::vector<uint8_t> run(const Context& context, const DropoutCase& c, DType dtype, float probability,
                         bool in_place) {
  TestTensor x(context, dtype, {c.rows, c.cols}), y(context, dtype, {c.rows, c.cols});
  x.fill_normal(1);
  const TestTensor& out = in_place ? x : y;
  dropout(context, {.x = x,
                    .y = out,
                    .probability = probability,
                    .seed = 0x123456789abcdefull,
                    .stream = 0xfedcba9876543210ull,
                    .first_row = c.first_row});
  return out.raw();
}

TEST(DropoutGpu, MatchesReferenceBitwise) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (const DropoutCase& c : kDropoutCases) {
    for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (float probability : {0.0f, 0.1f, 0.5f}) {
        SCOPED_TRACE(fmt::format("{}x{} {} {}", c.rows, c.cols, dtype_name(dtype), probability));
        const std::vector<uint8_t> expected = run(cpu, c, dtype, probability, false);
        EXPECT_EQ(run(gpu, c, dtype, probability, false), expected);
        EXPECT_EQ(run(gpu, c, dtype, probability, true), expected);
      }
    }
  }
}

TEST(DropoutGpu, SomeColumnsMatchTheReferenceBitwise) {
  TE_REQUIRE_GPU();
  const auto some_columns = [](const Context& context, DType dtype) {
    TestTensor x(context, dtype, {37, 120}), y(context, dtype, {37, 120});
    x.fill_normal(1);
    dropout(context, {.x = x,
                      .y = y,
                      .probability = 0.3f,
                      .seed = 5,
                      .stream = 6,
                      .first_row = 1'000'000'007,
                      .first_col = 240,
                      .all_cols = 480});
    return y.raw();
  };
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    EXPECT_EQ(some_columns(Context::cuda(0), dtype), some_columns(Context::cpu(), dtype))
        << dtype_name(dtype);
}

TEST(DropoutGpu, NumberedRowsMatchTheReferenceBitwise) {
  TE_REQUIRE_GPU();
  const auto numbered = [](const Context& context, DType dtype, int64_t rows, int64_t cols, bool has_source) {
    TestTensor x(context, dtype, {rows, cols}), y(context, dtype, {rows, cols}),
        numbers(context, DType::i32, {rows, 1}), columns(context, DType::i32, {rows, 1}),
        source(context, DType::i32, {rows});
    x.fill_normal(1);
    std::vector<int32_t> from, of_width;
    for (int64_t r = 0; r < rows; ++r) {
      from.push_back(static_cast<int32_t>(r % 5 == 4 ? -1 : rows - 1 - r));
      of_width.push_back(static_cast<int32_t>(r % 3));
    }
    source.fill_ints(from), columns.fill_ints(of_width);
    RowNumbers numbering{.numbers = numbers, .columns = {}, .first_row = 0x7fff'fffe};
    if (has_source) numbering.columns = columns, numbering.width = 3;
    row_numbers(context, numbering);
    Dropout args{.x = x, .y = y, .probability = 0.3f, .seed = 5, .stream = 6};
    args.numbers = numbers;
    if (has_source) args.source = source;
    dropout(context, args);
    return y.raw();
  };
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{3, 7}, {130, 2048}, {70'000, 12}})
      for (const bool source : {false, true})
        EXPECT_EQ(numbered(Context::cuda(0), dtype, rows, cols, source),
                  numbered(Context::cpu(), dtype, rows, cols, source))
            << rows << "x" << cols << " " << dtype_name(dtype) << source;
}

TEST(UniformNoiseGpu, MatchesReferenceBitwise) {
  TE_REQUIRE_GPU();
  const auto noisy = [](const Context& context, const DropoutCase& c, DType dtype) {
    TestTensor x(context, dtype, {c.rows, c.cols});
    x.fill_normal(1);
    uniform_noise(context, {.x = x, .amplitude = 0.07f, .seed = 3, .stream = 4, .first_row = c.first_row});
    return x.raw();
  };
  for (const DropoutCase& c : kDropoutCases)
    for (DType dtype : {DType::f32, DType::bf16, DType::f16})
      EXPECT_EQ(noisy(Context::cuda(0), c, dtype), noisy(Context::cpu(), c, dtype))
          << c.rows << "x" << c.cols << " " << dtype_name(dtype);
}

TEST(DropoutGpu, UnalignedRowsOfALargerTensor) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  const auto slice = [](const Context& context) {
    // Rows of 4 elements of bf16 begin at multiples of 8 bytes: row 3 is not aligned to 16.
    TestTensor x(context, DType::bf16, {10, 4}), y(context, DType::bf16, {10, 4});
    x.fill_normal(2);
    dropout(context, {.x = x.get().slice_rows(3, 5),
                      .y = y.get().slice_rows(3, 5),
                      .probability = 0.5f,
                      .seed = 3,
                      .first_row = 3});
    return y.raw();  // rows outside of the view keep their NaN
  };
  EXPECT_EQ(slice(gpu), slice(cpu));
}

}  // namespace
}  // namespace te::kernels
