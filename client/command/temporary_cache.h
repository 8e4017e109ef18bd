#ifndef GDPCACHE_CLIENT_COMMAND_TEMPORARY_CACHE_H_
#define GDPCACHE_CLIENT_COMMAND_TEMPORARY_CACHE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gdpcache/client.h"

namespace gdpcache::command {

/// `prefix`, a slash, and what makes it a name that no other cache has.
std::string UniqueCacheName(const std::string& prefix);

/// A cache that goes with the object; should the process die, with its last session. The client must outlive it.
class TemporaryCache {
 public:
  /// Named after `prefix`, with the fingerprint "gdpcache PREFIX".
  static absl::StatusOr<TemporaryCache> Create(const Client& client, const std::string& prefix,
                                               const CacheGeometry& geometry);

  TemporaryCache(TemporaryCache&& other) noexcept;
  TemporaryCache& operator=(TemporaryCache&&) = delete;
  ~TemporaryCache();

  const std::string& name() const { return name_; }

  /// Ends its sessions and deletes it. The destructor does the same and drops the error.
  absl::Status Delete();

 private:
  TemporaryCache(const Client& client, std::string name);

  const Client* client_;
  std::string name_;  // empty: deleted
};

}  // namespace gdpcache::command

#endif  // GDPCACHE_CLIENT_COMMAND_TEMPORARY_CACHE_H_
