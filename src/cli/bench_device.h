// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "backend/device.h"
#include "io/json.h"
#include "models/spec.h"
#include "ops/op.h"

namespace nibble::cuda {

/// What `nibble bench` says of a GPU's kernels, each beside its ceiling and by the GPU's clock: quantisers
/// beside a copy, the model's products beside the library's fastest, attention, convolution and scan. In
/// builds with the cuda backend alone (NIBBLE_CUDA in ops/op.h).
void print_kernels(Stream& stream, const DecoderSpec& model, std::int64_t tokens, bool quantizers,
                   bool products, Json& json);

/// Null in a build without the backend, where no stream of kind Cuda exists.
inline constexpr auto kPrintKernels =
    static_cast<void (*)(Stream&, const DecoderSpec&, std::int64_t, bool, bool, Json&)>(
        NIBBLE_CUDA(print_kernels));

}  // namespace nibble::cuda
