// Operands with a scale per 128 values under sequence parallelism: the gathered bytes are those of quantizing all
// tokens on one rank, and the ranks communicate FP8.

#include <algorithm>

#include "core/profile.h"
#include "fp8/recipe.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize_groups_cases.h"
#include "parallel/groups.h"
#include "testing/mpi.h"

namespace te::testing {
namespace {

using config::Fp8Recipe;
using fp8::Operand;
using fp8::OperandRole;
using fp8::QuantizeMode;
using kernels::Matrix;
using parallel::Groups;
using parallel::ProcessGrid;
using parallel::TensorParallel;

struct Layout {
  std::string name;
  int64_t blocks = 1;  ///< blocks of 128 tokens in each run of a rank's tokens
  int64_t cols = 128;
  int chunks = 1;
  bool copies = false;
  bool power_of_two = true;
  OperandRole role = OperandRole::input;
};
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.name;
}

config::PrecisionConfig precision_of(Fp8Recipe recipe, bool power_of_two = true) {
  config::PrecisionConfig precision;
  precision.fp8 = config::Fp8Mode::hybrid;
  precision.fp8_recipe = recipe;
  precision.fp8_scale_format =
      power_of_two ? config::Fp8ScaleFormat::power_of_two : config::Fp8ScaleFormat::fp32;
  return precision;
}

/// Records the collectives of the tensor-parallel ranks in order: "all_gather 1024" with the bytes of all ranks.
class TensorMessages final : public OpObserver {
 public:
  TensorMessages() { install(this); }
  ~TensorMessages() override { install(nullptr); }
  void begin(const Context& /*context*/, OpCall call) override {
    if (call.group == "tensor")
      sent.push_back(fmt::format("{} {}", call.name, static_cast<int64_t>(call.cost.bytes)));
  }
  void end(const Context& /*context*/) override {}
  std::vector<std::string> sent;
};

std::vector<uint8_t> bytes_of(const Tensor& tensor) {
  const auto* const begin = tensor.as<uint8_t>();
  return {begin, begin + tensor.bytes()};
}

enum class Tag : uint8_t { shard_layouts };

/// An operand of a linear layer whose tokens are sharded across the ranks.
class Gathered {
 public:
  Gathered(const Layout& layout, const config::PrecisionConfig& precision, int64_t tokens)
      : context_(Context::cpu()),
        groups_(Groups::connect(world(), context_, ProcessGrid::of(world().size(), world().size(), 1, 1),
                                {.use_tensor_copy_engines = layout.copies})),
        ranks(groups_.tensor(), true, layout.chunks, groups_.tensor_peer_transport()),
        recipe(fp8::make_recipe(precision, 1)),
        quantizer(recipe->quantizer({0, LinearKind::fc1}, layout.role)),
        all_(context_, DType::bf16, {tokens, layout.cols}),
        sums_(context_, DType::f32, {layout.cols}),
        scratch_(context_, DType::f32, {kernels::quantize_scratch_elements(tokens, layout.cols)}) {
    recipe->set_amax_groups(groups_.microbatch(), groups_.stage());
    recipe->plan(plan_);
    quantizer.plan(plan_, full, {.name = "whole", .rows = tokens, .cols = layout.cols});
    memory_.plan(plan_, quantizer, "share", ranks, tokens, layout.cols, {Tag::shard_layouts, Lifetime(0, 0)});
    plan_.add(shard_high_precision_, "share", MemoryKind::scratch, DType::bf16,
              {ranks.shard(tokens), layout.cols});
    plan_.add(full_high_precision_, "whole", MemoryKind::scratch, DType::bf16, {tokens, layout.cols});
    block_ = plan_.allocate(context_);
    recipe->reset(context_);
    all_.fill(kernels::group_values(tokens, layout.cols));
    for (const parallel::TokenRange& own : ranks.ranges(tokens))
      context_.copy(shard_high_precision_.slice_rows(own.local, own.count),
                    all_.get().slice_rows(own.begin, own.count));
  }

