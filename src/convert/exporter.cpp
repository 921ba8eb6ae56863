#include "convert/exporter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "checkpoint/folder.h"
#include "checkpoint/safetensors.h"
#include "convert/hugging_face_config.h"
#include "convert/write_behind.h"
#include "core/error.h"
#include "core/float_types.h"
#include "core/json.h"

namespace te::convert {
namespace {

/// A tensor to export: the rows of a parameter from `top` on.
struct Job {
  const ParameterLayout* parameter;
  const Part* part;
  int64_t top;
  DType dtype;
  std::vector<SafetensorsSpec> multipliers;  ///< of an FP8 weight

  int64_t numel() const { return part->rows() * parameter->cols(); }
  int64_t bytes() const {
    int64_t bytes = numel() * static_cast<int64_t>(dtype_size(dtype));
    for (const SafetensorsSpec& spec : multipliers)
      bytes += std::accumulate(spec.shape.begin(), spec.shape.end(), int64_t{4}, std::multiplies<>());
    return bytes;
  }
};

void check_shape(const checkpoint::Reader& reader, const ParameterLayout& parameter) {
  const checkpoint::LogicalTensor& stored = reader.at(parameter.name);
  const bool rows = has_vocabulary_rows(parameter.id.role) ? stored.rows() >= parameter.rows()
                                                           : stored.rows() == parameter.rows();
  if (!rows || stored.cols() != parameter.cols() ||
      (stored.dtype != DType::f32 && stored.dtype != DType::bf16))
    user_error(
        "{}: tensor {} is {} [{}], must have {} rows of {} values in FP32 or BF16 by its config; use a "
        "checkpoint that te-train or te-convert wrote",
        reader.folder().string(), parameter.name, dtype_name(stored.dtype), fmt::join(stored.shape, ", "),
        parameter.rows(), parameter.cols());
}

// Every parameter has a place in the exported model.
void check_complete(const checkpoint::Reader& reader, const std::vector<ParameterLayout>& layout) {
  for (const std::string& name : reader.names())
    TE_CHECK(std::ranges::find(layout, name, &ParameterLayout::name) != layout.end(),
             "{}: the exported model would lack {}", reader.folder().string(), name);
}

std::vector<Job> plan_jobs(const checkpoint::Reader& reader, const std::vector<ParameterLayout>& layout,
                           const std::optional<DType>& dtype, const Fp8Export& fp8) {
  check_complete(reader, layout);
  std::vector<Job> jobs;
  for (const ParameterLayout& parameter : layout) {
    check_shape(reader, parameter);
    int64_t top = 0;
    for (const Part& part : parameter.parts) {
      jobs.push_back({&parameter, &part, top, dtype.value_or(reader.at(parameter.name).dtype), {}});
      if (fp8.converts(part)) {
        jobs.back().dtype = DType::e4m3;
        jobs.back().multipliers = fp8.multipliers(part);
      }
      top += part.rows();
    }
  }
  return jobs;
}

std::optional<DType> dtype_of(const ExportOptions& options) {
  if (options.fp8 != Fp8Format::off && !options.dtype) return DType::bf16;
  return options.dtype;
}

/// Divides the tensors among files as transformers does: a file is complete when the next tensor would exceed the
/// limit. A tensor that alone exceeds the limit immediately gets its own file, before the file that is being filled.
std::vector<std::vector<Job>> plan_shards(const std::vector<Job>& jobs, int64_t max_bytes) {
  std::vector<std::vector<Job>> shards;
  std::vector<Job> current;
  int64_t bytes = 0;
  for (const Job& job : jobs) {
    if (job.bytes() > max_bytes) {
      shards.push_back({job});
      continue;
    }
    if (bytes + job.bytes() > max_bytes) {
      shards.push_back(std::exchange(current, {}));
      bytes = 0;
    }
    current.push_back(job);
    bytes += job.bytes();
  }
  if (!current.empty()) shards.push_back(std::move(current));
  return shards;
}

/// Rows [first, first + count) of a parameter in the wanted dtype; `out` must have space for FP32 values.
void read_rows(const checkpoint::Reader& reader, const ParameterLayout& parameter, int64_t first,
               int64_t count, DType dtype, std::byte* out) {
  if (dtype == reader.at(parameter.name).dtype) return reader.read_rows(parameter.name, first, count, out);
  reader.read_rows(parameter.name, first, count, reinterpret_cast<float*>(out));
  if (dtype == DType::f32) return;
  const int64_t values = count * parameter.cols();
  for (int64_t i = 0; i < values; ++i) {  // in place: element i overwrites only elements that were read
    float wide;
    std::memcpy(&wide, out + 4 * i, sizeof(wide));
    const bfloat16 narrow = to_bf16(wide);
    std::memcpy(out + 2 * i, &narrow, sizeof(narrow));
  }
}

class ShardWriting {
 public:
  ShardWriting(const checkpoint::Reader& reader, const Fp8Export& fp8, const OnProgress& progress,
               Converted& done)
      : reader_(reader), fp8_(fp8), progress_(progress), done_(done) {}

