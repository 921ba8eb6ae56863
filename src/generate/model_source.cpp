#include "generate/model_source.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "checkpoint/kept_files.h"
#include "checkpoint/reader.h"
#include "convert/foreign_model.h"
#include "core/error.h"
#include "core/float_types.h"

namespace te::generate {
namespace {

namespace fs = std::filesystem;

class CheckpointSource final : public ModelSource {
 public:
  explicit CheckpointSource(const fs::path& path) : reader_(path) {
    const fs::path manifest = reader_.folder() / "manifest.json";
    const config::Config config = config::parse_config(reader_.config(), manifest.string());
    title_ = fmt::format("{}, step {}", reader_.folder().string(), reader_.progress().step);
    model_ = config.model;
    precision_ = config.precision;
    tokenizer_ = config.data.tokenizer;
    const fs::path kept = checkpoint::kept_beside(reader_.folder());
    if (tokenizer_ == "bytes" || kept.empty()) return;
    if (checkpoint::has_tokenizer(kept)) tokenizer_ = kept.string();
    end_tokens_ = read_end_tokens(kept);
  }
  int64_t rows(const std::string& parameter, int64_t cols) const override {
    const checkpoint::LogicalTensor& tensor = reader_.at(parameter);
    if (tensor.cols() != cols)
      user_error("{}: tensor {} has rows of {} values, the model of its config needs {}",
                 reader_.folder().string(), parameter, tensor.cols(), cols);
    return tensor.rows();
  }
  void read_rows(const std::string& parameter, int64_t first, int64_t count, float* out) const override {
    reader_.read_rows(parameter, first, count, out);
  }

 private:
  checkpoint::Reader reader_;
};

class ForeignSource final : public ModelSource {
 public:
  /// `folder`: of a Hugging Face model; empty for a file of llama2.c.
  ForeignSource(convert::ForeignModel foreign, const fs::path& folder) : foreign_(std::move(foreign)) {
    title_ = foreign_.title();
    model_ = foreign_.model();
    if (folder.empty()) return;
    if (checkpoint::has_tokenizer(folder)) tokenizer_ = folder.string();
    end_tokens_ = read_end_tokens(folder);
  }
  int64_t rows(const std::string& parameter, int64_t cols) const override {
    const convert::ParameterLayout& layout = foreign_.at(parameter);
    TE_CHECK(layout.cols() == cols, "{}: rows of {} values, not {}", parameter, layout.cols(), cols);
    return layout.rows();
  }
  void read_rows(const std::string& parameter, int64_t first, int64_t count, float* out) const override {
    foreign_.read_rows(foreign_.at(parameter), first, count, out);
  }

 private:
  convert::ForeignModel foreign_;
};

/// This rank's part of a parameter, in the order in which it is stored.
std::vector<float> read_part(const ModelSource& source, const parameters::Parameter& parameter) {
  const parameters::ParameterShard& shard = parameter.shard;
  const int64_t width = shard.global_cols(), stored = source.rows(parameter.name, width);
  const bool vocabulary =
      parameter.name.ends_with("word_embeddings.weight") || parameter.name == "output_layer.weight";
  if (stored != shard.global[0] && !vocabulary)
    user_error("{}: {} has {} rows, the model of its config needs {}", source.title(), parameter.name, stored,
               shard.global[0]);
  std::vector<float> values(static_cast<size_t>(parameter.shape.numel()), 0.0f), rows;
  float* out = values.data();
  for (const parameters::ParameterShard::Rows& range : shard.rows) {
    const int64_t count = std::clamp<int64_t>(stored - range.first, 0, range.count);
    if (shard.cols == width) {
      source.read_rows(parameter.name, range.first, count, out);
    } else {
      rows.resize(static_cast<size_t>(count * width));
      source.read_rows(parameter.name, range.first, count, rows.data());
      for (int64_t row = 0; row < count; ++row)
        std::copy_n(rows.data() + row * width + shard.first_col, shard.cols, out + row * shard.cols);
    }
    out += range.count * shard.cols;
  }
  return values;
}

template <class T>
std::vector<T> rounded(const std::vector<float>& values) {
  std::vector<T> result(values.size());
#pragma omp parallel for schedule(static)
  for (size_t i = 0; i < values.size(); ++i) result[i] = from_float<T>(values[i]);
  return result;
}

}  // namespace

std::unique_ptr<ModelSource> open_model(const fs::path& path) {
  if (!fs::exists(path))
    user_error(
        "--checkpoint {}: does not exist; give a checkpoint of te-train or the folder of a Hugging Face "
        "model",
        path.string());
  if (fs::is_regular_file(path) && path.extension() == ".bin")
    return std::make_unique<ForeignSource>(convert::open_llama2c(path), "");
  if (fs::is_regular_file(path / "config.json") && !fs::exists(path / "manifest.json"))
    return std::make_unique<ForeignSource>(convert::open_hugging_face(path), path);
  return std::make_unique<CheckpointSource>(path);
}

void load_weights(const Context& context, const ModelSource& source, parameters::ParameterStore& parameters) {
  for (const parameters::Parameter& parameter : parameters.parameters()) {
    const std::vector<float> values = read_part(source, parameter);
    visit_hp(parameter.value.dtype, [&](auto zero) {
      const auto narrow = rounded<decltype(zero)>(values);
      context.copy_to_device(parameter.value, narrow.data());
      context.synchronize();  // the host vector must outlive the copy
    });
  }
}

}  // namespace te::generate
