// te-convert diff: compares two sets of tensors by name.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "common/command_line.h"
#include "convert/commands.h"
#include "convert/tensor_source.h"
#include "core/error.h"
#include "core/float_types.h"
#include "core/printable.h"

namespace te::convert {
namespace {

constexpr int64_t kElements = 1 << 20;  // compared per block
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct DiffArguments {
  std::string a, b;
  int64_t top = 20;
};

/// How two tensors differ.
struct Difference {
  std::string name, what;
  double largest = 0, relative = 0;
};

template <class Stored>
double number(const std::byte* at) {
  Stored value;
  std::memcpy(&value, at, sizeof(value));
  if constexpr (std::is_arithmetic_v<Stored>)
    return static_cast<double>(value);
  else
    return to_float(value);
}

/// Reads an element of a dtype as a number; null for dtypes that are compared as bytes.
using ReadNumber = double (*)(const std::byte*);
ReadNumber number_of(const std::string& dtype) {
  if (dtype == "F32") return number<float>;
  if (dtype == "F64") return number<double>;
  if (dtype == "F16") return number<float16>;
  if (dtype == "BF16") return number<bfloat16>;
  if (dtype == "I32") return number<int32_t>;
  if (dtype == "U8") return number<uint8_t>;
  return nullptr;
}

/// Compares elements as numbers. NaN equals NaN and nothing else.
struct Comparison {
  void add(const std::byte* a, const std::byte* b, int64_t count, size_t size_a, size_t size_b,
           ReadNumber read_a, ReadNumber read_b) {
    if (read_a == read_b && std::memcmp(a, b, static_cast<size_t>(count) * size_a) == 0) {
      for (int64_t i = 0; i < count; ++i)
        update_magnitude(std::abs(read_a(a + static_cast<size_t>(i) * size_a)));
      return;
    }
    for (int64_t i = 0; i < count; ++i) {
      const double left = read_a(a + static_cast<size_t>(i) * size_a),
                   right = read_b(b + static_cast<size_t>(i) * size_b);
      update_magnitude(std::abs(left));
      if (left == right || (std::isnan(left) && std::isnan(right))) continue;
      ++different;
      const double difference = std::abs(left - right);
      largest = std::max(largest, std::isnan(difference) ? kInfinity : difference);
    }
  }
  void update_magnitude(double magnitude) {
    if (std::isfinite(magnitude)) size = std::max(size, magnitude);
  }

