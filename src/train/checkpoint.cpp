// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint.h"

#include "base/error.h"
#include "io/atomic_dir.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "models/hf_checkpoint.h"
#include "models/parameters.h"

namespace nibble {
namespace {

void write_states(const std::filesystem::path& path, const ParamStore& params) {
  std::vector<SafetensorsDeclaration> tensors;
  for (const ParamStore::Entry& e : params.entries())
    for (const char* state : {"m.", "v."}) tensors.push_back({state + e.info.name, DType::F32, e.info.shape});
  SafetensorsWriter file(path, std::move(tensors));
  for (const ParamStore::Entry& e : params.entries()) {
    file.write("m." + e.info.name, std::span<const float>(params.read(params.adam_m(e))));
    file.write("v." + e.info.name, std::span<const float>(params.read(params.adam_v(e))));
  }
  file.finish();
}

std::filesystem::path amax_file(const std::filesystem::path& directory) {
  return directory / "amaxes.safetensors";
}

void write_amaxes(const std::filesystem::path& path, const Learner& learner) {
  const AmaxState& amaxes = *learner.amaxes();
  const std::vector<LinearInfo> all = linears(learner.config().model);
  constexpr std::int64_t kOperands = AmaxState::kOperandsOfALinear;
  std::vector<SafetensorsDeclaration> tensors;
  for (const LinearInfo& l : all) {
    tensors.push_back({l.name + ".history", DType::F32, {kOperands, amaxes.history()}});
    tensors.push_back({l.name + ".used", DType::F32, {kOperands}});
  }
  SafetensorsWriter file(path, std::move(tensors));
  for (const LinearInfo& l : all) {
    file.write(l.name + ".history",
               std::span<const float>(on_host(learner.device(), amaxes.history_of(l.position))));
    file.write(l.name + ".used",
               std::span<const float>(on_host(learner.device(), amaxes.used_of(l.position))));
  }
  file.finish();
}

void read_amaxes(const std::filesystem::path& path, const Learner& learner) {
  const AmaxState& amaxes = *learner.amaxes();
  const Safetensors file = Safetensors::open_file(path);
  const auto read_into = [&](const std::string& name, View<float> to) {
    const SafetensorsEntry& t = file.at(name);
    check(t.dtype == DType::F32 && t.numel() == to.numel(),
          "{}: {} has {} amaxes, but this run needs {}; resume with the precision.amax_history that wrote it",
          file.path().string(), name, t.numel(), to.numel());
    to_device(learner.device(), to, t.copy_as<float>());
  };
  for (const LinearInfo& l : linears(learner.config().model)) {
    read_into(l.name + ".history", amaxes.history_of(l.position));
    read_into(l.name + ".used", amaxes.used_of(l.position));
  }
}

void read_state(const Safetensors& file, const std::string& name, const ParamStore& params, View<float> to) {
  const SafetensorsEntry& t = file.at(name);
  check(t.dtype == DType::F32 && t.numel() == to.numel(), "{}: {} does not fit the model",
        file.path().string(), name);
  params.write(to, t.copy_as<float>());
}

}  // namespace

std::string checkpoint_name(std::int64_t step) { return fmt::format("{}{:08}", kCheckpointPrefix, step); }

std::filesystem::path save_checkpoint(const std::filesystem::path& root, Learner& learner,
                                      const CheckpointState& state, const HfTokenIds& ids,
                                      const std::function<void(const std::filesystem::path&)>& add_tokenizer,
                                      int keep) {
  std::filesystem::create_directories(root);
  std::filesystem::path target = root / checkpoint_name(state.step);
  AtomicDir dir(target);
  std::filesystem::create_directory(dir.path() / "model");
  save_hf_model(dir.path() / "model", learner.config().model, learner.params(), ids);
  if (add_tokenizer) add_tokenizer(dir.path() / "model");
  write_states(dir.path() / "optimizer.safetensors", learner.params());
  if (learner.amaxes() != nullptr) write_amaxes(amax_file(dir.path()), learner);
  write_json(dir.path() / "state.json",
             {{"schema", 1}, {"step", state.step}, {"tokens", state.tokens}, {"identity", state.identity}});
  dir.publish();
  if (keep > 0) prune(root, kCheckpointPrefix, keep);
  return target;
}

CheckpointState read_checkpoint_state(const std::filesystem::path& directory) {
  const std::string where = (directory / "state.json").string();
  const Json json = read_json(where);
  return {.step = json_get<std::int64_t>(json, "step", where),
          .tokens = json_get<std::int64_t>(json, "tokens", where),
          .identity = json_get<std::map<std::string, std::string>>(json, "identity", where)};
}

CheckpointState load_checkpoint(const std::filesystem::path& directory, Learner& learner) {
  verify_dir(directory);
  CheckpointState state = read_checkpoint_state(directory);
  ParamStore& params = learner.params();
  load_hf_weights(Safetensors::open_model(directory / "model"), learner.config().model, params);
  const Safetensors states = Safetensors::open_file(directory / "optimizer.safetensors");
  for (const ParamStore::Entry& e : params.entries()) {
    read_state(states, "m." + e.info.name, params, params.adam_m(e));
    read_state(states, "v." + e.info.name, params, params.adam_v(e));
  }
  if (learner.amaxes() != nullptr && std::filesystem::exists(amax_file(directory)))
    read_amaxes(amax_file(directory), learner);
  learner.restored(state.step);
  return state;
}

void check_identity(const CheckpointState& state, const std::map<std::string, std::string>& identity,
                    const std::filesystem::path& directory) {
  std::string differences;
  for (const auto& [key, value] : identity) {
    const auto it = state.identity.find(key);
    const std::string had = it == state.identity.end() ? "nothing" : it->second;
    if (had != value)
      differences += fmt::format("\n  {}: the checkpoint has {}, this run {}", key, had, value);
  }
  const auto native = state.identity.find(kNativeIdentity);
  if (native != state.identity.end() && !identity.contains(kNativeIdentity))
    differences += fmt::format(
        "\n  {}: the checkpoint has {}, this run nothing: its device, precision.native_fp4 or "
        "precision.native_mxfp8 is another",
        kNativeIdentity, native->second);
  check_usage(differences.empty(),
              "{} belongs to another run:{}\nuse another run name, or the configuration that wrote it",
              directory.string(), differences);
}

}  // namespace nibble
