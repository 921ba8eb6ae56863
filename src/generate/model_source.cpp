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

constexpr int64_t kPart = 4 << 20;  // elements that are converted at a time

// Values in the parameter's precision, in a buffer that is used again: new memory for each tensor costs more time in
// page faults than the rest of loading.
template <class T>
void copy_rounded(const Context& context, const float* values, int64_t count, const Tensor& to, T* buffer) {
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count; ++i) buffer[i] = from_float<T>(values[i]);
  context.copy_to_device(to, buffer);
  context.synchronize();  // the buffer must outlive the copy
}

}  // namespace

void ModelSource::take_run(const checkpoint::Reader& reader) {
  const config::Config config = reader.run_config();
  model_ = config.model;
  precision_ = config.precision;
  data_.reset();
  if (!config.data.synthetic) data_ = config.data;  // an import says nothing about documents
  const std::string& spec = config.data.tokenizer;
  const fs::path kept = spec == "bytes" ? fs::path() : checkpoint::find_kept_folder(reader.folder());
  // An adapter without its run's tokenizer, as when only a step folder was copied, has the base's tokenizer.
  const bool base_has_one = !tokenizer_.empty() || !files_.empty();
  std::error_code error;
  if (base_has_one && kept.empty() && spec != "bytes" && !fs::exists(spec, error)) return;
  tokenizer_ = spec;
  files_ = kept;
}

std::unique_ptr<ModelSource> open_model(const fs::path& path, const std::vector<std::string>& adapters) {
  if (!fs::exists(path))
    user_error(
        "--checkpoint {}: does not exist; give a checkpoint of te-train or the folder of a Hugging Face "
        "model",
        path.string());
  auto source = std::make_unique<ModelSource>();
  if (convert::is_foreign_model(path)) {
    auto foreign = std::make_unique<convert::ForeignModel>(convert::open_foreign_model(path));
    source->title_ = foreign->title();
    source->model_ = foreign->model();
    source->weights_ = std::move(foreign);
    if (fs::is_directory(path)) source->files_ = path;
  } else {
    auto reader = std::make_unique<checkpoint::Reader>(path);
    source->title_ = fmt::format("{}, step {}", reader->folder().string(), reader->progress().step);
    source->take_run(*reader);
    const bool adapted = reader->manifest().base.has_value();
    source->weights_ = adapted ? convert::open_adapted(*reader) : std::move(reader);
  }
  if (const auto run = convert::last_run(adapters)) source->take_run(*run);
  source->weights_ = convert::with_adapters(std::move(source->weights_), source->model_, adapters);
  for (const std::string& adapter : adapters) source->title_ += " with " + adapter;
  if (const fs::path& files = source->files_; !files.empty()) {
    if (checkpoint::has_tokenizer(files)) source->tokenizer_ = files.string();
    source->end_tokens_ = read_end_tokens(files);
    source->unused_generation_keys_ = unused_generation_keys(files);
  }
  return source;
}

void load_weights(const Context& context, const ModelSource& source, parameters::ParameterStore& parameters) {
  const HostBuffer staging(context, kPart * sizeof(float)), narrow(context, kPart * sizeof(float));
  const checkpoint::WeightSource& weights = source.weights();
  for (const parameters::Parameter& parameter : parameters.parameters()) {
    const checkpoint::TensorInfo stored =
        checkpoint::checked_info(weights, source.model().vocab_size, parameter.name, parameter);
    const int64_t numel = parameter.shape.numel();
    const Tensor value = parameter.value.view({numel, 1});
    for (int64_t at = 0; at < numel; at += kPart) {
      const int64_t count = std::min(kPart, numel - at);
      checkpoint::read_shard(weights, parameter.name, stored, parameter.shard, at, count,
                             staging.as<float>());
      visit_high_precision(value.dtype, [&](auto zero) {
        copy_rounded(context, staging.as<float>(), count, value.slice_rows(at, count),
                     narrow.as<decltype(zero)>());
      });
    }
  }
}

}  // namespace te::generate
