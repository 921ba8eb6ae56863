// Two models on the same documents: the difference of each metric, paired by document, which is far more certain than
// the difference of two results.
#pragma once

#include <string>
#include <vector>

namespace te::generate {

/// B - A of a metric. With d_i a document's difference and w_i its weight (1; words or bytes of a text), the difference
/// is sum(d) / sum(w), its standard error sqrt(n / (n - 1) * sum((d_i - difference * w_i)^2)) / sum(w), and the
/// interval student_t_95(n - 1) of these to both sides. One document has no interval: low and high are NaN.
struct PairedDifference {
  std::string task,
      metric;  ///< metric: acc, acc_norm, log_probability (per document), log_probability_per_word or _byte
  int64_t documents = 0;
  double a = 0.0, b = 0.0, difference = 0.0, stderr_of_difference = 0.0, low = 0.0, high = 0.0;
  /// Of a metric that is 0 or 1 per document: documents where B alone and A alone is right, and McNemar's exact test,
  /// two-sided: the probability of a split at least as uneven were both equally likely.
  bool binary = false;
  int64_t only_b = 0, only_a = 0;
  double p_value = 1.0;
};

/// Compares two files of items: of te-generate evaluate --items, or lm-evaluation-harness' samples of one task, which
/// do not name it and have that of the other file. UserError when a file is malformed, or the two have not the same
/// documents.
std::vector<PairedDifference> compare_items(const std::string& file_a, const std::string& file_b);

/// How many standard errors an interval of 95 % has to either side: Student's t with `degrees` of freedom, at least 1
/// (Abramowitz and Stegun, 26.7.3 and 26.7.4).
double student_t_95(int64_t degrees);

/// The two-sided exact binomial probability of McNemar's test.
double mcnemar_exact(int64_t only_a, int64_t only_b);

}  // namespace te::generate
