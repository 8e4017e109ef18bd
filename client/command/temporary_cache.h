#ifndef GDPCACHE_CLIENT_COMMAND_TEMPORARY_CACHE_H_
#define GDPCACHE_CLIENT_COMMAND_TEMPORARY_CACHE_H_

#include <string>

#include "absl/status/statusor.h"
#include "gdpcache/client.h"

namespace gdpcache::command {

/// `prefix`, a slash, and what makes it a name that no other cache has.
std::string UniqueCacheName(const std::string& prefix);

/// A cache that goes with the last of its sessions, whatever becomes of this process; one that never had any goes with
/// the object. The client must outlive it.
class TemporaryCache {
 public:
  /// Named after `prefix`, with the fingerprint "gdpcache PREFIX".
  static absl::StatusOr<TemporaryCache> Create(const Client& client, const std::string& prefix,
                                               const CacheGeometry& geometry);

  TemporaryCache(TemporaryCache&& other) noexcept;
  TemporaryCache& operator=(TemporaryCache&&) = delete;
  ~TemporaryCache();

  const std::string& name() const { return name_; }

  absl::StatusOr<Session> OpenSession(const SessionOptions& options);

 private:
  TemporaryCache(const Client& client, std::string name);

  const Client* client_;
  std::string name_;
  bool unused_ = true;  // nobody but the destructor would delete it
};

}  // namespace gdpcache::command

#endif  // GDPCACHE_CLIENT_COMMAND_TEMPORARY_CACHE_H_
