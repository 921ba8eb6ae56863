#include "checkpoint/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "checkpoint/safetensors.h"

namespace te::checkpoint {
namespace {

namespace fs = std::filesystem;

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

std::vector<NamedTensor> model_tensors(model::ModelStage& model) {
  std::vector<NamedTensor> tensors;
  for (const model::Parameter& parameter : model.parameters().parameters()) {
    tensors.push_back({parameter.name, parameter.main});
  }
  return tensors;
}

std::vector<NamedTensor> optimizer_tensors(model::ModelStage& model, optim::Optimizer& optimizer) {
  std::vector<NamedTensor> tensors;
  for (const model::Parameter& parameter : model.parameters().parameters()) {
    const auto part = [&](const Tensor& flat) {
      return Tensor{flat.as<float>() + parameter.offset, DType::f32, parameter.shape};
    };
    tensors.push_back({"exp_avg/" + parameter.name, part(optimizer.exp_avg)});
    tensors.push_back({"exp_avg_sq/" + parameter.name, part(optimizer.exp_avg_sq)});
  }
  return tensors;
}

std::vector<NamedTensor> fp8_tensors(model::ModelStage& model) {
  const fp8::ScaleTable& table = model.recipe().table();
  std::vector<NamedTensor> tensors;
  if (table.size() == 0 || !table.history) return tensors;
  return {{"scale", table.scale}, {"amax_history", table.history}, {"position", table.position}};
}

// Whose scales they are, in the order of the table: rows alone would fit other layers, too.
nlohmann::json fp8_operands(const fp8::ScaleTable& table) {
  nlohmann::json operands = nlohmann::json::array();
  for (int i = 0; i < table.size(); ++i) {
    const fp8::OperandInfo& info = table.info(i);
    operands.push_back({info.name, role_name(info.role), fp8_max(info.format)});
  }
  return operands;
}

std::vector<int64_t> dims(const Tensor& tensor) {
  std::vector<int64_t> result;
  for (int axis = 0; axis < tensor.shape.rank(); ++axis) result.push_back(tensor.shape[axis]);
  return result;
}

// Weights that an update has thrown out of FP32 are no checkpoint: the previous one must stay the latest.
void check_finite(const NamedTensor& item, const std::vector<char>& host) {
  if (item.tensor.dtype != DType::f32) return;
  constexpr uint32_t kExponent = 0x7f800000;
  bool finite = true;
  for (size_t i = 0; i < host.size();
       i += sizeof(uint32_t)) {  // no early end, so that it runs at memory speed
    uint32_t bits;
    std::memcpy(&bits, host.data() + i, sizeof(bits));
    finite &= (bits & kExponent) != kExponent;
  }
  if (!finite) {
    user_error(
        "{} is not finite after this step, so no checkpoint is saved; lower optimizer.lr, and resume from "
        "an earlier checkpoint",
        item.name);
  }
}

void write_file(const Context& context, const fs::path& path, const std::vector<NamedTensor>& tensors,
                const SafetensorsMetadata& metadata = {}) {
  std::vector<SafetensorsSpec> specs;
  for (const NamedTensor& item : tensors) specs.push_back({item.name, item.tensor.dtype, dims(item.tensor)});
  SafetensorsWriter writer(path, specs, metadata);
  std::vector<char> host;  // one tensor at a time
  for (const NamedTensor& item : tensors) {
    host.resize(item.tensor.bytes());
    context.copy_to_host(host.data(), item.tensor);
    context.synchronize();
    check_finite(item, host);
    writer.write(item.name, host.data(), host.size());
  }
  writer.finish();
}

void read_file(const Context& context, const fs::path& path, const std::vector<NamedTensor>& tensors) {
  const SafetensorsReader reader(path);
  if (reader.tensors().size() != tensors.size()) {
    user_error(
        "{}: holds {} tensors, the model of this config has {}; resume with the config it was saved with",
        path.string(), reader.tensors().size(), tensors.size());
  }
  for (const NamedTensor& item : tensors) {
    const SafetensorsTensor& stored = reader.at(item.name);
    if (stored.dtype != item.tensor.dtype || stored.shape != dims(item.tensor)) {
      user_error(
          "{}: tensor {} has another shape or dtype than the model's {} {}; resume with the config it was "
          "saved with",
          path.string(), item.name, dtype_name(item.tensor.dtype), item.tensor.shape.str());
    }
    context.copy_to_device(item.tensor, stored.data);
    context.synchronize();  // the reader's mapping must outlive the copy
  }
}

// Scales, history and ring position. A run may go on with another format (calibrated as hybrid, resumed as
// e4m3): then the scales are carried over to its largest number.
void read_fp8_file(const Context& context, const fs::path& path, model::ModelStage& model) {
  read_file(context, path, fp8_tensors(model));
  const fp8::ScaleTable& table = model.recipe().table();
  const SafetensorsReader reader(path);
  const auto found = reader.metadata().find("operands");
  const nlohmann::json stored = found == reader.metadata().end()
                                    ? nlohmann::json()
                                    : nlohmann::json::parse(found->second, nullptr, false),
                       wanted = fp8_operands(table);
  std::vector<float> scale(static_cast<size_t>(table.size()));
  context.copy_to_host(scale.data(), table.scale);
  context.synchronize();
  for (size_t i = 0; i < scale.size(); ++i) {
    const bool fits = stored.is_array() && stored.size() == scale.size() && stored[i].is_array() &&
                      stored[i].size() == 3 && stored[i][0] == wanted[i][0] && stored[i][1] == wanted[i][1] &&
                      stored[i][2].is_number();
    if (!fits) {
      user_error(
          "{}: holds the scales of other layers than this config quantizes; resume with the "
          "precision.first_layers_bf16 and last_layers_bf16 it was saved with",
          path.string());
    }
    scale[i] *= wanted[i][2].get<float>() / stored[i][2].get<float>();
  }
  context.copy_to_device(table.scale, scale.data());
  context.synchronize();
}

void sync_path(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY);
  if (file < 0 || ::fsync(file) != 0) {
    if (file >= 0) ::close(file);
    user_error("{}: could not be synced to disk: {}", path.string(), std::generic_category().message(errno));
  }
  ::close(file);
}

void write_text(const fs::path& path, const std::string& text) {
  const fs::path temporary = path.string() + ".tmp";
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out << text;
    out.flush();
    if (!out) {
      std::error_code ignored;
      fs::remove(temporary, ignored);
      user_error("{}: could not be written; is the disk full or the folder read-only?", path.string());
    }
  }
  sync_path(temporary);
  fs::rename(temporary, path);
}

