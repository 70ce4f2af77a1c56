// SPDX-License-Identifier: Apache-2.0
#include "cli/quantize_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>

#include "backend/host_vector.h"
#include "base/error.h"
#include "base/nearest.h"
#include "io/safetensors.h"
#include "ops/quantize/quantize.h"
#include "ops/quantize/rotate.h"
#include "train/setup.h"

namespace nibble {
namespace {

struct FormatName {
  const char* name;
  Format format;
  Profile profile;
};
constexpr FormatName kFormatNames[] = {
    {"nvfp4.te", Format::Nvfp4, Profile::Te},       {"nvfp4.te213", Format::Nvfp4, Profile::Te213},
    {"nvfp4.exact", Format::Nvfp4, Profile::Exact}, {"nvfp4.torchao", Format::Nvfp4, Profile::TorchAo},
    {"nvfp4.ct", Format::Nvfp4, Profile::Ct},       {"nvfp4.modelopt", Format::Nvfp4, Profile::ModelOpt},
    {"mxfp4", Format::Mxfp4, Profile::Te},          {"mxfp8.e4m3", Format::Mxfp8E4M3, Profile::Te},
    {"mxfp8.e5m2", Format::Mxfp8E5M2, Profile::Te}, {"fp8.e4m3", Format::Fp8E4M3, Profile::Te},
    {"fp8.e5m2", Format::Fp8E5M2, Profile::Te},
};

bool is_fp8(Format f) { return f == Format::Fp8E4M3 || f == Format::Fp8E5M2; }

/// `word` as one of `known`; throws Error{Usage} naming the option and what it takes.
std::size_t choice(std::string_view option, const std::string& word, const std::vector<std::string>& known) {
  const auto it = std::find(known.begin(), known.end(), word);
  check_usage(it != known.end(), "{} takes {}, not \"{}\"{}", option, fmt::join(known, ", "), word,
              did_you_mean(word, known));
  return static_cast<std::size_t>(it - known.begin());
}

bool is_column(const QuantizeChoices& c) { return choice("--layout", c.layout, {"row", "column"}) == 1; }

/// A quantised matrix in memory that the device writes and the file is written from. Nobody multiplies it, so
/// it has no values beside its codes.
struct Result {
  QuantizedShape shape;
  HostVector<float> numbers;  ///< amax and scale, where ops find them
  HostVector<std::uint8_t> codes, scales;

  Result(Device& device, const QuantizedShape& s)
      : shape(s),
        numbers(2, device),
        codes(static_cast<std::size_t>(s.rows * s.code_cols), device),
        scales(static_cast<std::size_t>(s.rows * s.scale_cols), device) {}

  float* amax() { return &numbers[0]; }
  float* scale() { return &numbers[1]; }
  View<std::uint8_t> codes_view() { return View<std::uint8_t>(codes.data(), shape.rows, shape.code_cols); }
  View<std::uint8_t> scales_view() {
    if (shape.scale_cols == 0) return {};
    return View<std::uint8_t>(scales.data(), shape.rows, shape.scale_cols);
  }
};

Result quantize_matrix(Stream& stream, ConstRealView x, const QuantSpec& spec, bool transpose,
                       const RandomKey& key) {
  Result r(stream.device(), quantized_shape(spec, x.size(0), x.size(1), transpose));
  quantize(stream, {.x_RC = x,
                    .spec = spec,
                    .transpose = transpose,
                    .random = key,
                    .amax = r.amax(),
                    .scale = r.scale(),
                    .codes = r.codes_view(),
                    .scales = r.scales_view()});
  stream.device().synchronize();
  return r;
}

QuantStats measure(Stream& stream, ConstRealView x, const QuantSpec& spec, bool transpose, Result& r) {
  HostVector<bf16> rotated(stream.device());
  ConstRealView before = transpose ? x.transposed() : x;
  if (spec.rotation != 0) {
    rotated.resize(static_cast<std::size_t>(r.shape.rows * r.shape.cols));
    const View<bf16> out(rotated.data(), r.shape.rows, r.shape.cols);
    rotate(stream, rotation_of(spec, x, transpose, {}, out));
    before = View<const bf16>(out);
  }
  return measured_quant(stream, {.x_RC = before,
                                 .codes = r.codes_view(),
                                 .scales = r.scales_view(),
                                 .spec = spec,
                                 .amax = r.amax(),
                                 .scale = r.scale()});
}

/// The matrix of a tensor: its bytes in memory of their own, for a file may hold them at any address, and
/// where the device reads them.
struct Source {
  HostBuffer memory;
  ConstRealView x_RC;

