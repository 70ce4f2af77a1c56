// SPDX-License-Identifier: Apache-2.0
#include "io/atomic_dir.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <system_error>

#include "base/error.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/json.h"

namespace nibble {
namespace fs = std::filesystem;
namespace {

constexpr const char* kManifest = "manifest.json";
constexpr const char* kComplete = "COMPLETE";
constexpr std::string_view kTemporary = ".tmp-";

/// "<hash of manifest.json> <hash of the first part>\n": the second hash tells damage to this file from
/// damage to the manifest.
std::string complete_line(const std::string& manifest_hash) {
  return fmt::format("{} {}\n", manifest_hash, hex64(xxh3_64(manifest_hash)));
}

/// Relative paths of all regular files, sorted so that the manifest does not depend on the file system.
std::vector<std::string> files_below(const fs::path& directory) {
  std::vector<std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) out.push_back(fs::relative(entry.path(), directory).string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

void sync_file(const fs::path& path) { FileWriter(path, FileWriter::Mode::Append).sync(); }

void sync_tree(const fs::path& directory) {
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) sync_file(entry.path());
    if (entry.is_directory()) sync_directory(entry.path());
  }
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  check(!error, "{}", io_failure("remove", path, error.value()));
}

void rename_path(const fs::path& from, const fs::path& to) {
  check(::rename(from.c_str(), to.c_str()) == 0, "{}", io_failure("rename to", to, errno));
}

/// Moves `temporary` to `target`. An existing target is exchanged in one step where the file system can; then
/// `temporary` holds the old one. Elsewhere there is a moment between two renames without a target, and
/// find_latest_complete steps back over it.
void install(const fs::path& temporary, const fs::path& target) {
  if (!fs::exists(target)) return rename_path(temporary, target);
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) return;
  check(errno == EINVAL || errno == ENOSYS, "{}", io_failure("replace", target, errno));
  const fs::path old = temporary.string() + "-old";
  rename_path(target, old);
  rename_path(temporary, target);
  rename_path(old, temporary);
}

std::optional<std::int64_t> number_after(const std::string& name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  const std::string_view digits = std::string_view(name).substr(prefix.size());
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < 0) return std::nullopt;
  return value;
}

}  // namespace

AtomicDir::AtomicDir(const fs::path& target) : target_(target) {
  if (target_.filename().empty()) target_ = target_.parent_path();
  make_directories(parent_of(target_));
  std::string name = fmt::format("{}{}XXXXXX", target_.string(), kTemporary);
  check(::mkdtemp(name.data()) != nullptr, "{}", io_failure("create directory", name, errno));
  temporary_ = name;
  fs::permissions(temporary_, fs::perms(0755));  // mkdtemp's 0700 would stay on the published directory
}

AtomicDir::~AtomicDir() {
  if (published_) return;
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

void AtomicDir::publish() {
  Json files = Json::array();
  for (const std::string& name : files_below(temporary_)) {
    check(name != kManifest && name != kComplete, "{}: the name {} is reserved", temporary_.string(), name);
    const MappedFile file(temporary_ / name);
    files.push_back(
        {{"file", name}, {"size", file.bytes().size()}, {"xxh3_128", xxh3_128_hex(file.bytes())}});
  }
  const std::string manifest = dump_json({{"version", 1}, {"files", files}});
  write_file(temporary_ / kManifest, manifest);
  sync_tree(temporary_);
  write_file(temporary_ / kComplete, complete_line(xxh3_128_hex(manifest)));
  sync_directory(temporary_);
  install(temporary_, target_);
  published_ = true;
  sync_directory(parent_of(target_));
  if (fs::exists(temporary_)) remove_tree(temporary_);
}

void verify_dir(const fs::path& directory) {
  check(fs::is_directory(directory), "{}: no such directory", directory.string());
  const auto complete_path = directory / kComplete, manifest_path = directory / kManifest;
  check(fs::exists(complete_path), "{}: the file COMPLETE is missing: writing it was interrupted",
        directory.string());
  const std::string line = read_file(complete_path);
  const std::string expected = line.substr(0, line.find(' '));
  check(line == complete_line(expected), "{}: the file is damaged", complete_path.string());
  const std::string manifest = read_file(manifest_path);
  check(xxh3_128_hex(manifest) == expected, "{}: the file is damaged (its hash is not the one in COMPLETE)",
        manifest_path.string());
  const Json json = parse_json(manifest, manifest_path.string());
  for (const Json& item : json_get<Json>(json, "files", manifest_path.string())) {
    const auto path = directory / json_get<std::string>(item, "file", manifest_path.string());
    check(fs::exists(path), "{}: the file is missing", path.string());
    const MappedFile file(path);
    const auto size = json_get<std::uint64_t>(item, "size", manifest_path.string());
    check(file.bytes().size() == size, "{}: the file has {} bytes, and had {} when it was written",
          path.string(), file.bytes().size(), size);
    check(xxh3_128_hex(file.bytes()) == json_get<std::string>(item, "xxh3_128", manifest_path.string()),
          "{}: the file is damaged (its bytes are not those that were written)", path.string());
  }
}

std::vector<fs::path> numbered_dirs(const fs::path& root, std::string_view prefix) {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  if (fs::is_directory(root)) {
    for (const auto& entry : fs::directory_iterator(root)) {
      const auto number = number_after(entry.path().filename().string(), prefix);
      if (number && entry.is_directory()) found.emplace_back(*number, entry.path());
    }
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<fs::path> out;
  for (auto& [number, path] : found) out.push_back(std::move(path));
  return out;
}

LatestComplete find_latest_complete(const fs::path& root, std::string_view prefix) {
  LatestComplete result;
  for (const fs::path& directory : numbered_dirs(root, prefix)) {
    try {
      verify_dir(directory);
    } catch (const Error& e) {
      result.rejected.emplace_back(e.what());
      continue;
    }
    result.directory = directory;
    result.number = *number_after(directory.filename().string(), prefix);
    break;
  }
  return result;
}

void prune(const fs::path& root, std::string_view prefix, int keep_last) {
  check(keep_last >= 1, "at least one directory must be kept, asked for {}", keep_last);
  int valid = 0;
  for (const fs::path& directory : numbered_dirs(root, prefix)) {
    if (valid >= keep_last) {
      remove_tree(directory);
      continue;
    }
    try {
      verify_dir(directory);
      ++valid;
    } catch (const Error&) {
      continue;  // kept: newer than the last valid ones, and somebody may want to see what happened
    }
  }
}

void clean_temporary(const fs::path& root, std::string_view prefix) {
  if (!fs::is_directory(root)) return;
  std::vector<fs::path> stale;
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.find(kTemporary) != std::string::npos) stale.push_back(entry.path());
  }
  for (const fs::path& path : stale) remove_tree(path);
}

}  // namespace nibble