  /// A pass; layouts that the mode does not request keep 0xff.
  void run(const QuantizeMode& mode, bool works = true) {
    for (const Tensor& tensor : std::initializer_list<Tensor>{
             full.rowwise.values, full.rowwise.scales, full.columnwise.values, full.columnwise.scales,
             memory_.rowwise, memory_.rowwise_scales, memory_.columnwise, memory_.columnwise_scales})
      if (tensor) context_.fill_bytes(tensor, 0xff);
    sums_.fill_value(0.0f);
    full.high_precision = full_high_precision_;
    const Operand shard = memory_.shard_of(quantizer, full, shard_high_precision_, ranks);
    const TensorMessages messages;
    worked.clear();
    model::GatherWork work;
    if (works)
      work = [this](const fp8::ReadyOperand& /*operand*/, int64_t first, int64_t count) {
        see(first, count);
      };
    memory_.gather(context_, quantizer, ranks, shard, {.high_precision = shard_high_precision_}, full, mode,
                   work, {sums_, scratch_});
    sent = messages.sent;
  }

  /// The layouts of all tokens, quantized on one rank.
  kernels::GroupResult expected() {
    const kernels::GroupCase c{.rows = all_.get().rows(),
                               .cols = all_.get().cols(),
                               .layout = kernels::ScaleLayout::vectors,
                               .format = quantizer.layouts().format};
    const kernels::GroupStorage storage(context_, c);
    kernels::QuantizeGroups args = storage.args(all_);
    args.power_of_two = power_of_two_;
    kernels::quantize_groups(context_, args);
    return storage.read();
  }
  void expect_rows() {
    const kernels::GroupResult one = expected();
    EXPECT_EQ(bytes_of(full.rowwise.values), one.rowwise);
    EXPECT_EQ(floats(full.rowwise.scales), one.row_scales);
  }
  void expect_columns() {
    const kernels::GroupResult one = expected();
    EXPECT_EQ(bytes_of(full.columnwise.values), one.columnwise);
    EXPECT_EQ(floats(full.columnwise.scales), one.column_scales);
  }
  static void expect_untouched(const Matrix& form) {
    for (const Tensor& tensor : {form.values, form.scales})
      EXPECT_EQ(bytes_of(tensor), std::vector<uint8_t>(tensor.bytes(), 0xff));
  }
  static std::vector<float> floats(const Tensor& tensor) {
    return {tensor.as<float>(), tensor.as<float>() + tensor.numel()};
  }
  void set_power_of_two(bool on) { power_of_two_ = on; }
  const Context& context() const { return context_; }
  const Tensor& column_sums() const { return sums_.get(); }
  const Tensor& shard_high_precision() const { return shard_high_precision_; }

 private:
  Context context_;
  Groups groups_;

 public:
  TensorParallel ranks;
  std::unique_ptr<fp8::Recipe> recipe;
  fp8::Quantizer quantizer;
  Planned<Operand> full;
  std::vector<std::string> sent;
  std::vector<std::pair<int64_t, int64_t>> worked;  ///< rows, in order

 private:
  /// Checks that the rows to work on have arrived, and their scales.
  void see(int64_t first, int64_t count) {
    worked.emplace_back(first, count);
    const kernels::GroupResult one = expected();
    const std::vector<uint8_t> rows = bytes_of(full.rowwise.values.slice_rows(first, count));
    const auto cols = static_cast<size_t>(full.rowwise.cols());
    EXPECT_TRUE(
        std::equal(rows.begin(), rows.end(), one.rowwise.begin() + static_cast<ptrdiff_t>(first * cols)));
    EXPECT_EQ(floats(full.rowwise.scales), one.row_scales);
  }

  TestTensor all_, sums_, scratch_;
  MemoryPlan plan_;
  model::OperandGather memory_;
  PlannedTensor shard_high_precision_, full_high_precision_;
  DeviceBuffer block_;
  bool power_of_two_ = true;
};

class GatheredGroups : public ::testing::TestWithParam<Layout> {
 protected:
  GatheredGroups()
      : tokens_(128 * GetParam().blocks * GetParam().chunks * world().size()),
        operand_(GetParam(), precision_of(Fp8Recipe::blockwise, GetParam().power_of_two), tokens_) {
    operand_.set_power_of_two(GetParam().power_of_two);
  }
  int64_t scale_bytes() const { return (GetParam().cols + 127) / 128 * tokens_ * 4; }
  std::string gathered(int64_t bytes) const { return fmt::format("all_gather {}", bytes); }