  Source(Device& device, const SafetensorsEntry& e) : memory(device, e.bytes.size()) {
    std::memcpy(memory.as<void>(), e.bytes.data(), e.bytes.size());
    const std::int64_t cols = e.shape.back(), rows = e.numel() / cols;
    x_RC = RealView(memory.as<void>(), e.dtype, Layout::contiguous(rows, cols));
  }
};

[[noreturn]] void fail_non_finite(const std::string& name, ConstRealView x, const QuantSpec& spec) {
  for (std::int64_t r = 0; r < x.size(0); ++r) {
    for (std::int64_t c = 0; c < x.size(1); ++c) {
      const float v = x.get(r, c);
      if (is_finite(v)) continue;
      throw Error(
          ErrorKind::NonFinite,
          fmt::format("tensor \"{}\": element [{}, {}] (number {} of the tensor) is {}. Mend the "
                      "checkpoint, leave the tensor out with --tensor, or see what Transformer Engine "
                      "makes of it with --non-finite as-te",
                      name, r, c, r * x.size(1) + c,
                      is_nan(v) ? "NaN"
                      : v > 0   ? "+Inf"
                                : "-Inf"));
    }
  }
  throw Error(
      ErrorKind::NonFinite,
      fmt::format("tensor \"{}\": all elements are finite, but the {}overflows BF16. Leave out --rht, "
                  "or scale the tensor down first",
                  name, spec.rotation != 0 ? "rotation of 16 neighbours " : "amax "));
}

std::int64_t count_non_finite(ConstRealView x) {
  std::int64_t n = 0;
  for (std::int64_t r = 0; r < x.size(0); ++r)
    for (std::int64_t c = 0; c < x.size(1); ++c) n += is_finite(x.get(r, c)) ? 0 : 1;
  return n;
}

/// Why a tensor is left alone; empty when it is quantised. Throws for types that the user should convert.
std::string reason_to_skip(const SafetensorsEntry& e) {
  if (e.shape.size() < 2) return "fewer than two axes";
  if (e.numel() == 0) return "no elements";
  check_usage(
      e.dtype != DType::F16 && e.dtype != DType::F64,
      "tensor \"{}\" is {}; the quantisers read F32 and BF16. Convert the file first (F16 fits into F32 "
      "without loss; BF16 would round it), or leave the tensor out with --tensor",
      e.name, name_of(e.dtype));
  if (e.dtype != DType::F32 && e.dtype != DType::BF16)
    return fmt::format("{} is not F32 or BF16", name_of(e.dtype));
  return "";
}

bool matches(const std::string& name, const std::vector<std::string>& patterns) {
  if (patterns.empty()) return true;
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& p) { return ::fnmatch(p.c_str(), name.c_str(), 0) == 0; });
}

void check_patterns(const std::vector<std::string>& patterns,
                    const std::vector<const SafetensorsEntry*>& all) {
  for (const std::string& p : patterns) {
    const bool used =
        std::any_of(all.begin(), all.end(), [&](const auto* e) { return matches(e->name, {p}); });
    std::vector<std::string> names;
    for (const auto* e : all) names.push_back(e->name);
    check_usage(used, "--tensor \"{}\" matches none of the {} tensors, for example \"{}\"{}", p, names.size(),
                names.empty() ? "" : names.front(), did_you_mean(p, names));
  }
}

std::string tile_name(const QuantSpec& spec) {
  if (spec.tile == Tile::Square) return "16x16";
  return is_fp8(spec.format) ? "tensor" : fmt::format("1x{}", info(spec.format).block);
}

