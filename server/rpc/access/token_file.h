#ifndef GDPCACHE_SERVER_RPC_ACCESS_TOKEN_FILE_H_
#define GDPCACHE_SERVER_RPC_ACCESS_TOKEN_FILE_H_

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gdpcache::rpc {

/// Bearer tokens and whose they are: lines "TOKEN NAME", empty lines and those that begin with '#' apart. Only digests
/// of the tokens are kept in memory. Thread-safe.
class TokenFile {
 public:
  static constexpr std::size_t kMinTokenBytes = 16;
  static constexpr std::size_t kMaxTokenBytes = 4'096;

  /// `names` may have tokens. Errors name the file and the line that is wrong, never the token.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(std::string path, std::set<std::string, std::less<>> names);

  /// Reads the file again. True when its tokens have changed. After an error those read last stay.
  absl::StatusOr<bool> Refresh();

  /// Whose the token is. Takes the same time for all wrong tokens of one length, whatever they have in common with a
  /// right one.
  std::optional<std::string> NameOf(absl::string_view token) const;

  const std::string& path() const { return path_; }
  std::size_t count() const;

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Entry {
    Digest digest;
    std::string name;
    bool operator==(const Entry&) const = default;
  };
  using Entries = std::vector<Entry>;

  TokenFile(std::string path, std::set<std::string, std::less<>> names)
      : path_(std::move(path)), names_(std::move(names)) {}
  static Digest DigestOf(absl::string_view token);
  absl::StatusOr<Entries> Read() const;
  absl::StatusOr<Entries> Parse(absl::string_view text) const;
  std::shared_ptr<const Entries> entries() const;

  const std::string path_;
  const std::set<std::string, std::less<>> names_;

  mutable std::mutex mutex_;
  std::shared_ptr<const Entries> entries_;  // guarded by it
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_ACCESS_TOKEN_FILE_H_
