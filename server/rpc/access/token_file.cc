#include "server/rpc/access/token_file.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/cache/errors.h"
#include "server/config/trusted_file.h"

namespace gdpcache::rpc {
namespace {

/// What RFC 6750 lets a bearer token have.
bool IsTokenCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         absl::string_view("-._~+/=").find(c) != std::string::npos;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(std::string path, std::set<std::string, std::less<>> names) {
  std::unique_ptr<TokenFile> file(new TokenFile(std::move(path), std::move(names)));
  if (absl::StatusOr<bool> read = file->Refresh(); !read.ok()) return read.status();
  return file;
}

absl::StatusOr<bool> TokenFile::Refresh() {
  absl::StatusOr<Entries> read = Read();
  if (!read.ok()) return read.status();
  const auto entries = std::make_shared<const Entries>(*std::move(read));
  const std::lock_guard lock(mutex_);
  if (entries_ != nullptr && *entries_ == *entries) return false;
  entries_ = entries;
  return true;
}

absl::StatusOr<TokenFile::Entries> TokenFile::Read() const {
  absl::StatusOr<std::string> text = config::ReadTrustedFile("the token file", path_, config::Secrecy::kSecret);
  if (!text.ok()) return text.status();
  const absl::Cleanup wipe = [&text] { OPENSSL_cleanse(text->data(), text->size()); };
  absl::StatusOr<Entries> entries = Parse(*text);
  if (entries.ok()) return entries;
  return absl::InvalidArgumentError(absl::StrCat("the token file '", path_, "', ", entries.status().message()));
}

absl::StatusOr<TokenFile::Entries> TokenFile::Parse(absl::string_view text) const {
  Entries entries;
  int number = 0;
  const auto error = [&number](auto... what) {
    return absl::InvalidArgumentError(absl::StrCat("line ", number, ": ", what...));
  };
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    const std::vector<absl::string_view> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.size() != 2) return error("it has ", words.size(), " words; it must be TOKEN NAME");
    const absl::string_view token = words[0];
    if (token.size() < kMinTokenBytes || token.size() > kMaxTokenBytes) {
      return error("the token has ", token.size(), " characters; it must have ", kMinTokenBytes, " to ",
                   kMaxTokenBytes);
    }
    if (!std::all_of(token.begin(), token.end(), IsTokenCharacter)) {
      return error("the token may have letters, digits and - . _ ~ + / = only");
    }
    if (!names_.contains(words[1])) {
      return error("the name is ", cache::Quoted(words[1]), "; no identity is configured with it");
    }
    Entry entry = {DigestOf(token), std::string(words[1])};
    const bool is_double = std::any_of(entries.begin(), entries.end(),
                                       [&entry](const Entry& other) { return other.digest == entry.digest; });
    if (is_double) return error("the token stands on another line, too");
    entries.push_back(std::move(entry));
  }
  return entries;
}

TokenFile::Digest TokenFile::DigestOf(absl::string_view token) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest.data());
  return digest;
}

std::shared_ptr<const TokenFile::Entries> TokenFile::entries() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

std::optional<std::string> TokenFile::NameOf(absl::string_view token) const {
  const std::shared_ptr<const Entries> known = entries();
  const Digest digest = DigestOf(token);
  const Entry* found = nullptr;
  for (const Entry& entry : *known) {  // all of them, whichever it is
    if (CRYPTO_memcmp(entry.digest.data(), digest.data(), digest.size()) == 0) found = &entry;
  }
  if (found == nullptr) return std::nullopt;
  return found->name;
}

std::size_t TokenFile::count() const { return entries()->size(); }

}  // namespace gdpcache::rpc
