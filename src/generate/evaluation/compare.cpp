#include "generate/evaluation/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>

#include "core/error.h"
#include "text/readers/json_records.h"

namespace te::generate {
namespace {

struct Value {
  double sum = 0.0, weight = 1.0;
};
/// Values by document.
using Values = std::map<int64_t, Value>;
/// Values by task and metric.
using Items = std::map<std::pair<std::string, std::string>, Values>;

/// Adds a document's value of a metric under te-train's name of it; ignores other metrics.
void add_metric(Items& items, const std::string& task, int64_t document, const std::string& name,
                const nlohmann::json& value, const std::string& place) {
  static const std::map<std::string, std::string> names = {{"acc", "acc"},
                                                           {"acc_norm", "acc_norm"},
                                                           {"perplexity", "log_probability"},
                                                           {"word_perplexity", "log_probability_per_word"},
                                                           {"byte_perplexity", "log_probability_per_byte"}};
  const auto known = names.find(name);
  if (known == names.end()) return;
  Value read;
  if (value.is_number()) {
    read.sum = value.get<double>();
  } else if (value.is_boolean()) {
    read.sum = value.get<bool>() ? 1.0 : 0.0;
  } else if (value.is_array() && value.size() == 2 && value[0].is_number() && value[1].is_number()) {
    read = {value[0].get<double>(), value[1].get<double>()};
  } else {
    user_error("{}: `{}` must be a number or [sum, weight]", place, name);
  }
  const bool binary = known->second.starts_with("acc");
  if (!std::isfinite(read.sum) || !(read.weight > 0.0) || (binary && read.sum != 0.0 && read.sum != 1.0))
    user_error("{}: `{}` has an invalid value", place, name);
  if (!items[{task, known->second}].emplace(document, read).second)
    user_error("{}: document {} occurs twice", place, document);
}

Items read_items(const std::string& file) {
  Items items;
  text::read_json_records(file, text::JsonLayout::kList, [&](const text::JsonRecord& record) {
    const nlohmann::json& item = record.object;
    if (!item.contains("doc_id") || !item["doc_id"].is_number_integer())
      user_error("{}: `doc_id` must be an integer; give a file that te-generate evaluate --items wrote",
                 record.place);
    const bool named = item.contains("task") && item["task"].is_string();
    const std::string task = named ? item["task"].get<std::string>() : "";
    for (const auto& [name, value] : item.items())
      add_metric(items, task, item["doc_id"].get<int64_t>(), name, value, record.place);
  });
  if (items.empty()) user_error("{}: has no item with a metric", file);
  return items;
}

/// A file of lm-evaluation-harness does not name its task: it gets the task of the other file if that has only one.
Items named_like(Items items, const Items& other) {
  const auto only_task = [](const Items& all) {
    const std::string& first = all.begin()->first.first;
    return all.rbegin()->first.first == first ? first : std::string();
  };
  const std::string task = only_task(other);
  if (!only_task(items).empty() || !items.begin()->first.first.empty() || task.empty()) return items;
  Items named;
  for (auto& [key, values] : items)
    named[{key.first.empty() ? task : key.first, key.second}] = std::move(values);
  return named;
}

PairedDifference compare(const std::string& task, const std::string& metric, const Values& a,
                         const Values& b) {
  PairedDifference result{.task = task, .metric = metric, .documents = static_cast<int64_t>(a.size())};
  result.binary = metric.starts_with("acc");
  double sum_a = 0.0, sum_b = 0.0, weight = 0.0;
  for (const auto& [document, value] : a) {
    const Value& other = b.at(document);
    sum_a += value.sum, sum_b += other.sum, weight += value.weight;
    if (result.binary && other.sum != value.sum) ++(other.sum > value.sum ? result.only_b : result.only_a);
  }
  result.a = sum_a / weight, result.b = sum_b / weight, result.difference = (sum_b - sum_a) / weight;
  double squares = 0.0;
  for (const auto& [document, value] : a) {
    const double rest = b.at(document).sum - value.sum - result.difference * value.weight;
    squares += rest * rest;
  }
  const auto count = static_cast<double>(a.size());
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();  // one document has no standard error
  result.stderr_of_difference = a.size() > 1 ? std::sqrt(count / (count - 1.0) * squares) / weight : kNone;
  const double half = a.size() > 1 ? student_t_95(result.documents - 1) * result.stderr_of_difference : kNone;
  result.low = result.difference - half, result.high = result.difference + half;
  if (result.binary) result.p_value = mcnemar_exact(result.only_a, result.only_b);
  return result;
}

/// P(|T| < t) of Student's t, as a finite sum for integer degrees of freedom.
double within_student_t(double t, int64_t degrees) {
  const double angle = std::atan(t / std::sqrt(static_cast<double>(degrees)));
  const double square = std::cos(angle) * std::cos(angle);
  const bool odd = degrees % 2 == 1;
  double term = odd ? std::cos(angle) : 1.0, sum = 0.0;
  for (int64_t i = odd ? 3 : 2; i <= degrees; i += 2) {
    sum += term;
    term *= square * static_cast<double>(i - 1) / static_cast<double>(i);
  }
  return odd ? 2.0 / std::numbers::pi * (angle + std::sin(angle) * sum) : std::sin(angle) * sum;
}

}  // namespace

double student_t_95(int64_t degrees) {
  double low = 1.9, high = 12.8;  // bounds for any degrees of freedom: 1.96 (infinitely many) to 12.71 (one)
  while (high - low > 1e-12) {
    const double middle = (low + high) / 2.0;
    (within_student_t(middle, degrees) < 0.95 ? low : high) = middle;
  }
  return (low + high) / 2.0;
}

double mcnemar_exact(int64_t only_a, int64_t only_b) {
  const int64_t count = only_a + only_b, fewer = std::min(only_a, only_b);
  double tail = 0.0;
  for (int64_t i = 0; i <= fewer; ++i) {
    const auto n = static_cast<double>(count), k = static_cast<double>(i);
    tail +=
        std::exp(std::lgamma(n + 1.0) - std::lgamma(k + 1.0) - std::lgamma(n - k + 1.0) - n * std::log(2.0));
  }
  return std::min(1.0, 2.0 * tail);
}

std::vector<PairedDifference> compare_items(const std::string& file_a, const std::string& file_b) {
  const Items read_a = read_items(file_a), read_b = read_items(file_b);
  const Items a = named_like(read_a, read_b), b = named_like(read_b, read_a);
  std::vector<PairedDifference> result;
  for (const auto& [key, values] : a) {
    const auto other = b.find(key);
    const auto& [task, metric] = key;
    if (other == b.end()) user_error("{}: has no {} of task {}, but {} has", file_b, metric, task, file_a);
    if (values.size() != other->second.size())
      user_error("{}: has {} documents of task {}, {} has {}; evaluate both on the same documents", file_b,
                 other->second.size(), task, file_a, values.size());
    for (const auto& [document, value] : values) {
      const auto same = other->second.find(document);
      if (same == other->second.end() || same->second.weight != value.weight)
        user_error("{}: document {} of task {} differs from that of {}; evaluate both on the same documents",
                   file_b, document, task, file_a);
    }
    result.push_back(compare(task, metric, values, other->second));
  }
  for (const auto& [key, values] : b)
    if (!a.contains(key))
      user_error("{}: has no {} of task {}, but {} has", file_a, key.second, key.first, file_b);
  return result;
}

}  // namespace te::generate
