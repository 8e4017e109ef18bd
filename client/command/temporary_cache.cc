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
    : client_(other.client_), name_(std::move(other.name_)), unused_(std::exchange(other.unused_, false)) {}

TemporaryCache::~TemporaryCache() {
  if (unused_) client_->DeleteCache(name_).IgnoreError();  // who may not delete caches leaves it empty
}

absl::StatusOr<Session> TemporaryCache::OpenSession(const SessionOptions& options) {
  absl::StatusOr<Session> session = client_->OpenSession(name_, options);
  if (session.ok()) unused_ = false;
  return session;
}

}  // namespace gdpcache::command
