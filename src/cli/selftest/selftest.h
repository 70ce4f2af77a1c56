// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backend/device.h"

namespace nibble {

/// What one self-test found.
struct SelfTestResult {
  std::string name;  ///< "e4m3 codec"
  bool passed = false;
  std::string detail;  ///< what was measured, or what was wrong
  std::string remedy;  ///< what to do; empty when passed
  double seconds = 0;
};

/// A self-test checks the arithmetic of this machine and this binary against an expectation that was made
/// another way: from the definition of a format, from integers, from published answers, from the reference.
/// It takes well under a second, so that a start-up check can afford it.
struct SelfTest {
  const char* name;
  const char* remedy;
  bool on_device;  ///< computes on the stream's device, so that on a GPU a failure is the card's
  /// Returns what was measured; throws Error with what was wrong. With `fault` the test falsifies one of the
  /// values it observed, and so must fail: the proof that it looks.
  std::string (*run)(Stream& stream, bool fault);
};

/// All of them, in the order in which they build on each other. Every backend has the same ones.
const std::vector<SelfTest>& self_tests();

/// Runs one. Errors of any kind are a failed result, never an exception.
SelfTestResult run_self_test(const SelfTest& test, Stream& stream, bool fault = false);

/// Runs all of them. `faulty` names the one to falsify; empty: none.
/// Throws Error{Usage} when there is no test of that name.
std::vector<SelfTestResult> run_self_tests(Stream& stream, std::string_view faulty = {});

/// The start-up check of a run that quantises: stochastic rounding, NaN detection and the products of NVFP4
/// operands and of codes on this machine, a tenth of a second together. Throws Error{Runtime} naming the
/// failed test and the remedy: a machine on which rounding is wrong trains to a wrong answer in silence.
void require_sound_quantisation(Stream& stream);

namespace selftest {

// selftest_codecs.cpp: numbers and random bits, no backend involved.
std::string e2m1_codec(Stream&, bool fault);
std::string e4m3_codec(Stream&, bool fault);
std::string e5m2_codec(Stream&, bool fault);
std::string e8m0_codec(Stream&, bool fault);
std::string bf16_codec(Stream&, bool fault);
std::string philox_answers(Stream&, bool fault);

// selftest_quantize.cpp: the quantisers of the stream's backend.
std::string nibble_order(Stream&, bool fault);
std::string quantiser_bytes(Stream&, bool fault);
std::string stochastic_means(Stream&, bool fault);
std::string hadamard_orthogonality(Stream&, bool fault);
std::string non_finite_detection(Stream&, bool fault);

// selftest_gemm.cpp: the products of the stream's backend.
std::string integer_gemm(Stream&, bool fault);
std::string nvfp4_gemm(Stream&, bool fault);
std::string coded_products(Stream&, bool fault);

}  // namespace selftest

}  // namespace nibble
