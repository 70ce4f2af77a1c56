// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace nibble {

/// CRC-32C (Castagnoli, reflected 0x82F63B78) and the masked form of TFRecord files:
/// rotate right by 15, add 0xA282EAD8. Source: [TFRECORD].
std::uint32_t crc32c(std::string_view bytes);
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace nibble