  int64_t different = 0;
  double largest = 0;  ///< max |a - b|
  double size = 0;     ///< max |a| over finite elements
};

/// Reads and compares both tensors block by block; `what` is empty if they are equal.
Difference compare(const TensorSource& a, size_t at_a, const TensorSource& b, size_t at_b) {
  const TensorEntry &left = a.entries()[at_a], &right = b.entries()[at_b];
  Difference result{.name = printable(left.name), .what = ""};
  if (left.shape != right.shape) {
    result.what = fmt::format("shapes {} and {}", left.shape_text(), right.shape_text());
    result.largest = result.relative = kInfinity;
    return result;
  }
  const int64_t numel = left.numel();
  if (numel == 0) return result;
  const size_t size_a = left.bytes / static_cast<size_t>(numel),
               size_b = right.bytes / static_cast<size_t>(numel);
  const ReadNumber read_a = number_of(left.dtype), read_b = number_of(right.dtype);
  if (left.dtype != right.dtype) result.what = fmt::format("{} and {}", left.dtype, right.dtype);
  if (left.dtype != right.dtype && (read_a == nullptr || read_b == nullptr)) {
    result.largest = result.relative = kInfinity;
    return result;
  }
  std::vector<std::byte> bytes_a(static_cast<size_t>(std::min(numel, kElements)) * size_a),
      bytes_b(static_cast<size_t>(std::min(numel, kElements)) * size_b);
  Comparison comparison;
  bool same_bytes = true;
  for (int64_t first = 0; first < numel; first += kElements) {
    apps::check_interrupted();
    const int64_t count = std::min(kElements, numel - first);
    a.read(at_a, first, count, bytes_a.data());
    b.read(at_b, first, count, bytes_b.data());
    if (size_a == size_b)
      same_bytes &= std::memcmp(bytes_a.data(), bytes_b.data(), static_cast<size_t>(count) * size_a) == 0;
    if (read_a != nullptr)
      comparison.add(bytes_a.data(), bytes_b.data(), count, size_a, size_b, read_a, read_b);
  }
  if (left.dtype == right.dtype && same_bytes) return result;
  result.largest = comparison.largest;
  result.relative = comparison.largest == 0 ? 0 : comparison.largest / comparison.size;
  if (read_a == nullptr) {
    result.what = fmt::format("bytes differ ({})", left.dtype);
    result.largest = result.relative = kInfinity;
  } else {
    const std::string values = comparison.different == 0
                                   ? "same values"
                                   : fmt::format("{} of {} values differ", comparison.different, numel);
    result.what += (result.what.empty() ? "" : ", ") + values;
  }
  return result;
}

/// Prints the differences, largest relative difference first. Returns whether everything is equal.
bool print_differences(std::vector<Difference> differences, int64_t equal, int64_t top) {
  std::ranges::stable_sort(differences, std::greater<>(), &Difference::relative);
  size_t width = 6;
  const auto shown = static_cast<size_t>(std::min<int64_t>(top, static_cast<int64_t>(differences.size())));
  for (size_t i = 0; i < shown; ++i) width = std::max(width, differences[i].name.size());
  if (shown > 0) fmt::print("{:<{}}  {:>10}  {:>10}\n", "tensor", width, "largest", "relative");
  for (size_t i = 0; i < shown; ++i) {
    const Difference& d = differences[i];
    if (std::isinf(d.largest)) {
      fmt::print("{:<{}}  {:>10}  {:>10}  {}\n", d.name, width, "-", "-", d.what);
    } else {
      fmt::print("{:<{}}  {:>10.3e}  {:>10.3e}  {}\n", d.name, width, d.largest, d.relative, d.what);
    }
  }
  if (shown < differences.size()) fmt::print("... and {} more (--top)\n", differences.size() - shown);
  fmt::print("{} tensors are equal, {} differ\n", equal, differences.size());
  return differences.empty();
}

bool diff(const DiffArguments& arguments) {
  const std::unique_ptr<TensorSource> a = open_tensors(arguments.a), b = open_tensors(arguments.b);
  std::vector<Difference> differences;
  int64_t equal = 0;
  const auto alone = [&](const TensorEntry& entry, const std::string& where) {
    differences.push_back({printable(entry.name), "only in " + where, kInfinity, kInfinity});
  };
  // Both lists are sorted by name.
  for (size_t i = 0, k = 0; i < a->entries().size() || k < b->entries().size();) {
    const bool left = i < a->entries().size(), right = k < b->entries().size();
    if (left && (!right || a->entries()[i].name < b->entries()[k].name)) {
      alone(a->entries()[i++], arguments.a);
    } else if (!left || b->entries()[k].name < a->entries()[i].name) {
      alone(b->entries()[k++], arguments.b);
    } else {
      Difference difference = compare(*a, i++, *b, k++);
      if (difference.what.empty()) {
        ++equal;
      } else {
        differences.push_back(std::move(difference));
      }
    }
  }
  return print_differences(std::move(differences), equal, arguments.top);
}

}  // namespace

void add_diff(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<DiffArguments>();
  CLI::App* command = app.add_subcommand(
      "diff", "Compare two checkpoints or safetensors files, tensor by tensor; exit code 1 if they differ");
  command
      ->add_option("a", arguments->a, "Checkpoint or run folder, safetensors file, or folder of such files")
      ->required()
      ->type_name("PATH");
  command->add_option("b", arguments->b, "Checkpoint, file or folder to compare with")
      ->required()
      ->type_name("PATH");
  command
      ->add_option("--top", arguments->top, "Number of differing tensors to show, largest difference first")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->callback([arguments, &exit_code] { exit_code = diff(*arguments) ? 0 : 1; });
}

}  // namespace te::convert
