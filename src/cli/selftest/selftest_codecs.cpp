// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "cli/selftest/selftest.h"
#include "numeric/bf16.h"
#include "numeric/e2m1.h"
#include "numeric/e4m3.h"
#include "numeric/e5m2.h"
#include "numeric/e8m0.h"
#include "numeric/philox.h"

namespace nibble::selftest {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// What the definition of a floating-point format says a magnitude code is worth, in double precision.
double value_by_definition(int code, int mantissa_bits, int bias) {
  const int exponent = code >> mantissa_bits;
  const double mantissa = std::ldexp(code & ((1 << mantissa_bits) - 1), -mantissa_bits);
  return exponent == 0 ? std::ldexp(mantissa, 1 - bias) : std::ldexp(1 + mantissa, exponent - bias);
}

/// A format with its sign bit, exponent bias and largest finite code, as its publication has them.
struct Definition {
  const char* name;
  int mantissa_bits, bias, largest, sign;
};

/// Every finite code of both signs, the rounding at, below and above each midpoint, and saturation.
/// `decode` and `encode` are the codec under test.
template <class Decode, class Encode>
int check_codec(const Definition& d, Decode decode, Encode encode, bool fault) {
  int checked = 0;
  const auto expect = [&](float x, int code, const char* what) {
    const int got = encode(x) ^ (fault && checked == 11 ? 1 : 0);
    ++checked;
    check(got == code, "{}: {} {:.9g} became code 0x{:02X}, expected 0x{:02X}", d.name, what, x, got, code);
  };
  for (const int sign : {0, d.sign}) {
    const float s = sign != 0 ? -1.0f : 1.0f;
    for (int code = 0; code <= d.largest; ++code) {
      const double value = value_by_definition(code, d.mantissa_bits, d.bias);
      check(decode(code | sign) == s * static_cast<float>(value),
            "{}: code 0x{:02X} decodes to {}, expected {}", d.name, code | sign, decode(code | sign),
            s * value);
      expect(s * static_cast<float>(value), code | sign, "the exact value");
      if (code == d.largest) break;
      const double next = value_by_definition(code + 1, d.mantissa_bits, d.bias);
      const auto middle = static_cast<float>((value + next) / 2);
      expect(s * middle, (code + code % 2) | sign, "the midpoint");
      expect(s * std::nextafter(middle, 0.0f), code | sign, "just below the midpoint");
      expect(s * std::nextafter(middle, kInf), (code + 1) | sign, "just above the midpoint");
    }
    for (const float x : {1e9f, std::numeric_limits<float>::max(), kInf})
      expect(s * x, d.largest | sign, "the value to saturate");
    expect(s * std::numeric_limits<float>::denorm_min(), sign, "the smallest subnormal");
  }
  return checked;
}

std::string summary(int codes, int checked) {
  return fmt::format("{} codes decode by definition, {} roundings right", codes, checked);
}

}  // namespace

std::string e2m1_codec(Stream&, bool fault) {
  const int n = check_codec(
      {"e2m1", 1, 1, 7, 8}, [](int c) { return E2M1{static_cast<std::uint8_t>(c)}.value(); },
      [](float x) { return E2M1::nearest(x).code; }, fault);
  check(E2M1::nearest(kNan).code == 7, "e2m1: NaN became code {}, the hardware gives 7",
        E2M1::nearest(kNan).code);
  int counted = 0;
  for (const float x : {0.1f, 0.6f, 1.3f, 2.25f, 3.01f, 5.9f}) {
    // The neighbours and the position between them come from a search, not from the bits.
    int low = 0;
    while (value_by_definition(low + 1, 1, 1) <= static_cast<double>(x)) ++low;
    const double bottom = value_by_definition(low, 1, 1), step = value_by_definition(low + 1, 1, 1) - bottom;
    const int expected = static_cast<int>(std::floor(256 * ((static_cast<double>(x) - bottom) / step)));
    int up = 0;
    for (int random = 0; random < 256; ++random)
      up += E2M1::stochastic(x, static_cast<std::uint8_t>(random)).code == low + 1 ? 1 : 0;
    check(up == expected, "e2m1: {} of 256 random bytes round {} up, expected {}", up, x, expected);
    counted += 256;
  }
  return summary(16, n + counted);
}

std::string e4m3_codec(Stream&, bool fault) {
  const int n = check_codec(
      {"e4m3", 3, 7, 0x7E, 0x80}, [](int c) { return E4M3{static_cast<std::uint8_t>(c)}.value(); },
      [](float x) { return E4M3::nearest(x).bits; }, fault);
  check(is_nan(E4M3{0x7F}.value()) && is_nan(E4M3{0xFF}.value()),
        "e4m3: codes 0x7F and 0xFF must decode to NaN");
  check(E4M3::nearest(kNan).bits == 0x7F, "e4m3: NaN became 0x{:02X}", E4M3::nearest(kNan).bits);
  return summary(256, n);
}

