#include "server/cache/snapshots/disk_tier.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cache/snapshots/snapshot_file.h"
#include "tests/support/fault_injecting_backend.h"
#include "tests/support/fault_injecting_file_system.h"
#include "tests/support/file_content.h"
#include "tests/support/heap_backend.h"
#include "tests/support/sample_snapshot.h"
#include "tests/support/separate_memory_backend.h"
#include "tests/unit/cache/snapshots/disk_tier_fixture.h"

namespace gdpcache::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = DiskIncident::Kind;
using Operation = test::FaultInjectingFileSystem::Operation;
using test::SampleSnapshot;
using test::SmallSpace;

// --- storing and loading ---

class DiskTierFormTest : public DiskTierTest,
                         public ::testing::WithParamInterface<std::tuple<kernels::DataType, std::int64_t>> {};

TEST_P(DiskTierFormTest, WhatIsStoredIsLoadedAlsoAfterARestart) {
  SnapshotSpace space = SmallSpace();
  std::tie(space.state_dtype, space.auxiliary_bytes) = GetParam();
  const SampleSnapshot snapshot({space, "0123456789abcdef", 42}, 1);
  const std::shared_ptr<TierCopy> copy = MustStore(Reopen(), snapshot);
  EXPECT_THAT(copy->parts(), IsEmpty());
  EXPECT_TRUE(Load(*copy, snapshot).ok());

  Reopen();
  ASSERT_EQ(recovered_.size(), 1);
  EXPECT_EQ(recovered_[0].record.space, space);
  EXPECT_EQ(recovered_[0].record.key, "0123456789abcdef");
  EXPECT_EQ(recovered_[0].record.position, 42);
  EXPECT_TRUE(Load(*recovered_[0].copy, snapshot).ok());
  EXPECT_THAT(Incidents(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(, DiskTierFormTest,
                         ::testing::Combine(::testing::Values(kernels::DataType::kFloat32, kernels::DataType::kBFloat16,
                                                              kernels::DataType::kFloat16),
                                            ::testing::Values(0, 7)),
                         [](const auto& param) {
                           return absl::StrCat(std::string(kernels::Name(std::get<0>(param.param))), "_",
                                               std::get<1>(param.param), "_auxiliary_bytes");
                         });

TEST_F(DiskTierTest, TheFileIsThePortableForm) {
  const SampleSnapshot snapshot(1);
  MustStore(Reopen(), snapshot);
  ASSERT_EQ(Files().size(), 1);
  EXPECT_EQ(test::FileContent(Files()[0]), snapshot.File());
}

/// Several pieces and more than a bounce buffer, with parts that end inside them.
SampleSnapshot LargeSnapshot() {
  SnapshotSpace space = SmallSpace();
  space.layers = 5;
  space.heads = 7;
  space.key_dim = 201;
  space.value_dim = 300;
  space.auxiliary_bytes = 700'001;
  return SampleSnapshot({space, "0123456789abcdef", 1}, 9);
}

TEST_F(DiskTierTest, SnapshotsOfManyPiecesAreStoredAndLoaded) {
  const SampleSnapshot snapshot = LargeSnapshot();
  ASSERT_GT(snapshot.data().size(), 10 * kMebibyte);
  EXPECT_TRUE(Load(*MustStore(Reopen(), snapshot), snapshot).ok());
}

TEST_F(DiskTierTest, SnapshotsOfManyTinyPartsAreStoredAndLoaded) {
  SnapshotSpace space = SmallSpace();
  space.layers = 5'000;  // more than one system call takes at a time
  space.auxiliary_bytes = 1;
  const SampleSnapshot snapshot({space, "0123456789abcdef", 1}, 9);
  EXPECT_TRUE(Load(*MustStore(Reopen(), snapshot), snapshot).ok());
}

TEST_F(DiskTierTest, ShortReadsAndWritesAreContinued) {
  const SampleSnapshot snapshot(1);
  DiskTier& tier = Reopen();
  for (const std::size_t most : {1, 7, 100, 121}) {
    file_system_.LimitTransfers(most);
    const std::shared_ptr<TierCopy> copy = MustStore(tier, snapshot);
    EXPECT_TRUE(Load(*copy, snapshot).ok());
    copy->Remove();
  }
  MustStore(tier, snapshot);
  Reopen();
  ASSERT_EQ(recovered_.size(), 1);
}

TEST_F(DiskTierTest, MemoryOfADeviceIsReachedThroughTheBackend) {
  test::SeparateMemoryBackend device(heap_);
  stream_ = *device.CreateStream();
  absl::StatusOr<std::unique_ptr<DiskTier>> tier = DiskTier::Open(Options(), device, nullptr);
  ASSERT_TRUE(tier.ok()) << tier.status();
  for (const SampleSnapshot& snapshot : {SampleSnapshot(1), LargeSnapshot()}) {
    const std::size_t size = snapshot.data().size();
    for (const kernels::MemoryKind kind : {kernels::MemoryKind::kDevice, kernels::MemoryKind::kHost}) {
      absl::StatusOr<kernels::Buffer> source = device.Allocate(size, kind);
      absl::StatusOr<kernels::Buffer> destination = device.Allocate(size, kind);
      ASSERT_TRUE(source.ok() && destination.ok());
      ASSERT_TRUE(device.CopyBytes({{source->data(), snapshot.data().data(), size}}, *stream_).ok());
      ASSERT_TRUE(device.Synchronize(*stream_).ok());
      absl::StatusOr<std::shared_ptr<TierCopy>> copy =
          (*tier)->Store(snapshot.record(), PartsIn(snapshot.record().space, source->data()), *stream_);
      ASSERT_TRUE(copy.ok()) << copy.status();
      const absl::Status loaded = (*copy)->Load(PartsIn(snapshot.record().space, destination->data()), *stream_);
      ASSERT_TRUE(loaded.ok()) << loaded;
      EXPECT_EQ(
          std::memcmp(test::SeparateMemoryBackend::HostAddress(destination->data()), snapshot.data().data(), size), 0);
    }
  }
}

TEST_F(DiskTierTest, AFailingDeviceLeavesNothingBehind) {
  test::SeparateMemoryBackend device(heap_);
  test::FaultInjectingBackend failing(device);
  stream_ = *failing.CreateStream();
  absl::StatusOr<std::unique_ptr<DiskTier>> tier = DiskTier::Open(Options(), failing, nullptr);
  ASSERT_TRUE(tier.ok()) << tier.status();
  const SampleSnapshot snapshot = LargeSnapshot();
  const std::shared_ptr<TierCopy> good = MustStore(**tier, snapshot);
  const std::int64_t used = (*tier)->used();
  using Call = test::FaultInjectingBackend::Operation;
  for (const Call call : {Call::kCopyBytes, Call::kSynchronize}) {
    for (const std::int64_t passed : {0, 1, 2}) {
      failing.FailAfter(call, passed, absl::UnavailableError("the device is lost"));
      EXPECT_EQ(Store(**tier, snapshot).status().message(), "the device is lost");
      stream_ = *failing.CreateStream();  // what was given to the other one is never done
      EXPECT_EQ(Files().size(), 1);
      EXPECT_EQ((*tier)->used(), used);
      failing.FailAfter(call, passed, absl::UnavailableError("the device is lost"));
      EXPECT_EQ(Load(*good, snapshot).message(), "the device is lost");
      stream_ = *failing.CreateStream();
    }
  }
  EXPECT_TRUE(Load(*good, snapshot).ok());
}

TEST_F(DiskTierTest, WithoutMemoryToCopyThroughTheDiskIsNotFull) {
  test::SeparateMemoryBackend device(heap_);
  test::FaultInjectingBackend failing(device);
  stream_ = *failing.CreateStream();
  absl::StatusOr<std::unique_ptr<DiskTier>> tier = DiskTier::Open(Options(), failing, nullptr);
  ASSERT_TRUE(tier.ok()) << tier.status();
  failing.FailAfter(test::FaultInjectingBackend::Operation::kAllocate, 0, absl::ResourceExhaustedError("none"));
  EXPECT_EQ(Store(**tier, SampleSnapshot(1)).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Files(), IsEmpty());
  EXPECT_TRUE(Store(**tier, SampleSnapshot(1)).ok());
}

TEST_F(DiskTierTest, PartsOfAnotherSpaceAreRefused) {
  DiskTier& tier = Reopen();
  const SampleSnapshot snapshot(1);
  EXPECT_EQ(tier.Store(snapshot.record(), snapshot.parts().subspan(0, 1), *stream_).status().code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(tier.used(), 0);
  EXPECT_THAT(Files(), IsEmpty());
  EXPECT_EQ(MustStore(tier, snapshot)->Load(snapshot.parts().subspan(0, 1), *stream_).code(),
            absl::StatusCode::kInternal);
}

// --- space ---

TEST_F(DiskTierTest, UsesWhatItsFilesHaveAndNoMoreThanItsCapacity) {
  const auto file_bytes = static_cast<std::int64_t>(SampleSnapshot(1).File().size());
  DiskTier::Options options = Options();
  options.capacity = 2 * file_bytes + 1;
  absl::StatusOr<std::unique_ptr<DiskTier>> tier = TryOpen(options);
  ASSERT_TRUE(tier.ok()) << tier.status();
  EXPECT_EQ((*tier)->capacity(), options.capacity);
  const std::shared_ptr<TierCopy> first = MustStore(**tier, SampleSnapshot(1));
  const std::shared_ptr<TierCopy> second = MustStore(**tier, SampleSnapshot(2));
  EXPECT_EQ((*tier)->used(), 2 * file_bytes);
  const absl::Status full = Store(**tier, SampleSnapshot(3)).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr(absl::StrCat(2 * file_bytes, " of ", options.capacity)));
  EXPECT_THAT(Incidents(), IsEmpty()) << "this is no trouble with the disk";
  first->Remove();
  EXPECT_EQ((*tier)->used(), file_bytes);
  EXPECT_TRUE(Store(**tier, SampleSnapshot(3)).ok());
}

TEST_F(DiskTierTest, AFullFileSystemIsToldBeforeAnythingIsWritten) {
  DiskTier& tier = Reopen();
  file_system_.SetFreeBytes(100);
  const absl::Status full = Store(tier, SampleSnapshot(1)).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("has 100 bytes left"));
  EXPECT_THAT(Incidents(), ElementsAre(Kind::kFull));
  EXPECT_THAT(Files(), IsEmpty());
  EXPECT_EQ(tier.used(), 0);
}

TEST_F(DiskTierTest, RecoveredFilesCount) {
  MustStore(Reopen(), SampleSnapshot(1));
  const auto file_bytes = static_cast<std::int64_t>(SampleSnapshot(1).File().size());
  EXPECT_EQ(Reopen().used(), file_bytes);
  recovered_[0].copy->Remove();
  EXPECT_EQ(tier_->used(), 0);
}

TEST_F(DiskTierTest, ARemovedCopyIsReadToItsEndByWhoHasBegun) {
  DiskTier& tier = Reopen();
  const SampleSnapshot snapshot(1);
  const std::shared_ptr<TierCopy> copy = MustStore(tier, snapshot);
  const std::int64_t file_bytes = tier.used();
  std::int64_t used_meanwhile = 0;
  file_system_.BeforeEach(Operation::kRead, [&] {
    copy->Remove();
    used_meanwhile = tier.used();
  });
  EXPECT_TRUE(Load(*copy, snapshot).ok());
  EXPECT_EQ(used_meanwhile, file_bytes);
  EXPECT_EQ(tier.used(), 0);
  EXPECT_THAT(Files(), IsEmpty());
  EXPECT_EQ(Load(*copy, snapshot).code(), absl::StatusCode::kNotFound);
  copy->Remove();
  EXPECT_EQ(tier.used(), 0);
  EXPECT_THAT(Incidents(), IsEmpty());
}

TEST_F(DiskTierTest, ACopyRemovedBeforeItsFileWasOpenedIsNotDamaged) {
  DiskTier& tier = Reopen();
  const std::shared_ptr<TierCopy> copy = MustStore(tier, SampleSnapshot(1));
  file_system_.BeforeEach(Operation::kOpen, [&, first = true]() mutable {
    if (std::exchange(first, false)) copy->Remove();
  });
  EXPECT_EQ(Load(*copy, SampleSnapshot(1)).code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Incidents(), IsEmpty());
  EXPECT_EQ(tier.used(), 0);
}

}  // namespace
}  // namespace gdpcache::cache
