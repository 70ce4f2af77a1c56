// SPDX-License-Identifier: Apache-2.0
#include "data/prepare.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/nearest.h"
#include "io/atomic_dir.h"
#include "io/hash.h"
#include "io/json.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

/// Names what is on disk; a new number when the token files or the tokenisation change.
constexpr int kFormat = 1;
constexpr const char* kProvenance = "provenance.json";

struct Split {
  const char* name;
  const std::vector<DocumentRange>& parts;
};

std::vector<Split> splits_of(const Corpus& corpus) {
  return {{"train", corpus.train}, {"validation", corpus.validation}, {"evaluation", corpus.evaluation}};
}

/// Documents of several files in a row.
class Documents {
 public:
  explicit Documents(const std::vector<DocumentRange>& parts) : parts_(parts) {}
  std::optional<std::string_view> next() {
    while (true) {
      if (source_) {
        if (const auto document = source_->next()) return document;
      }
      if (part_ == parts_.size()) return std::nullopt;
      source_ = open_source(parts_[part_++]);
    }
  }

 private:
  const std::vector<DocumentRange>& parts_;
  std::size_t part_ = 0;
  std::unique_ptr<DocumentSource> source_;
};

Json describe_tokenizer(const TokenizerChoice& choice) {
  if (choice.kind == "bytes") return {{"kind", "bytes"}};
  if (choice.kind == "bpe") {
    return {{"kind", "bpe"},
            {"vocab_size", choice.training.vocab_size},
            {"pre_tokenizer", choice.training.pre_tokenizer},
            {"special_tokens", choice.training.special_tokens},
            {"min_frequency", choice.training.min_frequency}};
  }
  check_usage(choice.kind == "load", "unknown kind of tokenizer \"{}\"; known are bytes, bpe, load{}",
              choice.kind, did_you_mean(choice.kind, {"bytes", "bpe", "load"}));
  check_usage(fs::exists(choice.path),
              "tokenizer {} does not exist. Give a tokenizer.json or a folder that holds one",
              choice.path.string());
  const auto file = fs::is_directory(choice.path) ? choice.path / "tokenizer.json" : choice.path;
  const auto config = file.parent_path() / "tokenizer_config.json";
  // The configuration names the end token, so it belongs to the key.
  return {{"kind", "load"},
          {"xxh3_128", xxh3_128_hex_of_file(file)},
          {"config_xxh3_128", fs::exists(config) ? xxh3_128_hex_of_file(config) : ""}};
}

/// Everything the token files depend on. File names count, their folders do not: a moved corpus is the same
/// one.
Json describe(const PrepareConfig& config) {
  Json splits = Json::object();
  for (const Split& split : splits_of(config.corpus)) {
    splits[split.name] = Json::array();
    for (const DocumentRange& part : split.parts) {
      open_source(part);  // checks the range, with an error that names the file
      splits[split.name].push_back({{"file", part.path.filename().string()},
                                    {"xxh3_128", xxh3_128_hex_of_file(part.path)},
                                    {"begin_fraction", part.begin_fraction},
                                    {"end_fraction", part.end_fraction}});
    }
  }
  return {{"format", kFormat},
          {"corpus", config.corpus.name},
          {"splits", splits},
          {"tokenizer", describe_tokenizer(config.tokenizer)},
          {"tokens_per_shard", config.tokens_per_shard}};
}

Tokenizer make_tokenizer(const PrepareConfig& config) {
  const TokenizerChoice& choice = config.tokenizer;
  if (choice.kind == "bytes") return Tokenizer::bytes();
  if (choice.kind == "load") return Tokenizer::load(choice.path);
  Documents documents(config.corpus.train);
  return Tokenizer::train([&] { return documents.next(); }, choice.training);
}

Json write_split(const Split& split, const Tokenizer& tokenizer, TokenId eos, std::int64_t tokens_per_shard,
                 const fs::path& directory) {
  SplitSize size;
  Json shards = Json::array();
  std::unique_ptr<TokenShardWriter> writer;
  Documents documents(split.parts);
  while (const auto document = documents.next()) {
    if (!writer) {
      const std::string name = fmt::format("{}-{:05}.bin", split.name, shards.size());
      writer = std::make_unique<TokenShardWriter>(directory / name, tokenizer.vocab_size(),
                                                  tokenizer.fingerprint());
      shards.push_back(name);
    }
    auto ids = tokenizer.encode(*document);
    ids.push_back(eos);
    writer->add_document(ids);
    ++size.documents;
    size.bytes += static_cast<std::int64_t>(document->size());
    size.tokens += static_cast<std::int64_t>(ids.size());
    if (writer->tokens() >= tokens_per_shard) {
      writer->finish();
      writer.reset();
    }
  }
  if (writer) writer->finish();
  return {{"shards", shards}, {"documents", size.documents}, {"tokens", size.tokens}, {"bytes", size.bytes}};
}

