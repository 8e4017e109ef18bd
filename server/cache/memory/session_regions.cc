#include "server/cache/memory/session_regions.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/cache/errors.h"

namespace gdpcache::cache {
namespace {

constexpr std::size_t kMaxName = 128;

absl::Status NoSuchRegion(absl::string_view name) {
  return ResourceError(absl::StatusCode::kNotFound, "region", name,
                       absl::StrCat("the session has no region or event ", Quoted(name)));
}

}  // namespace

absl::Status SessionRegions::Add(absl::string_view name, std::shared_ptr<Region> region) {
  if (name.empty() || name.size() > kMaxName) {
    return InvalidField("name", absl::StrCat("has ", name.size(), " bytes; it must have from 1 to ", kMaxName));
  }
  const std::lock_guard lock(mutex_);
  if (closed_) return absl::NotFoundError("the session has ended");
  if (!regions_.try_emplace(std::string(name), std::move(region)).second) {
    return ResourceError(absl::StatusCode::kAlreadyExists, "region", name,
                         absl::StrCat("the session already has a region or event ", Quoted(name)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Region>> SessionRegions::Find(absl::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(name);
  if (found == regions_.end()) return NoSuchRegion(name);
  return found->second;
}

absl::Status SessionRegions::Remove(absl::string_view name, absl::AnyInvocable<void()> on_released) {
  std::shared_ptr<Region> region;  // maybe let go of here, without the lock
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(name);
  if (found == regions_.end()) return NoSuchRegion(name);
  region = std::move(found->second);
  regions_.erase(found);
  region->OnReleased(std::move(on_released));
  return absl::OkStatus();
}

std::vector<SessionRegions::Entry> SessionRegions::List() const {
  std::vector<Entry> entries;
  const std::lock_guard lock(mutex_);
  entries.reserve(regions_.size());
  for (const auto& [name, region] : regions_) {
    entries.push_back({name, region->kind(), region->size(), region.use_count() - 1});
  }
  return entries;
}

void SessionRegions::Close() {
  Map regions;  // let go of without the lock
  const std::lock_guard lock(mutex_);
  closed_ = true;
  regions.swap(regions_);
}

}  // namespace gdpcache::cache