std::string e5m2_codec(Stream&, bool fault) {
  const int n = check_codec(
      {"e5m2", 2, 15, 0x7B, 0x80}, [](int c) { return E5M2{static_cast<std::uint8_t>(c)}.value(); },
      [](float x) { return E5M2::nearest(x).bits; }, fault);
  check(E5M2{0x7C}.value() == kInf && E5M2{0xFC}.value() == -kInf,
        "e5m2: codes 0x7C and 0xFC are infinities");
  for (const int sign : {0, 0x80})
    for (int code = 0x7D; code <= 0x7F; ++code)
      check(is_nan(E5M2{static_cast<std::uint8_t>(code | sign)}.value()), "e5m2: code 0x{:02X} must be NaN",
            code | sign);
  return summary(256, n);
}

std::string e8m0_codec(Stream&, bool fault) {
  int checked = 0;
  const auto expect = [&](float x, int code) {
    const int got = E8M0::round_up(x).bits ^ (fault && checked == 11 ? 1 : 0);
    ++checked;
    check(got == code, "e8m0: {:.9g} became 0x{:02X}, expected 0x{:02X}", x, got, code);
  };
  for (int code = 0; code <= 0xFE; ++code) {
    const auto value = static_cast<float>(std::ldexp(1.0, code - 127));
    const E8M0 e{static_cast<std::uint8_t>(code)};
    check(e.value() == value, "e8m0: code 0x{:02X} decodes to {}, expected {}", code, e.value(), value);
    check(static_cast<double>(e.inverse()) * static_cast<double>(value) == 1.0, "e8m0: 1 / 2^{} is {}",
          code - 127, e.inverse());
    expect(value, code);
    expect(std::nextafter(value, kInf), std::min(code + 1, 0xFE));
    if (code > 0) expect(std::nextafter(value, 0.0f), code);
  }
  expect(0.0f, 0);
  expect(kInf, 0xFE);
  expect(kNan, 0xFF);
  check(is_nan(E8M0{0xFF}.value()), "e8m0: code 0xFF must be NaN");
  return summary(256, checked);
}

std::string bf16_codec(Stream&, bool fault) {
  int checked = 0;
  const auto expect = [&](float x, std::uint32_t bits) {
    const std::uint32_t got = bf16::nearest(x).bits ^ (fault && checked == 11 ? 1u : 0u);
    ++checked;
    check(got == bits, "bf16: {:.9g} became 0x{:04X}, expected 0x{:04X}", x, got, bits);
  };
  for (const std::uint32_t sign : {0u, 0x8000u}) {
    const float s = sign != 0 ? -1.0f : 1.0f;
    for (std::uint32_t code = 0; code < 0x7F80; ++code) {
      const double value = value_by_definition(static_cast<int>(code), 7, 127);
      check(bf16{static_cast<std::uint16_t>(code | sign)}.value() == s * static_cast<float>(value),
            "bf16: code 0x{:04X} does not decode to {}", code | sign, s * value);
      expect(s * static_cast<float>(value), code | sign);
      const double next = value_by_definition(static_cast<int>(code) + 1, 7, 127);
      expect(s * static_cast<float>((value + next) / 2), (code + code % 2) | sign);
    }
    expect(s * kInf, 0x7F80 | sign);
  }
  check(is_nan(bf16::nearest(kNan).value()), "bf16: NaN became 0x{:04X}", bf16::nearest(kNan).bits);
  return summary(65536, checked);
}

std::string philox_answers(Stream&, bool fault) {
  struct Answer {
    std::uint64_t key;
    PhiloxBlock counter, expected;
  };
  // The known answers that the authors of the generator publish [PHILOX].
  const Answer answers[] = {
      {0, {{0, 0, 0, 0}}, {{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}}},
      {~std::uint64_t{0},
       {{0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}},
       {{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}}},
      {0x299F31D0A4093822,
       {{0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}},
       {{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}}},
  };
  for (const Answer& a : answers) {
    PhiloxBlock got = philox({a.key}, a.counter);
    if (fault) got.word[3] ^= 1;
    check(got == a.expected,
          "philox: key 0x{:016X} gives {:08X} {:08X} {:08X} {:08X}, not the published answer", a.key,
          got.word[0], got.word[1], got.word[2], got.word[3]);
  }
  return fmt::format("{} published answers", std::size(answers));
}

}  // namespace nibble::selftest