void build(const PrepareConfig& config, const Json& description, const fs::path& target) {
  AtomicDir directory(target);
  const Tokenizer tokenizer = make_tokenizer(config);
  const auto eos = tokenizer.eos_id();
  check(eos.has_value(),
        "tokenizer {}: no token ends a document. Name one as eos_token in a tokenizer_config.json beside it",
        tokenizer.name());
  tokenizer.save(directory.path());
  Json provenance = description;
  for (const Split& split : splits_of(config.corpus)) {
    provenance["sizes"][split.name] =
        write_split(split, tokenizer, *eos, config.tokens_per_shard, directory.path());
  }
  write_json(directory.path() / kProvenance, provenance);
  directory.publish();
}

struct OpenedSplit {
  std::vector<fs::path> shards;
  SplitSize size;
};

OpenedSplit open_split(const Json& provenance, const char* name, const fs::path& directory) {
  const std::string where = (directory / kProvenance).string();
  const Json json = json_get<Json>(json_get<Json>(provenance, "sizes", where), name, where);
  OpenedSplit out;
  for (const auto& file : json_get<std::vector<std::string>>(json, "shards", where))
    out.shards.push_back(directory / file);
  out.size = {json_get<std::int64_t>(json, "documents", where), json_get<std::int64_t>(json, "tokens", where),
              json_get<std::int64_t>(json, "bytes", where)};
  return out;
}

bool is_intact(const fs::path& directory) {
  if (!fs::exists(directory)) return false;
  try {
    verify_dir(directory);
  } catch (const Error&) {
    return false;  // a cache: what it held can be made again
  }
  return true;
}

/// What a verified folder holds.
PreparedData open_checked(const fs::path& directory) {
  const Json provenance = read_json(directory / kProvenance);
  const OpenedSplit train = open_split(provenance, "train", directory);
  const OpenedSplit validation = open_split(provenance, "validation", directory);
  OpenedSplit evaluation = open_split(provenance, "evaluation", directory);
  check(!train.shards.empty() && !validation.shards.empty(), "{}: a split has no text", directory.string());
  PreparedData data{.directory = directory,
                    .from_cache = false,
                    .tokenizer = Tokenizer::load(directory),
                    .train = TokenStream(train.shards),
                    .validation = TokenStream(validation.shards),
                    .train_size = train.size,
                    .validation_size = validation.size,
                    .evaluation_size = evaluation.size,
                    .evaluation_shards = std::move(evaluation.shards)};
  const std::uint64_t both[] = {data.train.fingerprint(), data.validation.fingerprint()};
  data.fingerprint = xxh3_64(std::as_bytes(std::span(both)));
  return data;
}

}  // namespace

PreparedData prepare(const PrepareConfig& config) {
  const Corpus& corpus = config.corpus;
  check_usage(!corpus.train.empty() && !corpus.validation.empty(),
              "corpus {}: it needs training and validation files", corpus.name);
  const Json description = describe(config);
  const std::string kind = config.tokenizer.kind == "bpe"
                               ? fmt::format("bpe{}", config.tokenizer.training.vocab_size)
                               : config.tokenizer.kind;
  const fs::path directory =
      config.cache / fmt::format("{}-{}-{}", corpus.name, kind, hex64(xxh3_64(description.dump())));
  const bool cached = is_intact(directory);
  if (!cached) build(config, description, directory);

  PreparedData data = open_checked(directory);
  data.from_cache = cached;
  return data;
}

PreparedData open_prepared(const fs::path& directory) {
  check_usage(
      fs::exists(directory / kProvenance),
      "data.prepared: {} holds no {}; name a folder that `nibble data` printed, or leave the key out and "
      "name the text",
      directory.string(), kProvenance);
  verify_dir(directory);
  PreparedData data = open_checked(directory);
  data.from_cache = true;
  return data;
}

}  // namespace nibble
