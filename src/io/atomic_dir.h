// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

/// A directory that appears complete or not at all.
///
/// Files are written into NAME.tmp-<random>. publish() then syncs each, writes manifest.json (file, size,
/// XXH3-128 of each), then COMPLETE (the manifest's hash, and a hash of that line), syncs, renames the
/// directory to NAME and syncs the parent. A crash at any moment leaves the old NAME, or the new one, and
/// perhaps a .tmp- directory that clean_temporary removes. The destructor removes an unpublished directory.
///
/// Non-goals: several writers of one NAME, and protection from an attacker (XXH3 is not cryptographic).
class AtomicDir {
 public:
  explicit AtomicDir(const std::filesystem::path& target);
  ~AtomicDir();
  AtomicDir(const AtomicDir&) = delete;
  AtomicDir& operator=(const AtomicDir&) = delete;

  /// Where to write: any files and sub-directories, by any means.
  const std::filesystem::path& path() const { return temporary_; }

  /// Replaces `target` if it is there. Throws Error (a full disk, say) and leaves `target` as it was.
  void publish();

 private:
  std::filesystem::path target_, temporary_;
  bool published_ = false;
};

/// Re-reads every byte the manifest lists. Throws Error that names the file that is missing, shortened or
/// changed; manifest.json and COMPLETE themselves included. Files the manifest does not list are ignored.
void verify_dir(const std::filesystem::path& directory);

/// Directories PREFIX<number> under `root`, highest number first, whatever their state.
std::vector<std::filesystem::path> numbered_dirs(const std::filesystem::path& root, std::string_view prefix);

struct LatestComplete {
  std::optional<std::filesystem::path> directory;  ///< the highest number that verifies
  std::int64_t number = -1;                        ///< of that directory
  std::vector<std::string> rejected;               ///< one sentence for each newer one that does not
};
/// Steps back over incomplete or damaged directories; a missing root holds none.
LatestComplete find_latest_complete(const std::filesystem::path& root, std::string_view prefix);

/// Deletes all but the `keep_last` (>= 1) highest-numbered valid directories. A damaged one newer than those
/// is left for its owner to look at, older ones go. The newest valid one is never deleted.
void prune(const std::filesystem::path& root, std::string_view prefix, int keep_last);

/// Removes what crashed writers left: PREFIX*.tmp-*. Only for a root that this process alone writes to.
void clean_temporary(const std::filesystem::path& root, std::string_view prefix);

}  // namespace nibble
