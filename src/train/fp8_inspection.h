// What casting to FP8 does to each operand of a model, seen cast by cast: the run's own recipe beside others that might
// have been, worst first, and which of them do harm. What te-train inspect-fp8 shows is made here, of statistics that
// StepRunner::observe() has collected; override_advice.h says what would help.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "config/config.h"
#include "train/fp8_statistics.h"

namespace te::train {

/// What one cast makes of its values. NaN where there is nothing to tell, as of a tensor of zeros.
struct CastQuality {
  double sqnr_db = 0;    ///< signal over error; infinite without an error
  double saturated = 0;  ///< share of values beyond the largest number
  double flushed = 0;    ///< share of values that became zero
  bool operator==(const CastQuality&) const = default;
};

/// A cast that a run in FP8 makes: an operand in a form, for the GEMMs that read this form.
struct InspectedCast {
  fp8::OperandInfo operand;
  std::string recipe;              ///< the run's own
  std::vector<std::string> gemms;  ///< of fprop, dgrad, wgrad
  double amax = 0;
  CastQuality own;
  /// By recipe. Where the run casts once what another recipe casts in two forms: the worse of these.
  std::map<std::string, CastQuality> others;
};

/// When a cast does harm.
struct CastLimits {
  double tolerance_db =
      3.0;  ///< SQNR below that of a normal distribution in the same format by more than this
  double saturated = 1e-3;
  double flushed = 0.05;
};

/// SQNR of normally distributed values in a format, cast with a scale of their own: 31.5 dB (E4M3), 25.5 dB (E5M2).
double normal_sqnr_db(DType format);
/// How far the SQNR is below normal_sqnr_db(); negative above it, -infinity where there is no error to tell of.
double shortfall_db(const CastQuality& quality, DType format);
bool harmful(const CastQuality& quality, DType format, const CastLimits& limits);

/// The casts of a run with this precision, in the order of the linears. With precision.fp8 off: those of a run in
/// `reference` (one of the recipes that were tried), hybrid.
std::vector<InspectedCast> inspected_casts(const Fp8Statistics& statistics,
                                           const config::PrecisionConfig& precision, int64_t num_layers,
                                           config::Fp8Recipe reference);

/// Harmful ones first, then by shortfall.
void sort_worst_first(std::vector<InspectedCast>& casts, const CastLimits& limits);

/// "layers.3.mlp.linear_fc2" -> "linear_fc2".
std::string linear_kind(const std::string& name);

/// A line for each of the first `rows` casts, with a heading; "!" marks harmful ones. `recipes`: columns of SQNR.
std::string cast_table(const std::vector<InspectedCast>& casts, size_t rows,
                       const std::vector<std::string>& recipes, const CastLimits& limits);

nlohmann::json to_json(const InspectedCast& cast, const CastLimits& limits);

}  // namespace te::train
