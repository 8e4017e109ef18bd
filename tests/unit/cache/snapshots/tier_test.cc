#include "server/cache/snapshots/tier.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/cache/snapshots/disk_tier.h"
#include "server/cache/snapshots/memory_tier.h"
#include "server/cache/snapshots/snapshot_file.h"
#include "tests/support/fault_injecting_backend.h"
#include "tests/support/fault_injecting_tier.h"
#include "tests/support/heap_backend.h"
#include "tests/support/sample_snapshot.h"
#include "tests/support/separate_memory_backend.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::cache {
namespace {

using test::SampleSnapshot;
using Operation = test::FaultInjectingBackend::Operation;

constexpr std::int64_t kCapacity = std::int64_t{32} << 10;  // of some dozens of small snapshots

struct TierUnderTest {
  const char* name;
  std::unique_ptr<Tier> (*make)(kernels::Backend& backend, const std::string& directory);
};

std::ostream& operator<<(std::ostream& out, const TierUnderTest& tier) { return out << tier.name; }

/// All that there are: a new tier gets an entry here.
constexpr TierUnderTest kTiersUnderTest[] = {
    {"device",
     [](kernels::Backend& backend, const std::string& /*directory*/) -> std::unique_ptr<Tier> {
       return std::make_unique<MemoryTier>(backend, TierKind::kDevice, kCapacity);
     }},
    {"host",
     [](kernels::Backend& backend, const std::string& /*directory*/) -> std::unique_ptr<Tier> {
       return std::make_unique<MemoryTier>(backend, TierKind::kHost, kCapacity);
     }},
    {"disk",
     [](kernels::Backend& backend, const std::string& directory) -> std::unique_ptr<Tier> {
       DiskTier::Options options;
       options.directory = directory;
       options.capacity = kCapacity;
       return *DiskTier::Open(std::move(options), backend, [](const auto& /*record*/, const auto& /*copy*/) {});
     }},
    {"fault_injecting",
     [](kernels::Backend& backend, const std::string& /*directory*/) -> std::unique_ptr<Tier> {
       return std::make_unique<test::FaultInjectingTier>(backend, kCapacity);
     }},
};

/// A test that every tier must pass.
class TierTest : public ::testing::TestWithParam<TierUnderTest> {
 protected:
  std::unique_ptr<Tier> Make(kernels::Backend& backend) {
    return GetParam().make(backend, directory_.path() + "/snapshots");
  }

  /// The snapshot's bytes in memory of the backend.
  static kernels::Buffer Place(kernels::Backend& backend, const SampleSnapshot& snapshot, kernels::Stream& stream) {
    const std::size_t size = snapshot.data().size();
    kernels::Buffer buffer = *backend.Allocate(size, kernels::MemoryKind::kDevice);
    EXPECT_TRUE(backend.CopyBytes({{buffer.data(), snapshot.data().data(), size}}, stream).ok());
    EXPECT_TRUE(backend.Synchronize(stream).ok());
    return buffer;
  }

  static std::vector<SnapshotPart> PartsIn(const kernels::Buffer& buffer, const SampleSnapshot& snapshot) {
    return cache::PartsIn(snapshot.record().space, buffer.data());
  }

  static bool Holds(const void* memory, const SampleSnapshot& snapshot) {
    return std::memcmp(test::SeparateMemoryBackend::HostAddress(memory), snapshot.data().data(),
                       snapshot.data().size()) == 0;
  }