  void write(const std::filesystem::path& path, const std::vector<Job>& jobs) {
    std::vector<SafetensorsSpec> specs;
    for (const Job& job : jobs) {
      specs.push_back({job.part->name, job.dtype, job.part->shape});
      specs.insert(specs.end(), job.multipliers.begin(), job.multipliers.end());
    }
    SafetensorsWriter writer(path, specs, {{"format", "pt"}});
    WriteBehind chunks([&](const std::string& name, const std::byte* data, size_t bytes) {
      writer.write(name, data, bytes);
    });
    for (const Job& job : jobs) {
      if (job.dtype == DType::e4m3) {
        quantized(chunks, job);
        continue;
      }
      switch (job.part->order) {
        case Order::rows:
          straight(chunks, job);
          break;
        case Order::transposed:
          transposed(chunks, job);
          break;
        case Order::permuted:
          permuted(chunks, job);
          break;
      }
    }
    chunks.finish();
    writer.finish();
    ++done_.files;
  }

 private:
  void put(WriteBehind& chunks, const Job& job, int64_t values) {
    const size_t bytes = static_cast<size_t>(values) * dtype_size(job.dtype);
    chunks.put(job.part->name, bytes);
    done_.bytes += static_cast<int64_t>(bytes);
    if (progress_) progress_(done_.bytes);
  }

  void straight(WriteBehind& chunks, const Job& job) {
    const int64_t cols = job.parameter->cols(), rows = job.part->rows();
    const int64_t max_rows = std::max<int64_t>(1, kChunkBytes / (4 * cols));
    for (int64_t first = 0; first < rows; first += max_rows) {
      const int64_t count = std::min(max_rows, rows - first);
      read_rows(reader_, *job.parameter, job.top + first, count, job.dtype,
                chunks.buffer(static_cast<size_t>(4 * count * cols)));
      put(chunks, job, count * cols);
    }
  }

  // Chunks are multiples of 128 rows.
  void quantized(WriteBehind& chunks, const Job& job) {
    const int64_t cols = job.parameter->cols(), rows = job.part->rows();
    const int64_t max_rows = std::max<int64_t>(1, kChunkBytes / (4 * cols * kFp8Block)) * kFp8Block;
    std::vector<float> wide, scales;
    for (int64_t first = 0; first < rows; first += max_rows) {
      const int64_t count = std::min(max_rows, rows - first);
      wide.resize(static_cast<size_t>(count * cols));
      reader_.read_rows(job.parameter->name, job.top + first, count, wide.data());
      fp8_.quantize(*job.part, cols, wide, chunks.buffer(wide.size()), scales);
      put(chunks, job, count * cols);
    }
    const auto values = fp8_.values(*job.part, std::move(scales));
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t bytes = values[i].size() * sizeof(float);
      std::memcpy(chunks.buffer(bytes), values[i].data(), bytes);
      chunks.put(job.multipliers[i].name, bytes);
      done_.bytes += static_cast<int64_t>(bytes);
    }
  }

  void read_complete(const Job& job) {
    const auto stored = static_cast<int64_t>(dtype_size(reader_.at(job.parameter->name).dtype));
    const int64_t size = std::max(stored, static_cast<int64_t>(dtype_size(job.dtype)));
    const auto bytes = static_cast<size_t>(job.numel() * size);
    if (source_.size() < bytes) source_.resize(bytes);
    read_rows(reader_, *job.parameter, job.top, job.part->rows(), job.dtype, source_.data());
  }

  // Reads all of [out, in] and writes chunks of [in, out].
  void transposed(WriteBehind& chunks, const Job& job) {
    const int64_t in = job.parameter->cols(), out = job.part->rows();
    const size_t size = dtype_size(job.dtype);
    read_complete(job);
    const int64_t max_rows = std::max<int64_t>(1, kChunkBytes / (4 * out));
    for (int64_t first = 0; first < in; first += max_rows) {
      const int64_t count = std::min(max_rows, in - first);
      transpose(source_.data(), in, first, count, out, size,
                chunks.buffer(static_cast<size_t>(count * out) * size));
      put(chunks, job, count * out);
    }
  }

