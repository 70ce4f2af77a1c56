// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace nibble {

/// Part of a file of documents. Fractions are of the file, 0 <= begin <= end <= 1; neighbours that share a
/// fraction neither overlap nor leave a gap, since a cut moves to the next boundary (a line) of the format.
struct DocumentRange {
  std::filesystem::path path;
  double begin_fraction = 0;
  double end_fraction = 1;
};

/// Documents of a file, one after the other.
class DocumentSource {
 public:
  virtual ~DocumentSource() = default;
  /// The next document, valid until the following call; nothing at the end. Throws Error naming file and
  /// place.
  virtual std::optional<std::string_view> next() = 0;
};

/// A file format that documents can come from.
struct SourceFormat {
  std::string_view name;
  std::string_view extension;  ///< with its dot
  std::unique_ptr<DocumentSource> (*open)(const DocumentRange& range);
};

/// text (.txt): the range is one document, cut at line starts.
/// jsonl (.jsonl): one JSON object a line with its text under "text"; the fractions are of the bytes, cut at
/// lines.
std::span<const SourceFormat> source_formats();

/// By the file's extension. Throws Error{Usage} for a missing file, an unknown extension (listing those
/// known) or fractions out of order.
std::unique_ptr<DocumentSource> open_source(const DocumentRange& range);

}  // namespace nibble
