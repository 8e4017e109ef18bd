#ifndef GDPCACHE_TESTS_UNIT_CACHE_SNAPSHOTS_VICTIM_SNAPSHOT_H_
#define GDPCACHE_TESTS_UNIT_CACHE_SNAPSHOTS_VICTIM_SNAPSHOT_H_

#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/sample_snapshot.h"

namespace gdpcache::test {

/// The snapshot that the victim of the crash test stores under a number: 1 to 700 KB, by turns.
inline SampleSnapshot VictimSnapshot(std::uint64_t seed) {
  cache::SnapshotSpace space = SmallSpace();
  space.heads = std::int64_t{1} << (seed % 7 * 2 % 11);
  space.key_dim = 17;
  space.auxiliary_bytes = 3;
  return SampleSnapshot({space, absl::StrCat("victim", absl::Dec(seed, absl::kZeroPad20)), 1}, seed);
}

inline std::uint64_t SeedOfVictimKey(const std::string& key) { return std::strtoull(key.c_str() + 6, nullptr, 10); }

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_UNIT_CACHE_SNAPSHOTS_VICTIM_SNAPSHOT_H_
