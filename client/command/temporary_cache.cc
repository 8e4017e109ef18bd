#include "client/command/temporary_cache.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gdpcache::command {

std::string UniqueCacheName(const std::string& prefix) {
  std::random_device random;
  std::string name = absl::StrCat(prefix, "/");
  for (int i = 0; i < 4; ++i) absl::StrAppend(&name, absl::Hex(random(), absl::kZeroPad8));
  return name;
}

absl::StatusOr<TemporaryCache> TemporaryCache::Create(const Client& client, const std::string& prefix,
                                                      const CacheGeometry& geometry) {
  CacheSpec spec;
  spec.name = UniqueCacheName(prefix);
  spec.geometry = geometry;
  spec.fingerprint = absl::StrCat("gdpcache ", prefix);
  spec.ephemeral = true;
  const absl::StatusOr<CreatedCache> created = client.CreateCache(spec);
  if (!created.ok()) return created.status();
  return TemporaryCache(client, std::move(spec.name));
}

TemporaryCache::TemporaryCache(const Client& client, std::string name) : client_(&client), name_(std::move(name)) {}

TemporaryCache::TemporaryCache(TemporaryCache&& other) noexcept
    : client_(other.client_), name_(std::exchange(other.name_, {})) {}

TemporaryCache::~TemporaryCache() { Delete().IgnoreError(); }

absl::Status TemporaryCache::Delete() {
  if (name_.empty()) return absl::OkStatus();
  absl::Status deleted = client_->DeleteCache(std::exchange(name_, {}), /*force=*/true);
  // It has gone with its last session, or will: who may not delete caches need not.
  if (absl::IsNotFound(deleted) || absl::IsPermissionDenied(deleted)) return absl::OkStatus();
  return deleted;
}

}  // namespace gdpcache::command