std::map<std::string, std::string> metadata(const QuantizeFile& q, const QuantSpec& spec,
                                            const std::vector<const SafetensorsEntry*>& chosen) {
  Json shapes = Json::object();
  for (const auto* e : chosen) shapes[e->name] = e->shape;
  std::map<std::string, std::string> m = {
      {"producer", fmt::format("nibble {}", nibble_version())},
      {"source", q.in.filename().string()},
      {"format", q.choices.format},
      {"tile", tile_name(spec)},
      {"layout", q.choices.layout},
      {"rht", spec.rotation == 0 ? "none" : fmt::format("{}", spec.rotation)},
      {"rounding", q.choices.round},
      {"non_finite", q.choices.non_finite},
      {"shapes", shapes.dump()},
  };
  if (spec.rotation != 0) m["rht_sign_mask"] = fmt::format("0x{:04X}", spec.sign_mask);
  if (spec.rounding != Rounding::NearestEven) m["seed"] = fmt::format("{}", q.seed);
  if (info(spec.format).element_bits == 4) m["nibbles"] = "low nibble = even column";
  return m;
}

void declare(std::vector<SafetensorsDeclaration>& out, const std::string& name, const QuantSpec& spec,
             const QuantizedShape& s) {
  const bool e5m2 = spec.format == Format::Fp8E5M2 || spec.format == Format::Mxfp8E5M2;
  const DType codes = info(spec.format).element_bits == 4 ? DType::U8 : e5m2 ? DType::F8E5M2 : DType::F8E4M3;
  out.push_back({name + ".codes", codes, {s.rows, s.code_cols}});
  if (s.scale_cols != 0)
    out.push_back({name + ".scales",
                   spec.format == Format::Nvfp4 ? DType::F8E4M3 : DType::F8E8M0,
                   {s.rows, s.scale_cols}});
  out.push_back({name + ".amax", DType::F32, {1}});
  if (is_fp8(spec.format)) out.push_back({name + ".scale_inv", DType::F32, {1}});
}

/// Writes beside `target` and takes its place at the end; goes away when something throws before that.
class OutputFile {
 public:
  OutputFile(const std::filesystem::path& target, std::vector<SafetensorsDeclaration> tensors,
             std::map<std::string, std::string> metadata)
      : target_(target), temporary_(fmt::format("{}.tmp-{}", target.string(), ::getpid())) {
    writer_.emplace(temporary_, std::move(tensors), std::move(metadata));
  }
  ~OutputFile() {
    std::error_code ignored;
    if (!published_) std::filesystem::remove(temporary_, ignored);
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const std::string& name, const QuantSpec& spec, const Result& r) {
    writer_->write(name + ".codes", std::span<const std::uint8_t>(r.codes));
    if (r.shape.scale_cols != 0) writer_->write(name + ".scales", std::span<const std::uint8_t>(r.scales));
    writer_->write(name + ".amax", std::span<const float>(&r.numbers[0], 1));
    if (is_fp8(spec.format)) writer_->write(name + ".scale_inv", std::span<const float>(&r.numbers[1], 1));
  }
  void publish() {
    writer_->finish();
    std::error_code error;
    std::filesystem::rename(temporary_, target_, error);
    check(!error, "cannot rename {} to {}: {}", temporary_.string(), target_.string(), error.message());
    published_ = true;
    sync_directory(target_.has_parent_path() ? target_.parent_path() : ".");
  }

 private:
  std::filesystem::path target_, temporary_;
  std::optional<SafetensorsWriter> writer_;
  bool published_ = false;
};

void check_output_is_not_input(const QuantizeFile& q) {
  std::error_code ignored;
  const auto same = [&](const std::filesystem::path& p) {
    return std::filesystem::equivalent(p, q.out, ignored);
  };
  bool clash = same(q.in);
  if (std::filesystem::is_directory(q.in, ignored))
    for (const auto& f : std::filesystem::directory_iterator(q.in)) clash = clash || same(f.path());
  check_usage(!clash, "--out {} is the input itself; nothing was changed. Name another file", q.out.string());
}