  test::TemporaryDirectory directory_;
  test::HeapBackend unified_;
  test::SeparateMemoryBackend separate_{unified_};
};

INSTANTIATE_TEST_SUITE_P(, TierTest, ::testing::ValuesIn(kTiersUnderTest),
                         [](const auto& tier) { return std::string(tier.param.name); });

TEST_P(TierTest, LoadsWhatWasStoredWhateverBecameOfItsSource) {
  for (kernels::Backend* const backend :
       {static_cast<kernels::Backend*>(&unified_), static_cast<kernels::Backend*>(&separate_)}) {
    const std::unique_ptr<Tier> tier = Make(*backend);
    const std::unique_ptr<kernels::Stream> stream = *backend->CreateStream();
    const std::unique_ptr<kernels::Stream> another = *backend->CreateStream();
    for (const std::int64_t auxiliary_bytes : {0, 7}) {
      SnapshotSpace space = test::SmallSpace();
      space.auxiliary_bytes = auxiliary_bytes;
      const SampleSnapshot snapshot({space, "0123456789abcdef", 1}, 1);
      const SampleSnapshot other({space, "0123456789abcdef", 1}, 2);
      const kernels::Buffer source = Place(*backend, snapshot, *stream);
      const auto copy = tier->Store(snapshot.record(), PartsIn(source, snapshot), *stream);
      ASSERT_TRUE(copy.ok()) << copy.status();
      ASSERT_TRUE(backend->CopyBytes({{source.data(), other.data().data(), other.data().size()}}, *another).ok());
      ASSERT_TRUE(backend->Synchronize(*another).ok());
      const kernels::Buffer destination = Place(*backend, other, *stream);
      const absl::Status loaded = (*copy)->Load(PartsIn(destination, snapshot), *stream);
      ASSERT_TRUE(loaded.ok()) << loaded;
      EXPECT_TRUE(Holds(destination.data(), snapshot));
      (*copy)->Remove();
    }
  }
}

TEST_P(TierTest, CopiesHavePartsInMemoryTiersOnly) {
  const std::unique_ptr<Tier> tier = Make(separate_);
  const std::unique_ptr<kernels::Stream> stream = *separate_.CreateStream();
  const SampleSnapshot snapshot(1);
  const auto copy = tier->Store(snapshot.record(), snapshot.parts(), *stream);
  ASSERT_TRUE(copy.ok()) << copy.status();
  if (tier->memory() == nullptr) {
    EXPECT_TRUE((*copy)->parts().empty());
    return;
  }
  ASSERT_EQ((*copy)->parts().size(), snapshot.parts().size());
  for (std::size_t layer = 0; layer < snapshot.parts().size(); ++layer) {
    const SnapshotPart part = (*copy)->parts()[layer];
    const SnapshotPart stored = snapshot.parts()[layer];
    ASSERT_EQ(part.state.size, stored.state.size);
    ASSERT_EQ(part.auxiliary.size, stored.auxiliary.size);
    const auto same = [](const kernels::ByteRange& a, const kernels::ByteRange& b) {
      return std::memcmp(test::SeparateMemoryBackend::HostAddress(a.data), b.data, b.size) == 0;
    };
    EXPECT_TRUE(same(part.state, stored.state));
    EXPECT_TRUE(same(part.auxiliary, stored.auxiliary));
  }
}

TEST_P(TierTest, UsesNoMoreThanItsCapacityAndAgainWhatWasRemoved) {
  const std::unique_ptr<Tier> tier = Make(unified_);
  const std::unique_ptr<kernels::Stream> stream = *unified_.CreateStream();
  ASSERT_EQ(tier->capacity(), kCapacity);
  ASSERT_EQ(tier->used(), 0);
  std::vector<std::shared_ptr<TierCopy>> copies;
  const auto store = [&] {
    const SampleSnapshot snapshot(copies.size());
    auto copy = tier->Store(snapshot.record(), snapshot.parts(), *stream);
    if (!copy.ok()) return copy.status();
    copies.push_back(*std::move(copy));
    return absl::OkStatus();
  };
  absl::Status status;
  while (status.ok() && copies.size() < 1'000) {
    const std::int64_t before = tier->used();
    status = store();
    if (status.ok()) {
      EXPECT_GT(tier->used(), before);
    } else {
      EXPECT_EQ(tier->used(), before);
    }
    ASSERT_LE(tier->used(), kCapacity);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  ASSERT_GT(copies.size(), 0);

  copies.front()->Remove();
  copies.erase(copies.begin());
  const absl::Status again = store();
  EXPECT_TRUE(again.ok()) << again;
  for (const std::shared_ptr<TierCopy>& copy : copies) copy->Remove();
  copies.clear();
  EXPECT_EQ(tier->used(), 0);
}

TEST_P(TierTest, AFailingBackendLeavesNothingBehind) {
  test::FaultInjectingBackend failing(separate_);
  const std::unique_ptr<Tier> tier = Make(failing);
  const SampleSnapshot snapshot(1);
  for (const Operation operation : {Operation::kCopyBytes, Operation::kSynchronize}) {
    const std::unique_ptr<kernels::Stream> lost = *failing.CreateStream();  // what it was given is never done
    failing.FailAfter(operation, 0, absl::UnavailableError("the device is lost"));
    EXPECT_EQ(tier->Store(snapshot.record(), snapshot.parts(), *lost).status().message(), "the device is lost");
    EXPECT_EQ(tier->used(), 0);
  }
  const std::unique_ptr<kernels::Stream> stream = *failing.CreateStream();
  const auto copy = tier->Store(snapshot.record(), snapshot.parts(), *stream);
  EXPECT_TRUE(copy.ok()) << copy.status();
}

TEST_P(TierTest, ThreadsStoreLoadAndRemoveAtTheSameTime) {
  const std::unique_ptr<Tier> tier = Make(unified_);
  const auto work = [&](std::uint64_t thread) {
    const std::unique_ptr<kernels::Stream> stream = *unified_.CreateStream();
    for (std::uint64_t round = 0; round < 20; ++round) {
      const SampleSnapshot snapshot(thread * 1'000 + round);
      const auto copy = tier->Store(snapshot.record(), snapshot.parts(), *stream);
      ASSERT_TRUE(copy.ok()) << copy.status();
      const kernels::Buffer destination = *unified_.Allocate(snapshot.data().size(), kernels::MemoryKind::kHost);
      std::thread remover([&] { (*copy)->Remove(); });
      const absl::Status status = (*copy)->Load(PartsIn(destination, snapshot), *stream);
      remover.join();
      if (status.ok()) {
        EXPECT_TRUE(Holds(destination.data(), snapshot));
      } else {
        EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
      }
    }
  };
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < 4; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(tier->used(), 0);
}

}  // namespace
}  // namespace gdpcache::cache
