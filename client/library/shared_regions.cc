#include "client/library/shared_regions.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace gdpcache::client {

std::string SharedRegions::NewName() {
  const std::lock_guard lock(mutex_);
  return absl::StrCat("client/", names_++);
}

void SharedRegions::Add(const std::byte* data, std::int64_t size, std::string name) {
  const std::lock_guard lock(mutex_);
  regions_[reinterpret_cast<std::uintptr_t>(data)] = {size, std::move(name)};
}

void SharedRegions::Remove(const std::byte* data) {
  const std::lock_guard lock(mutex_);
  regions_.erase(reinterpret_cast<std::uintptr_t>(data));
}

void SharedRegions::EndSession() {
  const std::lock_guard lock(mutex_);
  session_ended_ = true;
}

bool SharedRegions::session_ended() const {
  const std::lock_guard lock(mutex_);
  return session_ended_;
}

std::optional<v1::SharedMemoryRef> SharedRegions::Find(const void* data, std::int64_t size,
                                                       std::int64_t alignment) const {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::lock_guard lock(mutex_);
  auto next = regions_.upper_bound(address);
  if (next == regions_.begin()) return std::nullopt;
  const auto& [begin, region] = *--next;
  const std::uintptr_t offset = address - begin;
  const auto region_size = static_cast<std::uintptr_t>(region.size);
  if (offset > region_size || static_cast<std::uintptr_t>(size) > region_size - offset ||
      offset % static_cast<std::uintptr_t>(alignment) != 0) {
    return std::nullopt;
  }
  v1::SharedMemoryRef reference;
  reference.set_region(region.name);
  reference.set_offset(offset);
  return reference;
}

}  // namespace gdpcache::client