std::vector<const SafetensorsEntry*> sorted_by_name(const Safetensors& file) {
  std::vector<const SafetensorsEntry*> all;
  for (const SafetensorsEntry& e : file.entries()) all.push_back(&e);
  std::sort(all.begin(), all.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
  return all;
}

QuantizedTensor quantize_entry(Stream& stream, const QuantizeFile& q, const QuantSpec& spec,
                               const SafetensorsEntry& e, const RandomKey& key, OutputFile* out) {
  QuantizedTensor t{.name = e.name, .dtype = e.dtype, .shape = e.shape, .skipped = reason_to_skip(e)};
  if (!t.skipped.empty()) return t;
  const Source source(stream.device(), e);
  const bool transpose = is_column(q.choices);
  Result r = quantize_matrix(stream, source.x_RC, spec, transpose, key);
  if (spec.non_finite == NonFinite::AsTe)
    t.non_finite = count_non_finite(source.x_RC);
  else if (!is_finite(*r.amax()))
    fail_non_finite(e.name, source.x_RC, spec);
  t.rows = r.shape.rows;
  t.cols = r.shape.cols;
  t.amax = *r.amax();
  t.stats = measure(stream, source.x_RC, spec, transpose, r);
  if (out != nullptr) out->write(e.name, spec, r);
  return t;
}

}  // namespace

std::vector<std::string> quantize_format_names() {
  std::vector<std::string> names;
  for (const FormatName& f : kFormatNames) names.emplace_back(f.name);
  return names;
}

QuantSpec quantize_spec(const QuantizeChoices& c) {
  const FormatName& f = kFormatNames[choice("--format", c.format, quantize_format_names())];
  QuantSpec spec{.format = f.format, .profile = f.profile};
  if (!c.tile.empty()) {
    check_usage(f.format == Format::Nvfp4, "--tile belongs to the nvfp4 formats; {} has {}", c.format,
                is_fp8(f.format) ? "one scale a tensor" : "blocks of 1x32");
    spec.tile = choice("--tile", c.tile, {"1x16", "16x16"}) == 1 ? Tile::Square : Tile::Row;
  }
  constexpr Rounding kRoundings[] = {Rounding::NearestEven, Rounding::Stochastic, Rounding::StochasticExact};
  spec.rounding = kRoundings[choice("--round", c.round, {"rne", "sr", "sr-exact"})];
  check_usage(spec.rounding == Rounding::NearestEven || info(f.format).element_bits == 4,
              "--round {}: stochastic rounding exists for the 4-bit formats; {} rounds to nearest even (rne)",
              c.round, c.format);
  spec.rotation = c.rht ? 16 : 0;
  spec.non_finite =
      choice("--non-finite", c.non_finite, {"detect", "as-te"}) == 1 ? NonFinite::AsTe : NonFinite::Detect;
  is_column(c);
  return spec;
}

QuantizeReport quantize_file(Stream& stream, const QuantizeFile& q) {
  const QuantSpec spec = quantize_spec(q.choices);
  const Safetensors file =
      std::filesystem::is_directory(q.in) ? Safetensors::open_model(q.in) : Safetensors::open_file(q.in);
  const std::vector<const SafetensorsEntry*> all = sorted_by_name(file);
  check_patterns(q.tensors, all);
  std::unique_ptr<OutputFile> out;
  if (!q.out.empty()) {
    check_output_is_not_input(q);
    std::vector<SafetensorsDeclaration> declarations;
    std::vector<const SafetensorsEntry*> chosen;
    for (const SafetensorsEntry* e : all) {
      if (!matches(e->name, q.tensors) || !reason_to_skip(*e).empty()) continue;
      const std::int64_t cols = e->shape.back();
      declare(declarations, e->name, spec,
              quantized_shape(spec, e->numel() / cols, cols, is_column(q.choices)));
      chosen.push_back(e);
    }
    out = std::make_unique<OutputFile>(q.out, std::move(declarations), metadata(q, spec, chosen));
  }
  QuantizeReport report{.request = q, .tensors = {}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!matches(all[i]->name, q.tensors)) continue;
    const RandomKey key{.seed = q.seed,
                        .layer = static_cast<std::uint32_t>(i),
                        .role = static_cast<std::uint8_t>(is_column(q.choices) ? 1 : 0)};
    report.tensors.push_back(quantize_entry(stream, q, spec, *all[i], key, out.get()));
  }
  if (out != nullptr) out->publish();
  return report;
}

}  // namespace nibble
