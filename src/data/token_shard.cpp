// SPDX-License-Identifier: Apache-2.0
#include "data/token_shard.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "base/error.h"

namespace nibble {
namespace {

struct Header {
  char magic[8];
  std::uint32_t version, width;
  std::uint64_t tokens, documents, vocab_size, fingerprint, content_hash, header_hash;
};
static_assert(sizeof(Header) == 64);

constexpr char kMagic[8] = {'N', 'I', 'B', 'T', 'O', 'K', '1', '\n'};

std::uint64_t hash_of(const Header& header) {
  return xxh3_64(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, header_hash)));
}

std::size_t padding(std::size_t bytes) { return (8 - bytes % 8) % 8; }

}  // namespace

TokenShardWriter::TokenShardWriter(const std::filesystem::path& path, int vocab_size,
                                   std::uint64_t tokenizer_fingerprint)
    : file_(path),
      vocab_size_(vocab_size),
      width_(vocab_size <= 1 << 16 ? 2 : 4),
      fingerprint_(tokenizer_fingerprint) {
  // The header is known at the end; until then its zeros mark an unfinished file.
  file_.write(std::string(sizeof(Header), '\0'));
}

void TokenShardWriter::append(std::span<const std::byte> bytes) {
  hash_.update(bytes);
  file_.write(bytes);
}

void TokenShardWriter::add_document(std::span<const TokenId> ids) {
  starts_.push_back(static_cast<std::uint64_t>(tokens_));
  std::vector<std::uint16_t> narrow(width_ == 2 ? ids.size() : 0);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    check(ids[i] >= 0 && ids[i] < vocab_size_, "{}: token id {} is outside the vocabulary of {}",
          file_.path().string(), ids[i], vocab_size_);
    if (width_ == 2) narrow[i] = static_cast<std::uint16_t>(ids[i]);
  }
  append(width_ == 2 ? std::as_bytes(std::span(narrow)) : std::as_bytes(ids));
  tokens_ += static_cast<std::int64_t>(ids.size());
}

void TokenShardWriter::finish() {
  const std::byte zeros[8] = {};
  append(std::span(zeros).first(padding(static_cast<std::size_t>(tokens_ * width_))));
  append(std::as_bytes(std::span(starts_)));
  Header header{.version = 1,
                .width = static_cast<std::uint32_t>(width_),
                .tokens = static_cast<std::uint64_t>(tokens_),
                .documents = starts_.size(),
                .vocab_size = static_cast<std::uint64_t>(vocab_size_),
                .fingerprint = fingerprint_,
                .content_hash = hash_.digest64()};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.header_hash = hash_of(header);
  file_.write_at(0, std::as_bytes(std::span(&header, 1)));
  file_.sync();
  file_.close();
}

TokenShard::TokenShard(const std::filesystem::path& path) : file_(path) {
  const std::string name = path.string();
  const auto bytes = file_.bytes();
  Header header{};
  check(bytes.size() >= sizeof header, "{}: too short for a token file", name);
  std::memcpy(&header, bytes.data(), sizeof header);
  check(std::memcmp(header.magic, kMagic, sizeof kMagic) == 0,
        "{}: not a token file of nibble, or not finished", name);
  check(header.header_hash == hash_of(header),
        "{}: the header is damaged; delete the file and prepare it again", name);
  check(header.version == 1 && (header.width == 2 || header.width == 4), "{}: version {} is not known", name,
        header.version);
  const std::size_t token_bytes = header.tokens * header.width;
  const std::size_t body = token_bytes + padding(token_bytes) + header.documents * sizeof(std::uint64_t);
  check(bytes.size() == sizeof header + body,
        "{}: {} bytes, expected {}; delete the file and prepare it again", name, bytes.size(),
        sizeof header + body);
  check(xxh3_64(bytes.subspan(sizeof header)) == header.content_hash,
        "{}: the tokens are damaged; delete the file and prepare it again", name);
  tokens_ = static_cast<std::int64_t>(header.tokens);
  vocab_size_ = static_cast<int>(header.vocab_size);
  width_ = static_cast<int>(header.width);
  fingerprint_ = header.fingerprint;
  content_hash_ = header.content_hash;
  const std::byte* starts = bytes.data() + sizeof header + token_bytes + padding(token_bytes);
  starts_ = {reinterpret_cast<const std::uint64_t*>(starts), header.documents};
}

void TokenShard::copy(std::int64_t begin, std::span<TokenId> out) const {
  assert(begin >= 0 && begin + static_cast<std::int64_t>(out.size()) <= tokens_);
  const std::byte* from = file_.bytes().data() + sizeof(Header) + begin * width_;
  if (width_ == 4) {
    std::memcpy(out.data(), from, out.size_bytes());
    return;
  }
  const auto* narrow = reinterpret_cast<const std::uint16_t*>(from);
  std::copy(narrow, narrow + out.size(), out.begin());
}

TokenStream::TokenStream(const std::vector<std::filesystem::path>& shards) {
  check(!shards.empty(), "no token files given");
  Xxh3 hash;
  for (const auto& path : shards) {
    const TokenShard& shard = shards_.emplace_back(path);
    check(shard.vocab_size() == shards_[0].vocab_size() &&
              shard.tokenizer_fingerprint() == shards_[0].tokenizer_fingerprint(),
          "{} was made with another tokenizer than {}; prepare them together", path.string(),
          shards[0].string());
    begins_.push_back(size_);
    size_ += shard.size();
    const std::uint64_t parts[] = {static_cast<std::uint64_t>(shard.size()), shard.content_hash(),
                                   shard.tokenizer_fingerprint()};
    hash.update(std::as_bytes(std::span(parts)));
  }
  vocab_size_ = shards_[0].vocab_size();
  fingerprint_ = hash.digest64();
}

void TokenStream::copy(std::int64_t begin, std::span<TokenId> out) const {
  assert(begin >= 0 && begin + static_cast<std::int64_t>(out.size()) <= size_);
  auto i =
      static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), begin) - begins_.begin()) - 1;
  for (; !out.empty(); ++i) {
    const std::int64_t local = begin - begins_[i];
    const auto n = std::min<std::size_t>(out.size(), static_cast<std::size_t>(shards_[i].size() - local));
    shards_[i].copy(local, out.first(n));
    out = out.subspan(n);
    begin += static_cast<std::int64_t>(n);
  }
}

std::vector<TokenId> TokenStream::all() const {
  std::vector<TokenId> out(static_cast<std::size_t>(size_));
  copy(0, out);
  return out;
}

}  // namespace nibble
