#ifndef GDPCACHE_TESTS_SUPPORT_SAMPLE_SNAPSHOT_H_
#define GDPCACHE_TESTS_SUPPORT_SAMPLE_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "server/cache/snapshots/snapshot.h"

namespace gdpcache::test {

/// Two layers of states [2, 3, 5] with 7 auxiliary bytes each, of model@1, for tenant "tenant".
cache::SnapshotSpace SmallSpace();

/// A snapshot in host memory.
class SampleSnapshot {
 public:
  /// Its bytes follow from `seed`.
  SampleSnapshot(cache::SnapshotRecord record, std::uint64_t seed);

  /// Of SmallSpace, with a key of `seed`.
  explicit SampleSnapshot(std::uint64_t seed);

  const cache::SnapshotRecord& record() const { return record_; }
  absl::Span<const cache::SnapshotPart> parts() const { return parts_; }

  /// All bytes of all parts, as a file has them.
  const std::vector<std::byte>& data() const { return data_; }

  /// The whole file; fails the test when it cannot be made.
  std::string File() const;

 private:
  cache::SnapshotRecord record_;
  std::vector<std::byte> data_;
  std::vector<cache::SnapshotPart> parts_;
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_SAMPLE_SNAPSHOT_H_