// Gives the finished folder its name. A run that was resumed before this step saves it again: then the two
// are swapped in one instant, since `latest` may name the old one.
void move_into_place(const fs::path& temporary, const fs::path& folder) {
  if (!fs::exists(folder)) return fs::rename(temporary, folder);
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) != 0) {
    fs::remove_all(folder);  // a file system that cannot swap
    return fs::rename(temporary, folder);
  }
  fs::remove_all(temporary);
}

nlohmann::json read_manifest(const fs::path& folder) {
  const fs::path path = folder / "manifest.json";
  std::ifstream in(path, std::ios::binary);
  if (!in)
    user_error("{}: not found; a checkpoint is a folder with manifest.json (checkpoint.resume)",
               path.string());
  nlohmann::json manifest = nlohmann::json::parse(in, nullptr, false);
  if (!manifest.is_object()) user_error("{}: is not valid JSON; use another checkpoint", path.string());
  for (const char* key : {"step", "consumed_samples", "updates"}) {
    if (!manifest.contains(key) || !manifest[key].is_number_integer() || manifest[key].get<int64_t>() < 0) {
      user_error("{}: key '{}' must be a non-negative integer; use another checkpoint", path.string(), key);
    }
  }
  return manifest;
}

}  // namespace

fs::path save(const Context& context, const fs::path& directory, const Progress& progress,
              model::ModelStage& model, optim::Optimizer& optimizer, const std::string& config_yaml) {
  const std::string name = fmt::format("step_{:08}", progress.step);
  const fs::path temporary = directory / (name + ".tmp"), folder = directory / name;
  try {
    fs::remove_all(temporary);
    fs::create_directories(temporary);
    write_file(context, temporary / "model.safetensors", model_tensors(model));
    write_file(context, temporary / "optimizer.safetensors", optimizer_tensors(model, optimizer));
    const std::vector<NamedTensor> fp8 = fp8_tensors(model);
    if (!fp8.empty()) {
      write_file(context, temporary / "fp8.safetensors", fp8,
                 {{"operands", fp8_operands(model.recipe().table()).dump()}});
    }
    const nlohmann::json manifest = {{"format", "te-train checkpoint 1"},
                                     {"step", progress.step},
                                     {"consumed_samples", progress.consumed_samples},
                                     {"updates", progress.updates},
                                     {"fp8_state", !fp8.empty()},
                                     {"config", config_yaml}};
    write_text(temporary / "manifest.json", manifest.dump(2) + "\n");
    sync_path(temporary);
    move_into_place(temporary, folder);
    sync_path(directory);
    write_text(directory / "latest", name + "\n");
    sync_path(directory);
  } catch (const fs::filesystem_error& error) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    user_error("checkpoint.directory: {}: {}", error.path1().string(), error.code().message());
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
  return folder;
}

Progress load(const Context& context, const fs::path& folder, model::ModelStage& model,
              optim::Optimizer& optimizer) {
  const nlohmann::json manifest = read_manifest(folder);
  read_file(context, folder / "model.safetensors", model_tensors(model));
  read_file(context, folder / "optimizer.safetensors", optimizer_tensors(model, optimizer));
  const std::vector<NamedTensor> fp8 = fp8_tensors(model);
  if (!fp8.empty()) {
    // Without its scales an FP8 run would restart at scale 1, and its loss would jump.
    if (!fs::exists(folder / "fp8.safetensors")) {
      user_error(
          "{}: has no fp8.safetensors, but precision.fp8 with the delayed recipe needs its scales; resume "
          "with precision.fp8: off or from a run with fp8_calibrate: true",
          folder.string());
    }
    read_fp8_file(context, folder / "fp8.safetensors", model);
  }
  Progress progress;
  progress.step = manifest["step"].get<int64_t>();
  progress.consumed_samples = manifest["consumed_samples"].get<int64_t>();
  progress.updates = manifest["updates"].get<int64_t>();
  optimizer.set_updates(progress.updates);
  return progress;
}

std::optional<fs::path> latest(const fs::path& directory) {
  std::ifstream in(directory / "latest");
  if (!in) return std::nullopt;
  std::string name;
  std::getline(in, name);  // an empty name is no checkpoint either: starting anew would overwrite the run
  const fs::path folder = directory / name;
  if (name.empty() || !fs::exists(folder / "manifest.json")) {
    user_error(
        "{}: names '{}', which is not a checkpoint; correct the file or set checkpoint.resume to a folder",
        (directory / "latest").string(), name);
  }
  return folder;
}

}  // namespace te::checkpoint
