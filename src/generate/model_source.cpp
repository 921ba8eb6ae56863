#include "generate/model_source.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "checkpoint/kept_files.h"
#include "checkpoint/reader.h"
#include "convert/adapter.h"
#include "convert/foreign_model.h"
#include "core/error.h"
#include "core/float_types.h"

namespace te::generate {
namespace {

namespace fs = std::filesystem;

template <class T>
std::vector<T> rounded(const std::vector<float>& values) {
  std::vector<T> result(values.size());
#pragma omp parallel for schedule(static)
  for (size_t i = 0; i < values.size(); ++i) result[i] = from_float<T>(values[i]);
  return result;
}

}  // namespace

std::unique_ptr<ModelSource> open_model(const fs::path& path, const std::vector<std::string>& adapters) {
  if (!fs::exists(path))
    user_error(
        "--checkpoint {}: does not exist; give a checkpoint of te-train or the folder of a Hugging Face "
        "model",
        path.string());
  auto source = std::make_unique<ModelSource>();
  fs::path files;  // folder with the tokenizer and generation_config.json
  if (convert::is_foreign_model(path)) {
    auto foreign = std::make_unique<convert::ForeignModel>(convert::open_foreign_model(path));
    source->title_ = foreign->title();
    source->model_ = foreign->model();
    source->weights_ = std::move(foreign);
    if (fs::is_directory(path)) files = path;
  } else {
    auto reader = std::make_unique<checkpoint::Reader>(path);
    const config::Config config =
        config::parse_config(reader->config(), (reader->folder() / "manifest.json").string());
    source->title_ = fmt::format("{}, step {}", reader->folder().string(), reader->progress().step);
    source->model_ = config.model;
    source->precision_ = config.precision;
    source->tokenizer_ = config.data.tokenizer;
    if (source->tokenizer_ != "bytes") files = checkpoint::find_kept_folder(reader->folder());
    const bool adapted = reader->manifest().base.has_value();
    source->weights_ = adapted ? convert::open_adapted(*reader) : std::move(reader);
  }
  source->weights_ = convert::with_adapters(std::move(source->weights_), source->model_, adapters);
  for (const std::string& adapter : adapters) source->title_ += " with " + adapter;
  if (!files.empty()) {
    if (checkpoint::has_tokenizer(files)) source->tokenizer_ = files.string();
    source->end_tokens_ = read_end_tokens(files);
  }
  return source;
}

void load_weights(const Context& context, const ModelSource& source, parameters::ParameterStore& parameters) {
  for (const parameters::Parameter& parameter : parameters.parameters()) {
    const std::vector<float> values =
        checkpoint::read_shard(source.weights(), source.model().vocab_size, parameter);
    visit_high_precision(parameter.value.dtype, [&](auto zero) {
      const auto narrow = rounded<decltype(zero)>(values);
      context.copy_to_device(parameter.value, narrow.data());
      context.synchronize();  // the host vector must outlive the copy
    });
  }
}

}  // namespace te::generate
