// Measures the effect of FP8 quantization on each operand: the run's own recipe and alternatives, worst first, and
// which ones are harmful. te-train inspect-fp8 shows the result. The input is the statistics that StepRunner::observe()
// collects; override_advice.h derives advice from them.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "config/config.h"
#include "train/fp8_statistics.h"

namespace te::train {

/// Error of one quantization. NaN where undefined, for example for a tensor of zeros.
struct QuantizationQuality {
  double sqnr_db = 0;    ///< signal to quantization noise; infinite without an error
  double saturated = 0;  ///< fraction of values beyond the largest number
  double flushed = 0;    ///< fraction of values that underflowed to zero
  bool operator==(const QuantizationQuality&) const = default;
};

/// A quantization that an FP8 run makes: an operand in one layout, for the GEMMs that read this layout.
struct InspectedQuantization {
  fp8::OperandInfo operand;
  std::string recipe;              ///< the run's own
  std::vector<std::string> gemms;  ///< out of fprop, dgrad, wgrad
  double amax = 0;
  QuantizationQuality own;
  /// By recipe. If another recipe quantizes two layouts where the run's recipe quantizes once, the worse of the two.
  std::map<std::string, QuantizationQuality> others;
};

/// Thresholds beyond which a quantization counts as harmful.
struct QuantizationLimits {
  double tolerance_db = 3.0;  ///< largest SQNR shortfall against a normal distribution in the same format
  double saturated = 1e-3;
  double flushed = 0.05;
};

/// SQNR of normally distributed values quantized with current scaling: 31.5 dB (E4M3), 25.5 dB (E5M2).
double normal_sqnr_db(DType format);
/// normal_sqnr_db() minus the SQNR; negative if the SQNR is higher, -infinity without an error.
double shortfall_db(const QuantizationQuality& quality, DType format);
bool harmful(const QuantizationQuality& quality, DType format, const QuantizationLimits& limits);

/// The quantizations of a run with this precision, in the order of the linears. With precision.fp8 off: those of a
/// hybrid run with `reference`, one of the measured recipes.
std::vector<InspectedQuantization> inspected_quantizations(const Fp8Statistics& statistics,
                                                           const config::PrecisionConfig& precision,
                                                           int64_t num_layers, config::Fp8Recipe reference);

/// Harmful ones first, then by shortfall.
void sort_worst_first(std::vector<InspectedQuantization>& inspected, const QuantizationLimits& limits);

/// A heading, and one line for each of the first `rows` entries; "!" marks harmful ones. `recipes`: columns of SQNR.
std::string quantization_table(const std::vector<InspectedQuantization>& inspected, size_t rows,
                               const std::vector<std::string>& recipes, const QuantizationLimits& limits);

nlohmann::json to_json(const InspectedQuantization& entry, const QuantizationLimits& limits);

}  // namespace te::train
