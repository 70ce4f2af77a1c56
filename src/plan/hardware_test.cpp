// SPDX-License-Identifier: Apache-2.0
#include "plan/hardware.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/storage.h"

namespace nibble {
namespace {

std::string refusal(const std::string& toml) {
  try {
    parse_hardware(toml, "mine.toml");
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::Usage);
    return e.what();
  }
  return "";
}

TEST(HardwareTable, EveryRowIsACardWithSourcesAndDenseBelowSparse) {
  EXPECT_EQ(hardware_table().size(), 8U);
  for (const Hardware& h : hardware_table()) {
    EXPECT_NO_THROW(check_hardware(h)) << h.name;
    EXPECT_FALSE(h.source.empty() || h.achieved_source.empty()) << h.name;
    for (const Rate r : kRates) {
      if (h.native(r)) {
        EXPECT_LT(h.rate(r).dense, h.rate(r).sparse) << h.name << " " << name(r);
      }
    }
  }
}

TEST(HardwareTable, BlackwellUltraRaisesFp4AloneAndItsSparseIsAThirdMore) {
  const Hardware b = find_hardware("gb200"), u = find_hardware("gb300");
  EXPECT_EQ(b.bf16.dense, u.bf16.dense);
  EXPECT_EQ(b.fp8.dense, u.fp8.dense);
  EXPECT_DOUBLE_EQ(u.fp4.dense, 1.5 * b.fp4.dense);
  EXPECT_NEAR(u.fp4.sparse / u.fp4.dense, 4.0 / 3, 1e-12);
}

TEST(HardwareTable, HopperEmulatesFp4AtTheSpeedOfBf16) {
  const Hardware h = find_hardware("h200");
  EXPECT_FALSE(h.native(Rate::Fp4));
  EXPECT_EQ(h.flops(Rate::Fp4), h.flops(Rate::Bf16));
}

TEST(HardwareFile, WhatIsWrittenReadsBackTheSame) {
  for (const Hardware& h : hardware_table()) {
    const Hardware again = parse_hardware(to_toml(h), "written.toml");
    EXPECT_EQ(to_toml(again), to_toml(h));
    EXPECT_EQ(again.name, h.name);
    EXPECT_EQ(again.flops(Rate::Fp4), h.flops(Rate::Fp4));
  }
}

TEST(HardwareFile, ARowIsAStartingPoint) {
  const Hardware h = parse_hardware("base = \"gb200\"\nname = \"mine\"\nusable_gb = 150\n", "mine.toml");
  EXPECT_EQ(h.usable_gb, 150);
  EXPECT_EQ(h.fp4.dense, find_hardware("gb200").fp4.dense);
}

TEST(HardwareFile, ASparsePeakGivenAsDenseIsRefusedWithTheDenseOne) {
  const std::string table = refusal("base = \"gb200\"\n[fp4]\ndense = 20000\nsparse = 0\n");
  EXPECT_NE(table.find("use 10000"), std::string::npos) << table;
  const std::string own = refusal(
      "name = \"x\"\nusable_gb = 10\nbandwidth_tb = 1\n[bf16]\ndense = 200\nsparse = 200\nachieved = 0.6\n");
  EXPECT_NE(own.find("sparse peak"), std::string::npos) << own;
}

TEST(HardwareFile, AnUnknownKeySuggestsTheNearestAndAMissingShareIsNamed) {
  EXPECT_NE(refusal("base = \"gb200\"\nbandwith_tb = 8\n").find("bandwidth_tb"), std::string::npos);
  EXPECT_NE(
      refusal("name = \"x\"\nusable_gb = 10\nbandwidth_tb = 1\n[bf16]\ndense = 200\n").find("bf16.achieved"),
      std::string::npos);
  EXPECT_NE(refusal("name = \n").find("mine.toml:1"), std::string::npos);
}

TEST(Collectives, CrossingDomainsCostsTheNetworkOnceADomain) {
  const Hardware h = find_hardware("h100");
  EXPECT_EQ(h.collective_seconds(1e9, 1, 1, 1), 0);
  const double inside = h.collective_seconds(1e9, 8, 1, 1), outside = h.collective_seconds(1e9, 16, 1, 1);
  EXPECT_NEAR(inside, 7.0 / 8 / 450, 1e-12);
  EXPECT_NEAR(outside, 15.0 / 16 * (1.0 / 450 + 1.0 / (8 * 50)), 1e-12);
  EXPECT_GT(h.collective_seconds(1e9, 16, 8, 1), outside) << "one member a domain has the network to itself";
}

TEST(Storage, BytesAnElementAreTheFormatsArithmetic) {
  EXPECT_EQ(storage(Format::Nvfp4).bytes_per_element(), 0.5625);
  EXPECT_EQ(storage(Format::Nvfp4, 2).bytes_per_element(), 1.125);
  EXPECT_EQ(storage(Format::Mxfp4).bytes_per_element(), 0.53125);
  EXPECT_EQ(storage(Format::Mxfp8E4M3).bytes_per_element(), 1.03125);
  EXPECT_EQ(storage(Format::Fp8E4M3).bytes_per_element(), 1);
  EXPECT_EQ(storage(Format::Bf16).bytes_per_element(), 2);
  EXPECT_EQ(storage_2d_shared().bytes_per_element(), 0.50390625);
  EXPECT_EQ(storage(Format::Nvfp4, 2).tensor_bytes, 8);
  for (const Storage& s : storage_table())
    EXPECT_NE(storage_text().find(s.what), std::string::npos) << s.what;
}

TEST(Storage, AgreesWithTheFormatDescriptors) {
  for (const Format f : {Format::Nvfp4, Format::Mxfp4, Format::Mxfp8E4M3, Format::Fp8E4M3, Format::Bf16})
    EXPECT_EQ(storage(f).bytes_per_element() * 8, bits_per_element(f));
}

}  // namespace
}  // namespace nibble