  // Reads all rows and writes them in the other program's order, in chunks.
  void permuted(WriteBehind& chunks, const Job& job) {
    const std::vector<int64_t>& theirs = *job.part->theirs;
    std::vector<int64_t> ours(theirs.size());
    for (size_t row = 0; row < theirs.size(); ++row)
      ours[static_cast<size_t>(theirs[row])] = static_cast<int64_t>(row);
    read_complete(job);
    const int64_t cols = job.parameter->cols(), rows = job.part->rows();
    const size_t row_bytes = static_cast<size_t>(cols) * dtype_size(job.dtype);
    const int64_t max_rows = std::max<int64_t>(1, kChunkBytes / (4 * cols));
    for (int64_t first = 0; first < rows; first += max_rows) {
      const int64_t count = std::min(max_rows, rows - first);
      std::byte* const out = chunks.buffer(static_cast<size_t>(count) * row_bytes);
      for (int64_t i = 0; i < count; ++i)
        std::memcpy(out + static_cast<size_t>(i) * row_bytes,
                    source_.data() + static_cast<size_t>(ours[static_cast<size_t>(first + i)]) * row_bytes,
                    row_bytes);
      put(chunks, job, count * cols);
    }
  }

  const checkpoint::Reader& reader_;
  const Fp8Export& fp8_;
  const OnProgress& progress_;
  Converted& done_;
  std::vector<std::byte> source_;  ///< input of a tensor that is transposed or permuted
};

std::string shard_name(size_t number, size_t count) {
  return count == 1 ? "model.safetensors"
                    : fmt::format("model-{:05}-of-{:05}.safetensors", number + 1, count);
}

void write_index(const std::filesystem::path& folder, const std::vector<std::vector<Job>>& shards) {
  nlohmann::json map = nlohmann::json::object();
  int64_t bytes = 0, values = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const Job& job : shards[i]) {
      map[job.part->name] = shard_name(i, shards.size());
      for (const SafetensorsSpec& spec : job.multipliers) map[spec.name] = shard_name(i, shards.size());
      bytes += job.bytes();
      values += job.numel();
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_parameters", values}, {"total_size", bytes}}},
                                {"weight_map", map}};
  checkpoint::write_text(folder / "model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace

ExportSource::ExportSource(const std::filesystem::path& checkpoint) : reader(checkpoint) {
  config = reader.run_config();
  model = config.model;
  tokenizer = config.data.tokenizer;
  architecture = architecture_for(model, reader.folder().string());
}

int64_t exported_bytes(const ExportSource& source, const ExportOptions& options) {
  const std::vector<ParameterLayout> layout = hugging_face_layout(source.model, source.architecture);
  const Fp8Export fp8(options.fp8, source.config.precision, source.config.model.num_layers, source.reader,
                      layout);
  int64_t bytes = 0;
  for (const Job& job : plan_jobs(source.reader, layout, dtype_of(options), fp8)) bytes += job.bytes();
  return bytes;
}

Converted write_hugging_face(const ExportSource& source, const std::filesystem::path& folder,
                             const ExportOptions& options, const OnProgress& progress) {
  const std::vector<ParameterLayout> layout = hugging_face_layout(source.model, source.architecture);
  const Fp8Export fp8(options.fp8, source.config.precision, source.config.model.num_layers, source.reader,
                      layout);
  const std::vector<Job> jobs = plan_jobs(source.reader, layout, dtype_of(options), fp8);
  std::vector<checkpoint::KeptFile> kept = options.kept;
  std::filesystem::path config;
  std::erase_if(kept, [&](const checkpoint::KeptFile& file) {
    if (file.name != "config.json") return false;
    config = file.source;
    return true;
  });
  nlohmann::json json = parse_json(
      hugging_face_config(source.model, jobs.front().dtype, config, source.reader.folder().string()));
  if (!json.contains("bos_token_id") && !json.contains("eos_token_id") && options.token_ids)
    json.update(options.token_ids());
  if (options.fp8 != Fp8Format::off) json["quantization_config"] = fp8.quantization_config();
  const std::vector<std::vector<Job>> shards = plan_shards(jobs, options.max_shard_bytes);
  Converted done{.tensors = 0, .files = 0, .bytes = 0, .kept = fp8.left_out()};
  for (const Job& job : jobs) done.tensors += 1 + static_cast<int64_t>(job.multipliers.size());
  ShardWriting writing(source.reader, fp8, progress, done);
  for (size_t i = 0; i < shards.size(); ++i) writing.write(folder / shard_name(i, shards.size()), shards[i]);
  if (shards.size() > 1) write_index(folder, shards);
  checkpoint::copy_files(kept, folder);
  checkpoint::write_text(folder / "config.json", json.dump(2) + "\n");
  return done;
}

}  // namespace te::convert
