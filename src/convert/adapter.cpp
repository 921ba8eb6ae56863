#include "convert/adapter.h"

#include <algorithm>
#include <utility>

#include "checkpoint/manifest.h"
#include "checkpoint/writer.h"
#include "config/adapter.h"
#include "convert/foreign_model.h"
#include "convert/peft.h"
#include "core/error.h"
#include "core/float_types.h"

namespace te::convert {

using checkpoint::Block;
using checkpoint::Reader;
using checkpoint::TensorInfo;
using checkpoint::WeightSource;

namespace {

constexpr int64_t kChunkElements = 4 << 20;

std::vector<float> read_all(const WeightSource& source, const std::string& name, int64_t rows, int64_t cols) {
  const std::optional<TensorInfo> stored = source.info(name);
  if (!stored || stored->rows() != rows || stored->cols() != cols)
    user_error("{}: tensor {} of the adapter is {}, must be [{}, {}]; use an adapter of this model",
               source.title(), name,
               stored ? fmt::format("[{}, {}]", stored->rows(), stored->cols()) : std::string("missing"),
               rows, cols);
  std::vector<float> values(static_cast<size_t>(rows * cols));
  source.read(name, Block::rows(0, rows, cols), values.data());
  return values;
}

/// Whether `hash` is that of the source, or of one of the weights to which adapters have been added.
bool has_base(const WeightSource& source, uint64_t hash) {
  const auto* adapted = dynamic_cast<const AdaptedWeights*>(&source);
  return (adapted != nullptr && has_base(adapted->base(), hash)) || source.hash() == hash;
}

/// Whether two existing folders are the same; false if one does not exist.
bool same_folder(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code error;
  return std::filesystem::equivalent(a, b, error) && !error;
}

}  // namespace

Adapter open_adapter(const std::filesystem::path& path, const config::ModelConfig& model) {
  if (is_peft_folder(path)) return open_peft(path, model);
  auto reader = std::make_unique<Reader>(path);
  if (!reader->manifest().base)
    user_error(
        "{}: is not an adapter; give a checkpoint of a run with adapter.type lora, or a folder with PEFT's "
        "adapter_config.json",
        reader->folder().string());
  const config::Config config = reader->run_config();
  const uint64_t base = reader->manifest().base->hash;
  return {config.adapter, std::move(reader), base};
}

// --- weights with an adapter -------------------------------------------------------------------------------

AdaptedWeights::AdaptedWeights(std::unique_ptr<WeightSource> base, const config::ModelConfig& model,
                               Adapter adapter)
    : base_(std::move(base)), model_(model), adapter_(std::move(adapter)) {
  if (adapter_.base != 0 && !has_base(*base_, adapter_.base))
    user_error(
        "{}: was trained on other files than {}, or they have changed; give the base that its manifest names",
        adapter_.weights->title(), base_->title());
  check_whole_parameters();
  for (int layer = 0; layer < model_.num_layers; ++layer)
    for (const LinearId& id : config::layer_linears(model_, layer))
      if (!config::adapted_blocks(adapter_.config, model_, id.kind).empty())
        adapted_[id.parameter(ParameterPart::weight).name()] = id;
}

// Such parameters replace those of the base, so they must have been trained on what is below.
void AdaptedWeights::check_whole_parameters() const {
  const std::vector<std::string> own = adapter_.weights->names();
  for (const auto* below = dynamic_cast<const AdaptedWeights*>(base_.get());
       below != nullptr && below->hash() != adapter_.base;
       below = dynamic_cast<const AdaptedWeights*>(below->base_.get()))
    for (const std::string& name : own)
      if (base_->info(name) && below->adapter_.weights->info(name))
        user_error(
            "{} and {}: both have a {} of their own (adapter.train_norms or train_embeddings), and the first "
            "was not trained on the second, whose {} would be lost; give one of the two",
            adapter_.weights->title(), below->adapter_.weights->title(), name, name);
}

uint64_t AdaptedWeights::hash() const {
  const uint64_t both[] = {base_->hash(), adapter_.weights->hash()};
  return checkpoint::checksum(both, sizeof(both));
}

// Embeddings of the adapter may have another padding of the vocabulary.
std::optional<TensorInfo> AdaptedWeights::info(std::string_view name) const {
  std::optional<TensorInfo> found = base_->info(name);
  if (const auto own = adapter_.weights->info(name); own && found) found->shape = own->shape;
  return found;
}

const AdaptedWeights::Product& AdaptedWeights::product_of(const std::string& name, const LinearId& id) const {
  if (product_.name == name) return product_;
  Product product{.name = name, .columns = base_->info(name)->cols()};
  const std::vector<int64_t> blocks = config::linear_blocks(model_, id);
  const std::vector<size_t> targets = config::adapted_blocks(adapter_.config, model_, id.kind);
  const size_t experts = id.expert >= 0 ? static_cast<size_t>(model_.num_moe_experts) : 1;
  int64_t rows = 0, index = 0;
  for (size_t block = 0; block < experts * blocks.size(); ++block) {
    const size_t of_expert = block % blocks.size();
    const bool targeted = std::ranges::find(targets, of_expert) != targets.end();
    for (int64_t i = 0; i < blocks[of_expert]; ++i) {
      product.b_row.push_back(targeted ? rows++ : -1);
      product.a_row.push_back(targeted ? index * adapter_.config.rank : -1);
    }
    index += targeted ? 1 : 0;
  }
  product.a = read_all(*adapter_.weights, id.parameter(ParameterPart::lora_a).name(),
                       index * adapter_.config.rank, product.columns);
  product.b =
      read_all(*adapter_.weights, id.parameter(ParameterPart::lora_b).name(), rows, adapter_.config.rank);
  product_ = std::move(product);
  return product_;
}

void AdaptedWeights::read(std::string_view name, const Block& block, float* out) const {
  if (adapter_.weights->info(name)) return adapter_.weights->read(name, block, out);
  base_->read(name, block, out);
  const auto found = adapted_.find(name);
  if (found == adapted_.end() || block.count == 0) return;
  const Product& product = product_of(found->first, found->second);
  const int64_t rank = adapter_.config.rank;
  const auto scale = static_cast<float>(adapter_.config.scale());
#pragma omp parallel for schedule(static)
  for (int64_t row = block.first / block.width; row <= (block.end() - 1) / block.width; ++row) {
    if (product.b_row[static_cast<size_t>(row)] < 0) continue;
    const int64_t begin = std::max(block.first, row * block.width),
                  end = std::min(block.end(), (row + 1) * block.width);
    const float* b = product.b.data() + product.b_row[static_cast<size_t>(row)] * rank;
    const float* a = product.a.data() + product.a_row[static_cast<size_t>(row)] * product.columns +
                     block.col + (begin - row * block.width);
    float* values = out + (begin - block.first);
    for (int64_t j = 0; j < rank; ++j)
      for (int64_t i = 0; i < end - begin; ++i) values[i] += scale * b[j] * a[j * product.columns + i];
  }
}

std::unique_ptr<WeightSource> with_adapters(std::unique_ptr<WeightSource> base,
                                            const config::ModelConfig& model,
                                            const std::vector<std::string>& adapters) {
  for (const std::string& path : adapters)
    base = std::make_unique<AdaptedWeights>(std::move(base), model, open_adapter(path, model));
  return base;
}

std::unique_ptr<Reader> last_run(const std::vector<std::string>& adapters) {
  const auto found = std::find_if_not(adapters.rbegin(), adapters.rend(), is_peft_folder);
  return found == adapters.rend() ? nullptr : std::make_unique<Reader>(*found);
}

std::vector<std::filesystem::path> bases_of(const Reader& adapter) {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  std::optional<checkpoint::Base> base = adapter.manifest().base;
  while (base && std::filesystem::exists(base->path, error)) {
    const std::filesystem::path folder = resolve_weights(base->path);
    if (same_folder(folder, adapter.folder()) ||
        std::ranges::any_of(found, [&](const auto& other) { return same_folder(folder, other); }))
      user_error(
          "{}: its base {} is an adapter on itself, as a later run has replaced it; give the former base and "
          "this adapter, as in --checkpoint BASE --adapter {}",
          adapter.folder().string(), folder.string(), adapter.folder().string());
    found.push_back(folder);
    base = is_foreign_model(folder) ? std::nullopt : Reader(folder).manifest().base;
  }
  return found;
}

std::unique_ptr<WeightSource> open_adapted(const Reader& adapter) {
  bases_of(adapter);
  std::error_code error;
  const std::string& base = adapter.manifest().base->path;
  if (!std::filesystem::exists(base, error))
    user_error(
        "{}: its base {} does not exist; give the base and this adapter, as in --checkpoint BASE --adapter "
        "{}",
        adapter.folder().string(), base, adapter.folder().string());
  const config::Config config = adapter.run_config();
  return with_adapters(open_weights(base), config.model, {adapter.folder().string()});
}

int64_t write_weights(const WeightSource& source, const std::string& config,
                      const std::filesystem::path& directory, const std::function<void(int64_t)>& progress) {
  std::vector<checkpoint::TensorSpec> specs;
  for (const std::string& name : source.names()) {
    const TensorInfo info = *source.info(name);
    specs.push_back({name, info.dtype, info.shape});
  }
  checkpoint::Writer writer(directory, {}, config, specs);
  std::vector<float> values;
  std::vector<bfloat16> narrow;
  int64_t bytes = 0;
  for (const checkpoint::TensorSpec& spec : specs) {
    const TensorInfo info{spec.dtype, spec.shape};
    const int64_t max_rows = std::max<int64_t>(1, kChunkElements / info.cols());
    for (int64_t first = 0; first < info.rows(); first += max_rows) {
      const Block block = Block::rows(first, std::min(max_rows, info.rows() - first), info.cols());
      const auto count = static_cast<size_t>(block.count);
      values.resize(count);
      source.read(spec.name, block, values.data());
      const void* data = values.data();
      if (spec.dtype == DType::bf16) {
        narrow.resize(count);
        std::transform(values.begin(), values.end(), narrow.begin(), to_bf16);
        data = narrow.data();
      }
      writer.write(spec.name, data, count * dtype_size(spec.dtype));
      progress(bytes += block.count * static_cast<int64_t>(dtype_size(spec.dtype)));
    }
  }
  writer.finish();
  return bytes;
}

}  // namespace te::convert
