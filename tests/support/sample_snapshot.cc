#include "tests/support/sample_snapshot.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/cache/snapshots/snapshot_file.h"

namespace gdpcache::test {

cache::SnapshotSpace SmallSpace() {
  return {.tenant = "tenant",
          .fingerprint = "model@1",
          .layers = 2,
          .heads = 2,
          .key_dim = 3,
          .value_dim = 5,
          .num_householder = 2,
          .state_dtype = kernels::DataType::kFloat32,
          .auxiliary_bytes = 7};
}

SampleSnapshot::SampleSnapshot(cache::SnapshotRecord record, std::uint64_t seed)
    : record_(std::move(record)), data_(static_cast<std::size_t>(record_.space.snapshot_bytes())) {
  std::mt19937_64 random(seed);
  for (std::byte& byte : data_) byte = static_cast<std::byte>(random() >> 56);
  parts_ = cache::PartsIn(record_.space, data_.data());
}

SampleSnapshot::SampleSnapshot(std::uint64_t seed)
    : SampleSnapshot({SmallSpace(), absl::StrCat("key ", absl::Dec(seed, absl::kZeroPad20)),
                      static_cast<std::int64_t>(seed % 100'000)},
                     seed) {}

std::string SampleSnapshot::File() const {
  absl::StatusOr<std::string> header = cache::EncodeSnapshotHeader(record_, parts_);
  EXPECT_TRUE(header.ok()) << header.status();
  return absl::StrCat(header.value_or(""),
                      absl::string_view(reinterpret_cast<const char*>(data_.data()), data_.size()));
}

}  // namespace gdpcache::test
