#include "server/cache/snapshots/snapshot_hasher.h"

// With this header the library uses the widest vectors of the processor: four times as fast, which is the difference
// between hiding behind a file's reading and not.
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include <cstring>
#include <new>

namespace gdpcache::cache {

SnapshotHasher::SnapshotHasher() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(state_.get());
}

void SnapshotHasher::Add(absl::Span<const std::byte> bytes) {
  XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
}

SnapshotChecksum SnapshotHasher::checksum() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_.get()));
  SnapshotChecksum checksum;
  std::memcpy(checksum.data(), canonical.digest, checksum.size());
  return checksum;
}

void SnapshotHasher::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

}  // namespace gdpcache::cache
