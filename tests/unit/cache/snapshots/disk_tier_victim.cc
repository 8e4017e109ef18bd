// Stores and removes snapshots in a disk tier until it is killed, and says on stdout what it has done:
// "stored N" after snapshot N has been stored, "removing N" before it is removed.
//
// usage: disk_tier_victim DIRECTORY FIRST_SEED

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <utility>

#include "kernels/backend.h"
#include "server/cache/snapshots/disk_tier.h"
#include "tests/support/heap_backend.h"
#include "tests/unit/cache/snapshots/victim_snapshot.h"

namespace gdpcache::cache {
namespace {

constexpr std::size_t kMostCopies = 8;

int Run(const char* directory, std::uint64_t seed) {
  test::HeapBackend backend;
  const std::unique_ptr<kernels::Stream> stream = *backend.CreateStream();
  struct Stored {
    std::uint64_t seed;
    std::shared_ptr<TierCopy> copy;
  };
  std::deque<Stored> copies;
  DiskTier::Options options;
  options.directory = directory;
  options.capacity = std::int64_t{1} << 30;
  const absl::StatusOr<std::unique_ptr<DiskTier>> tier =
      DiskTier::Open(std::move(options), backend, [&](const SnapshotRecord& record, std::shared_ptr<TierCopy> copy) {
        copies.push_back({test::SeedOfVictimKey(record.key), std::move(copy)});
      });
  if (!tier.ok()) {
    std::fprintf(stderr, "%s\n", tier.status().ToString().c_str());
    return 1;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::puts("ready");
  for (;; ++seed) {
    const test::SampleSnapshot snapshot = test::VictimSnapshot(seed);
    absl::StatusOr<std::shared_ptr<TierCopy>> copy = (*tier)->Store(snapshot.record(), snapshot.parts(), *stream);
    if (!copy.ok()) {
      std::fprintf(stderr, "%s\n", copy.status().ToString().c_str());
      return 1;
    }
    std::printf("stored %llu\n", static_cast<unsigned long long>(seed));
    copies.push_back({seed, *std::move(copy)});
    while (copies.size() > kMostCopies) {
      std::printf("removing %llu\n", static_cast<unsigned long long>(copies.front().seed));
      copies.front().copy->Remove();
      copies.pop_front();
    }
  }
}

}  // namespace
}  // namespace gdpcache::cache

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  return gdpcache::cache::Run(argv[1], std::strtoull(argv[2], nullptr, 10));
}
