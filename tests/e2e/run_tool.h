// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>

/// Runs the binary as a user does, in a folder of its own, on a model so small that a step takes
/// milliseconds.
namespace nibble::e2e {

struct Outcome {
  int code = 0;        ///< exit code, or 128 + n when killed by signal n
  std::string output;  ///< stdout and stderr together
};

inline Outcome shell(const std::string& command) {
  std::FILE* pipe = popen(("{ " + command + "; } 2>&1").c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
  Outcome out;
  std::array<char, 4096> buffer;
  for (std::size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    out.output.append(buffer.data(), n);
  const int status = pclose(pipe);
  out.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return out;
}

/// A scratch folder with a configuration and a text, removed at the end.
class Workspace {
 public:
  Workspace() {
    std::string name = (std::filesystem::temp_directory_path() / "nibble-e2e-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    path_ = name;
    write("text.txt", text());
    write("run.toml", config());
  }
  ~Workspace() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, const std::string& contents) const {
    std::ofstream(path_ / name, std::ios::binary) << contents;
  }
  std::string read(const std::string& name) const {
    std::ifstream in(path_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  Outcome nibble(const std::string& arguments, const std::string& before = "") const {
    return shell("cd " + path_.string() + " && " + before + " " NIBBLE_BINARY " " + arguments);
  }

 private:
  /// Sixty thousand characters with some structure: enough for a few hundred windows of 32 bytes.
  static std::string text() {
    std::string out;
    unsigned state = 12345;
    const char* words[] = {"the ", "cat ", "sat ", "on ", "a ", "mat ", "and ", "saw ", "dogs ", "run.\n"};
    while (out.size() < 60000) {
      state = state * 1664525u + 1013904223u;
      out += words[(state >> 24) % 10];
    }
    return out;
  }
  static std::string config() {
    return R"([model]
pattern = "M-*-"
hidden = 32
ffn = 64
heads = 2
head_dim = 16
vocab_size = 384
mamba_heads = 16
mamba_head_dim = 4
mamba_groups = 2
mamba_state = 16
mamba_chunk = 16
max_sequence = 64
[data]
corpus = ""
files = ["text.txt"]
tokenizer = "byte"
[optimizer]
lr = 3e-3
[schedule]
warmup_steps = 4
[training]
name = "tiny"
steps = 20
batch = 4
micro_batch = 2
sequence = 32
threads = 2
[precision]
recipe = "nvfp4"
[checkpoint]
every = 5
keep = 2
[telemetry]
every = 10
[eval]
sequences = 4
)";
  }

  std::filesystem::path path_;
};

}  // namespace nibble::e2e
