// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "plan/hardware.h"
#include "plan/layout.h"
#include "plan/step_time.h"

/// The published throughput table [MBRIDGE], as data to fit and to judge the step-time model with.
namespace nibble {

struct ThroughputRow {
  std::string release, model, system, precision;  ///< system "gb200", precision "FP8" "MXFP8" "NVFP4" "BF16"
  std::string plan_model;                         ///< name the planner knows it by; empty: no description
  bool dense = false;                             ///< dense pretraining: what the bound is on
  ParallelLayout layout;
  double tokens_per_gpu_s = 0, tflops = 0;
};

/// Reads the table. A cell "37556 (36108)" under "FP8-CS (FP8-MX)" is two rows; the release 25.09 leaves the
/// precision out and means the same. Finetuning rows are left out, they are not pretraining.
std::vector<ThroughputRow> read_throughput_table(const std::filesystem::path& path);

/// Tokens/s/GPU that the model gives for the row on `hardware` (the row's own system).
double predict(const ThroughputRow& row, const Hardware& hardware, const StepConstants& constants = {});

/// Hardware table with `achieved` fitted: for each system and kind of product with rows, the share that makes
/// the sum of |log(predicted / published)| over the rows least. Kinds without rows keep the table's figure.
std::vector<Hardware> fit_achieved(const std::vector<ThroughputRow>& rows, std::vector<Hardware> hardware,
                                   const StepConstants& constants = {});

struct RowError {
  const ThroughputRow* row = nullptr;
  double predicted = 0, error = 0;  ///< predicted / published - 1
};
/// Of two precisions of the same release, model, system and number of GPUs.
struct RatioError {
  const ThroughputRow *fast = nullptr, *slow = nullptr;
  double published = 0, predicted = 0, error = 0;
};

struct TableErrors {
  std::vector<RowError> rows;
  std::vector<RatioError> ratios;
  double median_rows = 0, median_ratios = 0;  ///< of absolute errors
  double worst_rows = 0, worst_ratios = 0;
};
TableErrors table_errors(const std::vector<ThroughputRow>& rows, const std::vector<Hardware>& hardware,
                         const StepConstants& constants = {});

std::vector<ThroughputRow> dense_rows(const std::vector<ThroughputRow>& rows);
/// Dense rows of one half: rows in the order of the file, every second one to each half.
std::vector<ThroughputRow> dense_half(const std::vector<ThroughputRow>& rows, int which);
/// Releases up to and including 26.02.01, or the later ones: a harder split, the future from the past.
std::vector<ThroughputRow> dense_releases(const std::vector<ThroughputRow>& rows, bool late);

/// Dense rows of one model, or of the others: the hardest split, since the halves share configurations that
/// were measured again in a later release.
std::vector<ThroughputRow> dense_model(const std::vector<ThroughputRow>& rows, const std::string& plan_model,
                                       bool others);

double median_absolute(std::vector<double> values);

/// The whole report of `nibble plan --calibration`: shares fitted on one half, errors on the other, harder
/// splits, figures of other sources when a file of them lies beside the table (other_throughput.csv),
/// mixtures of experts.
std::string calibration_text(const std::filesystem::path& path);

}  // namespace nibble
