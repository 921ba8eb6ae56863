// Compares two models on the same documents: the difference of each metric, paired by document, which has a much
// smaller standard error than the difference of two independent results.
#pragma once

#include <string>
#include <vector>

namespace te::generate {

/// B - A of a metric. With d_i a document's difference and w_i its weight (1, or the number of words or bytes of a
/// text), the difference is sum(d) / sum(w), its standard error sqrt(n / (n - 1) * sum((d_i - difference * w_i)^2)) /
/// sum(w). The 95% interval is the difference +- student_t_95(n - 1) standard errors. With one document there is no
/// interval: low and high are NaN.
struct PairedDifference {
  std::string task,
      metric;  ///< metric: acc, acc_norm, log_probability (per document), log_probability_per_word or _byte
  int64_t documents = 0;
  double a = 0.0, b = 0.0, difference = 0.0, stderr_of_difference = 0.0, low = 0.0, high = 0.0;
  /// For a metric that is 0 or 1 per document: numbers of documents that only B and only A gets right, and the p value
  /// of McNemar's exact two-sided test.
  bool binary = false;
  int64_t only_b = 0, only_a = 0;
  double p_value = 1.0;
};

/// Compares two files that te-generate evaluate --items wrote, or files of lm-evaluation-harness' samples of one task,
/// which do not name their task and get that of the other file. UserError if a file is malformed or the files have
/// different documents.
std::vector<PairedDifference> compare_items(const std::string& file_a, const std::string& file_b);

/// Half width of a 95% interval in standard errors: the 0.975 quantile of Student's t with `degrees` >= 1 degrees of
/// freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4).
double student_t_95(int64_t degrees);

/// p value of McNemar's exact test: two-sided binomial test of the discordant documents with probability 1/2.
double mcnemar_exact(int64_t only_a, int64_t only_b);

}  // namespace te::generate