  const int64_t tokens_;
  Gathered operand_;
};

TEST_P(GatheredGroups, EqualThoseOfOneRank) {
  ASSERT_TRUE(operand_.quantizer.gathers_quantized(operand_.ranks, tokens_));
  operand_.run({});
  operand_.expect_rows();
  operand_.expect_columns();
  std::vector<std::pair<int64_t, int64_t>> chunks = operand_.worked;
  std::ranges::sort(chunks);
  ASSERT_EQ(chunks.size(), static_cast<size_t>(GetParam().chunks));
  for (int i = 0; i < GetParam().chunks; ++i)
    EXPECT_EQ(chunks[static_cast<size_t>(i)],
              (std::pair{i * tokens_ / GetParam().chunks, tokens_ / GetParam().chunks}));
}

// Both layouts have a byte per value and a scale of four bytes per 128 values.
TEST_P(GatheredGroups, AreCommunicatedInFp8WithTheirScales) {
  operand_.run({});
  const int64_t values = tokens_ * GetParam().cols, chunks = GetParam().copies ? 1 : GetParam().chunks;
  std::vector<std::string> expected{gathered(scale_bytes())};
  for (int i = 0; i < chunks; ++i) expected.push_back(gathered(values / chunks));
  expected.push_back(gathered(values));
  for (int i = 0; i < chunks; ++i) expected.push_back(gathered(values / 32 / chunks));
  EXPECT_EQ(operand_.sent, expected);
}

TEST_P(GatheredGroups, OnlyTheRequestedLayoutIsCommunicated) {
  const int64_t values = tokens_ * GetParam().cols;
  const auto bytes_sent = [&] {
    int64_t sum = 0;
    for (const std::string& message : operand_.sent) sum += std::stoll(message.substr(message.find(' ')));
    return sum;
  };
  operand_.run({.columnwise = false});
  operand_.expect_rows();
  Gathered::expect_untouched(operand_.full.columnwise);
  EXPECT_EQ(bytes_sent(), values + scale_bytes());
  operand_.run({.rowwise = false}, false);
  operand_.expect_columns();
  Gathered::expect_untouched(operand_.full.rowwise);
  EXPECT_EQ(bytes_sent(), values + values / 32);
}

// A rank records and counts its own tokens; the sum over the ranks covers all tokens.
TEST_P(GatheredGroups, AreRecordedOnce) {
  operand_.run({.record_amax = true, .count = true});
  const kernels::GroupResult one = operand_.expected();
  fp8::ScaleTable& table = operand_.recipe->table();
  const kernels::Fp8Counters& own = *table.counters_of(0);
  const auto sum = [](uint64_t count) { return world().sum_i64(static_cast<int64_t>(count)); };
  EXPECT_EQ(sum(own.total), static_cast<int64_t>(one.counters.total));
  EXPECT_EQ(sum(own.flushed), static_cast<int64_t>(one.counters.flushed));
  EXPECT_EQ(sum(own.saturated), 0);
  if (GetParam().cols > 128) {
    EXPECT_GT(one.counters.flushed, 0u);
  }
  operand_.recipe->update(operand_.context(), nullptr);
  EXPECT_EQ(table.last_amax.as<float>()[0], one.amax);
}

// The bias gradient is the sum over this rank's tokens, whatever is communicated.
TEST_P(GatheredGroups, TheBiasGradientHasTheSumsOfTheShard) {
  operand_.run({});
  const int64_t rows = operand_.shard_high_precision().rows(), cols = operand_.shard_high_precision().cols();
  TestTensor sums(operand_.context(), DType::f32, {cols}),
      scratch(operand_.context(), DType::f32, {kernels::quantize_scratch_elements(rows, cols)});
  sums.fill_value(0.0f);
  kernels::bias_gradient(operand_.context(), operand_.shard_high_precision(), sums, scratch);
  EXPECT_EQ(bytes_of(operand_.column_sums()), sums.raw());
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, GatheredGroups,
    ::testing::Values(
        Layout{.name = "one_block"}, Layout{.name = "ragged_columns", .blocks = 2, .cols = 400},
        Layout{.name = "narrow", .cols = 48, .power_of_two = false},
        Layout{.name = "chunks", .blocks = 2, .cols = 272, .chunks = 2},
        Layout{.name = "chunks_of_one_block", .cols = 128, .chunks = 4, .role = OperandRole::grad_output},
        Layout{.name = "gradient", .blocks = 3, .cols = 144, .role = OperandRole::grad_output},
        Layout{.name = "fp32_scales", .cols = 272, .chunks = 2, .power_of_two = false},
        Layout{.name = "copies", .blocks = 2, .cols = 144, .copies = true},
        Layout{.name = "copies_in_chunks", .cols = 272, .chunks = 4, .copies = true, .power_of_two = false}),
    [](const auto& info) { return info.param.name; });

// --- gathers in BF16 -----------------------------------------------------------------------------------------

bool gathers_quantized(const Layout& layout, const config::PrecisionConfig& precision, int64_t tokens) {
  const Gathered operand(layout, precision, tokens);
  return operand.quantizer.gathers_quantized(operand.ranks, tokens);
}

TEST(GatheredGroupsOf, PartialBlocksOfTokensAreCommunicatedInBf16) {
  const int ranks = world().size();
  const Layout layout{.cols = 144};
  const config::PrecisionConfig precision = precision_of(Fp8Recipe::blockwise);
  EXPECT_TRUE(gathers_quantized(layout, precision, 128L * ranks));
  for (const int64_t shard : {64, 192, 16}) {
    EXPECT_FALSE(gathers_quantized(layout, precision, shard * ranks));
    Gathered operand(layout, precision, shard * ranks);
    operand.run({});
    operand.expect_rows();
    operand.expect_columns();
    EXPECT_EQ(operand.sent,
              std::vector<std::string>{fmt::format("all_gather {}", shard * ranks * layout.cols * 2)});
    EXPECT_EQ(operand.worked, (std::vector<std::pair<int64_t, int64_t>>{{0, shard * ranks}}));
    operand.run({.rowwise = false}, false);
    operand.expect_columns();
  }
}

// A rank's tokens of each chunk must be full blocks; copy engines do not divide a shard into chunks.
TEST(GatheredGroupsOf, EachChunkNeedsFullBlocks) {
  const config::PrecisionConfig precision = precision_of(Fp8Recipe::blockwise);
  const int64_t tokens = 128L * world().size() * 2;
  for (const auto& [chunks, copies, quantized] :
       {std::tuple{1, false, true}, {2, false, true}, {4, false, false}, {4, true, true}}) {
    EXPECT_EQ(gathers_quantized({.chunks = chunks, .copies = copies}, precision, tokens), quantized)
        << chunks << copies;
  }
}

TEST(GatheredGroupsOf, OtherRecipes) {
  const int64_t tokens = 128L * world().size();
  EXPECT_FALSE(gathers_quantized({}, precision_of(Fp8Recipe::rowwise), tokens));
  EXPECT_TRUE(gathers_quantized({}, precision_of(Fp8Recipe::delayed), tokens));
  EXPECT_TRUE(gathers_quantized({}, precision_of(Fp8Recipe::tensorwise), tokens + 16));
  config::PrecisionConfig mixed = precision_of(Fp8Recipe::blockwise);
  mixed.overrides = "linear_fc1 wgrad: bf16";
  EXPECT_FALSE(gathers_quantized({}, mixed, tokens));
  mixed.overrides = "linear_fc1: rowwise";
  EXPECT_FALSE(gathers_quantized({}, mixed, tokens));
  mixed.overrides = "linear_fc2: rowwise";
  EXPECT_TRUE(gathers_quantized({}, mixed, tokens));
}

// Passes in both precisions: high-precision passes gather BF16 rows, whose memory is in the plan.
TEST(GatheredGroupsOf, HighPrecisionPassesGatherBf16) {
  const int64_t tokens = 128L * world().size(), cols = 144;
  Gathered operand({.cols = cols}, precision_of(Fp8Recipe::blockwise), tokens);
  operand.recipe->keep_high_precision();
  operand.recipe->set_high_precision(true);
  EXPECT_FALSE(operand.quantizer.gathers_quantized(operand.ranks, tokens));
  operand.run({}, false);
  EXPECT_EQ(operand.sent, std::vector<std::string>{fmt::format("all_gather {}", tokens * cols * 2)});
  Gathered::expect_untouched(operand.full.rowwise);
  operand.recipe->set_high_precision(false);
  operand.run({});
  operand.expect_rows();
  operand.expect_columns();
}

}  // namespace
}  // namespace te::testing
