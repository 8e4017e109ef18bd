#include "server/cache/snapshots/disk_tier.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fault_injecting_backend.h"
#include "tests/support/fault_injecting_file_system.h"
#include "tests/support/heap_backend.h"
#include "tests/support/manual_clock.h"
#include "tests/support/sample_snapshot.h"
#include "tests/support/separate_memory_backend.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::cache {
namespace {

namespace fs = std::filesystem;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;
using Kind = DiskIncident::Kind;
using Operation = test::FaultInjectingFileSystem::Operation;
using test::SampleSnapshot;
using test::SmallSpace;

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;

/// What a tier found when it was opened.
struct Recovered {
  SnapshotRecord record;
  std::shared_ptr<TierCopy> copy;
};

class DiskTierTest : public ::testing::Test {
 protected:
  DiskTierTest() : stream_(*heap_.CreateStream()) {}

  DiskTier::Options Options() {
    DiskTier::Options options;
    options.directory = root_;
    options.capacity = 64 * kMebibyte;
    options.file_system = &file_system_;
    options.report = [this](const DiskIncident& incident) {
      const std::lock_guard lock(mutex_);
      incidents_.push_back(incident);
    };
    return options;
  }

  absl::StatusOr<std::unique_ptr<DiskTier>> TryOpen(const DiskTier::Options& options) {
    recovered_.clear();
    return DiskTier::Open(options, heap_, [this](SnapshotRecord record, std::shared_ptr<TierCopy> copy) {
      recovered_.push_back({std::move(record), std::move(copy)});
    });
  }

  /// A tier of the directory, after the end of the one before.
  DiskTier& Reopen() {
    recovered_.clear();
    tier_ = nullptr;
    absl::StatusOr<std::unique_ptr<DiskTier>> tier = TryOpen(Options());
    EXPECT_TRUE(tier.ok()) << tier.status();
    tier_ = *std::move(tier);
    return *tier_;
  }

  absl::StatusOr<std::shared_ptr<TierCopy>> Store(DiskTier& tier, const SampleSnapshot& snapshot) {
    return tier.Store(snapshot.record(), snapshot.parts(), *stream_);
  }

  /// Must succeed.
  std::shared_ptr<TierCopy> MustStore(DiskTier& tier, const SampleSnapshot& snapshot) {
    absl::StatusOr<std::shared_ptr<TierCopy>> copy = Store(tier, snapshot);
    EXPECT_TRUE(copy.ok()) << copy.status();
    return copy.ok() ? *std::move(copy) : nullptr;
  }

  /// Loads the copy; OK only when it is `snapshot`.
  absl::Status Load(const TierCopy& copy, const SampleSnapshot& snapshot) {
    std::vector<std::byte> data(snapshot.data().size());
    const std::vector<SnapshotPart> parts = test::PartsIn(snapshot.record().space, data.data());
    if (absl::Status status = copy.Load(parts, *stream_); !status.ok()) return status;
    return data == snapshot.data() ? absl::OkStatus() : absl::InternalError("other content than was stored");
  }

  /// Every file below the directory but the lock.
  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root_)) {
      if (!entry.is_directory() && entry.path().filename() != "lock") files.push_back(entry.path());
    }
    return files;
  }

  std::vector<Kind> Incidents() {
    const std::lock_guard lock(mutex_);
    std::vector<Kind> kinds;
    for (const DiskIncident& incident : incidents_) kinds.push_back(incident.kind);
    return kinds;
  }

  std::vector<std::string> RecoveredKeys() const {
    std::vector<std::string> keys;
    for (const Recovered& recovered : recovered_) keys.push_back(recovered.record.key);
    return keys;
  }

  static void Overwrite(const std::string& path, absl::string_view content) {
    fs::remove(path);  // some file systems flush what is truncated
    std::ofstream(path, std::ios::binary) << content;
  }

  static void Age(const std::string& path, std::chrono::hours age) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - age);
  }

  test::TemporaryDirectory directory_;
  std::string root_ = directory_.path() + "/snapshots";
  test::FaultInjectingFileSystem file_system_;
  test::HeapBackend heap_;
  std::unique_ptr<kernels::Stream> stream_;
  std::mutex mutex_;
  std::vector<DiskIncident> incidents_;
  std::unique_ptr<DiskTier> tier_;
  std::vector<Recovered> recovered_;
};

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
  std::ifstream file(Files()[0], std::ios::binary);
  const std::string content((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(content, snapshot.File());
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
          (*tier)->Store(snapshot.record(), test::PartsIn(snapshot.record().space, source->data()), *stream_);
      ASSERT_TRUE(copy.ok()) << copy.status();
      const absl::Status loaded = (*copy)->Load(test::PartsIn(snapshot.record().space, destination->data()), *stream_);
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

// --- incidents ---

TEST(IncidentDigestTest, OneOfAKindIsToldAtOnceAndTheRestOnceInAWhile) {
  test::ManualClock clock;
  std::vector<DiskIncident> told;
  IncidentDigest digest(clock, [&](const DiskIncident& incident) { told.push_back(incident); });
  for (int n = 0; n < 1'000; ++n) digest.Add({Kind::kFull, "a", 1, absl::ResourceExhaustedError("full")});
  digest.Add({Kind::kDamaged, "b", 3, absl::DataLossError("torn")});
  ASSERT_EQ(told.size(), 2);
  EXPECT_EQ(told[0].kind, Kind::kFull);
  EXPECT_EQ(told[0].files, 1);
  EXPECT_EQ(told[1].kind, Kind::kDamaged);
  EXPECT_EQ(told[1].files, 3);
  clock.Advance(IncidentDigest::kPeriod);
  for (int n = 0; n < 2; ++n) digest.Add({Kind::kFull, "c", 1, absl::ResourceExhaustedError("full")});
  ASSERT_EQ(told.size(), 3);
  EXPECT_EQ(told[2].path, "c");
  EXPECT_EQ(told[2].files, 1'000);  // 999 that were not told, and itself
}

// --- the directory ---

TEST_F(DiskTierTest, ASecondServerIsRefused) {
  Reopen();
  const absl::Status refused = TryOpen(Options()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(root_));
  tier_ = nullptr;
  EXPECT_TRUE(TryOpen(Options()).ok());
}

TEST_F(DiskTierTest, ARemovedDirectoryIsMadeAnewByTheNextStore) {
  const SampleSnapshot lost(1);
  const SampleSnapshot next(2);
  const std::shared_ptr<TierCopy> gone = MustStore(Reopen(), lost);
  fs::remove_all(root_);
  EXPECT_EQ(Load(*gone, lost).code(), absl::StatusCode::kDataLoss);
  gone->Remove();
  EXPECT_EQ(tier_->used(), 0);
  const std::shared_ptr<TierCopy> copy = MustStore(*tier_, next);
  EXPECT_TRUE(Load(*copy, next).ok());
  EXPECT_EQ(TryOpen(Options()).status().code(), absl::StatusCode::kFailedPrecondition) << "its lock is held, too";
  Reopen();
  EXPECT_THAT(RecoveredKeys(), ElementsAre(next.record().key));
}

TEST_F(DiskTierTest, RemovedContentsAreMadeAnewToo) {
  Reopen();
  for (const char* name : {"temporary", "lock"}) {
    fs::remove_all(root_ + "/" + name);
    fs::remove_all(root_ + "/temporary");  // what the next store notices
    const SampleSnapshot snapshot(1);
    EXPECT_TRUE(Load(*MustStore(*tier_, snapshot), snapshot).ok()) << name;
    EXPECT_EQ(TryOpen(Options()).status().code(), absl::StatusCode::kFailedPrecondition) << name;
  }
}

TEST_F(DiskTierTest, ADirectoryThatAnotherServerHasTakenMeanwhileIsLeftToIt) {
  Reopen();
  fs::remove_all(root_);
  const absl::StatusOr<std::unique_ptr<DiskTier>> other = TryOpen(Options());
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(Store(*tier_, SampleSnapshot(1)).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(DiskTierTest, RemovalsReachTheMediumWhenAskedFor) {
  std::atomic<int> syncs = 0;
  const std::shared_ptr<TierCopy> first = MustStore(Reopen(), SampleSnapshot(1));
  const std::shared_ptr<TierCopy> second = MustStore(*tier_, SampleSnapshot(2));
  file_system_.BeforeEach(Operation::kSync, [&syncs] { ++syncs; });
  EXPECT_TRUE(tier_->SyncRemovals().ok());
  first->Remove();
  EXPECT_EQ(syncs, 0) << "an eviction may come back";
  EXPECT_TRUE(tier_->SyncRemovals().ok());
  EXPECT_EQ(syncs, 1);
  second->Remove();
  file_system_.FailAlways(Operation::kSync, EIO);
  EXPECT_EQ(tier_->SyncRemovals().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Incidents(), ElementsAre(Kind::kRemoveFailed));
  file_system_.Heal();
  syncs = 0;
  file_system_.BeforeEach(Operation::kSync, [&syncs] { ++syncs; });
  EXPECT_TRUE(tier_->SyncRemovals().ok());
  EXPECT_EQ(syncs, 1) << "it is tried again";
  EXPECT_TRUE(tier_->SyncRemovals().ok());
  EXPECT_EQ(syncs, 1);
}

TEST_F(DiskTierTest, AFileThatCouldNotBeRemovedIsTold) {
  const std::shared_ptr<TierCopy> copy = MustStore(Reopen(), SampleSnapshot(1));
  file_system_.FailAfter(Operation::kUnlink, 0, EACCES);
  copy->Remove();
  EXPECT_EQ(tier_->SyncRemovals().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(tier_->SyncRemovals().ok()) << "once";
}

TEST_F(DiskTierTest, WhatALoadSaysNamesNoPath) {
  const SampleSnapshot snapshot(1);
  const std::shared_ptr<TierCopy> copy = MustStore(Reopen(), snapshot);
  for (const Operation operation : {Operation::kOpen, Operation::kExamine, Operation::kRead}) {
    file_system_.FailAfter(operation, operation == Operation::kOpen ? 1 : 0, EIO);
    const absl::Status status = Load(*copy, snapshot);
    EXPECT_THAT(std::string(status.message()), HasSubstr("its file: "));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr(root_)));
  }
  Overwrite(Files()[0], "torn");
  EXPECT_EQ(Load(*copy, snapshot).code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(Load(*copy, snapshot).message()), Not(HasSubstr(root_)));
  fs::remove(Files()[0]);
  EXPECT_EQ(Load(*copy, snapshot).message(), "its file is not there any more");
  EXPECT_EQ(incidents_.back().path.substr(0, root_.size()), root_) << "the operator is told";
}

TEST_F(DiskTierTest, NothingIsReadableForOthers) {
  const mode_t mask = ::umask(0);
  MustStore(Reopen(), SampleSnapshot(1));
  ::umask(mask);
  const auto mode = [](const std::string& path) {
    struct stat info = {};
    EXPECT_EQ(::lstat(path.c_str(), &info), 0);
    return info.st_mode & 07777;
  };
  EXPECT_EQ(mode(root_), 0700);
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root_)) {
    EXPECT_EQ(mode(entry.path()), entry.is_directory() ? 0700 : 0600) << entry.path();
  }
}

TEST_F(DiskTierTest, ADirectoryThatCannotBeUsedIsNamed) {
  DiskTier::Options options = Options();
  options.directory = directory_.path() + "/no/such";
  EXPECT_THAT(std::string(TryOpen(options).status().message()), HasSubstr("/no/such"));
  options.directory = directory_.path() + "/file";
  Overwrite(options.directory, "");
  EXPECT_EQ(TryOpen(options).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(DiskTierTest, TheLeastRecentlyUsedIsRecoveredFirst) {
  DiskTier& tier = Reopen();
  std::map<std::string, std::string> path_of_key;
  std::map<std::string, std::shared_ptr<TierCopy>> copies;
  std::vector<std::string> known;
  for (std::uint64_t seed : {1, 2, 3, 4}) {
    const SampleSnapshot snapshot(seed);
    copies[snapshot.record().key] = MustStore(tier, snapshot);
    for (const std::string& file : Files()) {
      if (std::find(known.begin(), known.end(), file) != known.end()) continue;
      known.push_back(file);
      path_of_key[snapshot.record().key] = file;
    }
  }
  const auto key = [](std::uint64_t seed) { return SampleSnapshot(seed).record().key; };
  Age(path_of_key[key(3)], std::chrono::hours(9));
  Age(path_of_key[key(1)], std::chrono::hours(8));
  Age(path_of_key[key(4)], std::chrono::hours(7));
  Age(path_of_key[key(2)], std::chrono::hours(6));
  EXPECT_TRUE(Load(*copies[key(1)], SampleSnapshot(1)).ok());
  copies.clear();
  Reopen();
  EXPECT_THAT(RecoveredKeys(), ElementsAre(key(3), key(4), key(2), key(1)));
}

TEST_F(DiskTierTest, OfTwoFilesOfOneKeyTheNewerStays) {
  DiskTier& tier = Reopen();
  SnapshotRecord record = SampleSnapshot(1).record();
  MustStore(tier, SampleSnapshot(record, 1));
  Age(Files()[0], std::chrono::hours(1));
  const SampleSnapshot newer(record, 2);
  MustStore(tier, newer);
  record.space.tenant = "another";
  MustStore(tier, SampleSnapshot(record, 3));
  ASSERT_EQ(Files().size(), 3);
  Reopen();
  EXPECT_EQ(Files().size(), 2);
  ASSERT_EQ(recovered_.size(), 2);
  const std::size_t ours = recovered_[0].record.space.tenant == "another" ? 1 : 0;
  EXPECT_TRUE(Load(*recovered_[ours].copy, newer).ok());
}

TEST_F(DiskTierTest, WhatAKilledServerLeftIsRemoved) {
  Reopen();
  tier_ = nullptr;
  Overwrite(root_ + "/temporary/0123456789abcdef0123456789abcdef.safetensors", SampleSnapshot(1).File());
  Reopen();
  EXPECT_THAT(Files(), IsEmpty());
  EXPECT_THAT(recovered_, IsEmpty());
  EXPECT_THAT(Incidents(), ElementsAre(Kind::kLeftover));
}

TEST_F(DiskTierTest, WhatIsNotOursIsCountedAndLeftAlone) {
  const SampleSnapshot snapshot(1);
  MustStore(Reopen(), snapshot);
  const std::string ours = Files()[0];
  const std::string folder = fs::path(ours).parent_path();
  const std::string digits = fs::path(folder).filename();
  const std::string other_digits = digits == "00" ? "01" : "00";
  const std::string version_2 =
      absl::StrReplaceAll(snapshot.File(), {{R"("format_version":"1")", R"("format_version":"2")"}});
  const auto named = [&](char last) { return folder + "/" + digits + std::string(29, 'a') + last + ".safetensors"; };
  Overwrite(root_ + "/README", "hello");
  Overwrite(root_ + "/temporary/notes", "hello");
  fs::create_directory(root_ + "/lost+found");
  Overwrite(folder + "/notes", "hello");
  Overwrite(named('1'), version_2);
  Overwrite(root_ + "/outside", snapshot.File());
  fs::create_symlink(root_ + "/outside", named('2'));
  fs::create_directory(named('3'));
  ASSERT_EQ(::mkfifo(named('4').c_str(), 0600), 0);
  Overwrite(folder + "/" + other_digits + std::string(30, 'a') + ".safetensors", snapshot.File());
  fs::create_symlink(folder, root_ + "/" + other_digits);
  const std::vector<std::string> before = Files();

  Reopen();
  EXPECT_EQ(recovered_.size(), 1);
  EXPECT_EQ(tier_->incidents().count(Kind::kForeign), 11);
  EXPECT_THAT(Incidents(), ElementsAre(Kind::kForeign)) << "a kind is told once";
  EXPECT_EQ(Files(), before);
  EXPECT_TRUE(Load(*recovered_[0].copy, snapshot).ok());
}

TEST_F(DiskTierTest, ALinkInAFilesPlaceIsNotFollowed) {
  const SampleSnapshot snapshot(1);
  const std::shared_ptr<TierCopy> copy = MustStore(Reopen(), snapshot);
  const std::string path = Files()[0];
  fs::rename(path, root_ + "/elsewhere");
  fs::create_symlink(root_ + "/elsewhere", path);
  EXPECT_EQ(Load(*copy, snapshot).code(), absl::StatusCode::kDataLoss);
  fs::remove(path);
  EXPECT_EQ(Load(*copy, snapshot).code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Incidents(), ElementsAre(Kind::kDamaged, Kind::kDamaged));
}

// --- damage ---

TEST_F(DiskTierTest, EveryDamagedByteIsFoundWhenLoadedAndAfterARestart) {
  const SampleSnapshot snapshot(1);
  const std::string content = snapshot.File();
  std::shared_ptr<TierCopy> copy = MustStore(Reopen(), snapshot);
  const std::string path = Files()[0];
  for (std::size_t at = 0; at < content.size(); ++at) {
    std::string damaged = content;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
    Overwrite(path, damaged);
    ASSERT_EQ(Load(*copy, snapshot).code() == absl::StatusCode::kOk, false) << "byte " << at;
    copy = nullptr;
    Reopen();
    if (!recovered_.empty()) {
      ASSERT_EQ(Load(*recovered_[0].copy, snapshot).code(), absl::StatusCode::kDataLoss) << "byte " << at;
    } else {
      ASSERT_EQ(tier_->incidents().count(Kind::kDamaged) + tier_->incidents().count(Kind::kForeign), 1);
    }
    Overwrite(path, content);  // it may have been removed
    Reopen();
    ASSERT_EQ(recovered_.size(), 1);
    copy = recovered_[0].copy;
    ASSERT_TRUE(Load(*copy, snapshot).ok());
  }
}

TEST_F(DiskTierTest, EveryTruncatedFileIsFoundAndRemovedByTheNextStart) {
  const SampleSnapshot snapshot(1);
  const std::string content = snapshot.File();
  std::shared_ptr<TierCopy> copy = MustStore(Reopen(), snapshot);
  const std::string path = Files()[0];
  for (std::size_t size = 0; size < content.size(); size += 3) {
    Overwrite(path, content.substr(0, size));
    ASSERT_EQ(Load(*copy, snapshot).code(), absl::StatusCode::kDataLoss) << size;
  }
  copy = nullptr;
  for (std::size_t size = 0; size < content.size(); ++size) {
    Overwrite(path, content.substr(0, size));
    Reopen();
    ASSERT_THAT(recovered_, IsEmpty()) << size;
    ASSERT_THAT(Files(), IsEmpty()) << size;
    ASSERT_EQ(tier_->incidents().count(Kind::kDamaged), 1);
  }
}

TEST_F(DiskTierTest, AnotherSnapshotsFileInAFilesPlaceIsFound) {
  const std::shared_ptr<TierCopy> copy = MustStore(Reopen(), SampleSnapshot(1));
  Overwrite(Files()[0], SampleSnapshot(2).File());
  EXPECT_EQ(Load(*copy, SampleSnapshot(1)).code(), absl::StatusCode::kDataLoss);
}

// --- faults of the file system ---

class DiskTierFaultTest : public DiskTierTest, public ::testing::WithParamInterface<int> {};

TEST_P(DiskTierFaultTest, WhicheverStepOfStoringFailsNothingStaysBehind) {
  DiskTier& tier = Reopen();
  const SampleSnapshot snapshot(1);
  std::vector<std::string> failed;
  for (std::int64_t step = 0;; ++step) {
    ASSERT_LT(step, 100);
    for (const fs::directory_entry& entry : fs::directory_iterator(root_)) {  // so that the steps are always the same
      if (entry.path().filename() != "temporary" && entry.is_directory()) fs::remove(entry.path());
    }
    file_system_.FailAnyAfter(step, GetParam());
    const absl::StatusOr<std::shared_ptr<TierCopy>> copy = Store(tier, snapshot);
    if (file_system_.Failed().empty()) {
      ASSERT_TRUE(copy.ok());
      (*copy)->Remove();
      break;
    }
    failed.push_back(file_system_.Failed());
    ASSERT_FALSE(copy.ok()) << failed.back();
    EXPECT_EQ(copy.status().code(),
              GetParam() == ENOSPC ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable)
        << copy.status();
    EXPECT_THAT(Files(), IsEmpty()) << failed.back();
    EXPECT_EQ(tier.used(), 0);
    EXPECT_EQ(Incidents().size(), failed.size());
    file_system_.Heal();
    const std::shared_ptr<TierCopy> next = MustStore(tier, snapshot);
    EXPECT_TRUE(Load(*next, snapshot).ok()) << "after " << failed.back();
    next->Remove();
  }
  EXPECT_THAT(failed, ElementsAre("FreeBytes", "Open", "Write", "Write", "Open", "MakeDirectory", "Sync", "Open",
                                  "Sync", "Rename", "Sync"));
}

INSTANTIATE_TEST_SUITE_P(, DiskTierFaultTest, ::testing::Values(EIO, ENOSPC, EACCES, EMFILE), [](const auto& param) {
  return std::string(param.param == EIO      ? "EIO"
                     : param.param == ENOSPC ? "ENOSPC"
                     : param.param == EACCES ? "EACCES"
                                             : "EMFILE");
});

TEST_F(DiskTierTest, WhicheverStepOfLoadingFailsTheNextTrySucceeds) {
  DiskTier& tier = Reopen();
  const SampleSnapshot snapshot(1);
  const std::shared_ptr<TierCopy> copy = MustStore(tier, snapshot);
  std::vector<std::string> failed;
  for (std::int64_t step = 0;; ++step) {
    ASSERT_LT(step, 100);
    file_system_.FailAnyAfter(step, EIO);
    const absl::Status status = Load(*copy, snapshot);
    if (file_system_.Failed().empty()) break;
    failed.push_back(file_system_.Failed());
    EXPECT_EQ(status.ok(), failed.back() == "Touch") << failed.back() << ": " << status;
    EXPECT_TRUE(Load(*copy, snapshot).ok()) << "after " << failed.back();
  }
  EXPECT_THAT(failed, ElementsAre("Open", "Open", "Examine", "Read", "Read", "Touch"));
  EXPECT_EQ(Incidents().size(), 5);
}

TEST_F(DiskTierTest, WhatTheMediumDoesNotGiveBackIsLost) {
  const std::shared_ptr<TierCopy> copy = MustStore(Reopen(), SampleSnapshot(1));
  file_system_.FailAfter(Operation::kRead, 1, EIO);
  EXPECT_EQ(Load(*copy, SampleSnapshot(1)).code(), absl::StatusCode::kDataLoss);
  file_system_.FailAfter(Operation::kOpen, 0, EMFILE);
  EXPECT_EQ(Load(*copy, SampleSnapshot(1)).code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Incidents(), ElementsAre(Kind::kDamaged, Kind::kReadFailed));
}

TEST_F(DiskTierTest, WhetherAnotherTryMaySucceedTellsTheStatus) {
  const std::shared_ptr<TierCopy> copy = MustStore(Reopen(), SampleSnapshot(1));
  for (const Operation operation : {Operation::kOpen, Operation::kExamine, Operation::kRead}) {
    for (const int error : {EMFILE, ENFILE, ENOMEM}) {
      file_system_.FailAfter(operation, 0, error);
      EXPECT_EQ(Load(*copy, SampleSnapshot(1)).code(), absl::StatusCode::kUnavailable) << error;
    }
    file_system_.FailAfter(operation, 0, EACCES);
    EXPECT_EQ(Load(*copy, SampleSnapshot(1)).code(), absl::StatusCode::kInternal);
  }
  EXPECT_THAT(Incidents(), Each(Kind::kReadFailed));
  EXPECT_EQ(Incidents().size(), 12);
}

TEST_F(DiskTierTest, WhatHasGoneWithItsFolderIsLostAndCountsNoMore) {
  DiskTier& tier = Reopen();
  const std::shared_ptr<TierCopy> copy = MustStore(tier, SampleSnapshot(1));
  fs::remove_all(fs::path(Files()[0]).parent_path());
  EXPECT_EQ(Load(*copy, SampleSnapshot(1)).code(), absl::StatusCode::kDataLoss);
  copy->Remove();
  EXPECT_EQ(tier.used(), 0);
  EXPECT_THAT(Incidents(), ElementsAre(Kind::kDamaged));
}

TEST_F(DiskTierTest, AFileThatCannotBeRemovedStillCounts) {
  DiskTier& tier = Reopen();
  const std::shared_ptr<TierCopy> copy = MustStore(tier, SampleSnapshot(1));
  const std::int64_t used = tier.used();
  file_system_.FailAfter(Operation::kUnlink, 0, EIO);
  copy->Remove();
  EXPECT_EQ(tier.used(), used);
  EXPECT_THAT(Incidents(), ElementsAre(Kind::kRemoveFailed));
  EXPECT_EQ(Load(*copy, SampleSnapshot(1)).code(), absl::StatusCode::kNotFound);
}

TEST_F(DiskTierTest, AnUnfinishedFileThatCannotBeRemovedGoesAtTheNextStart) {
  DiskTier& tier = Reopen();
  file_system_.FailAlways(Operation::kRename, EIO);
  file_system_.FailAlways(Operation::kUnlink, EIO);
  EXPECT_FALSE(Store(tier, SampleSnapshot(1)).ok());
  EXPECT_EQ(Files().size(), 1);
  EXPECT_EQ(tier.used(), 0);
  file_system_.Heal();
  Reopen();
  EXPECT_THAT(Files(), IsEmpty());
  EXPECT_THAT(recovered_, IsEmpty());
}

TEST_F(DiskTierTest, WhicheverStepOfOpeningFailsTheServerStartsOrSaysWhy) {
  const SampleSnapshot snapshot(1);
  MustStore(Reopen(), snapshot);
  tier_ = nullptr;
  bool all_passed = false;
  std::vector<std::string> failed;
  for (std::int64_t step = 0; !all_passed; ++step) {
    ASSERT_LT(step, 100);
    file_system_.FailAnyAfter(step, EIO);
    {
      const absl::StatusOr<std::unique_ptr<DiskTier>> tier = TryOpen(Options());
      all_passed = file_system_.Failed().empty();
      failed.push_back(file_system_.Failed());
      if (!tier.ok()) {
        EXPECT_EQ(tier.status().code(), absl::StatusCode::kUnavailable);
        EXPECT_THAT(std::string(tier.status().message()), HasSubstr(root_));
      } else if (recovered_.empty()) {
        EXPECT_EQ((*tier)->incidents().count(Kind::kReadFailed), 1) << failed.back();
      }
      recovered_.clear();
    }
    file_system_.Heal();
    Reopen();
    ASSERT_EQ(recovered_.size(), 1) << "after " << failed.back();
    EXPECT_TRUE(Load(*recovered_[0].copy, snapshot).ok());
    recovered_.clear();
    tier_ = nullptr;
  }
  EXPECT_EQ(file_system_.open_files(), 0);
  for (const char* operation : {"MakeDirectory", "Open", "Lock", "List", "Examine", "Read"}) {
    EXPECT_THAT(failed, ::testing::Contains(operation));
  }
}

TEST_F(DiskTierTest, FilesAreClosedWhateverHappens) {
  DiskTier& tier = Reopen();
  const std::int64_t open = file_system_.open_files();
  const std::shared_ptr<TierCopy> copy = MustStore(tier, SampleSnapshot(1));
  EXPECT_TRUE(Load(*copy, SampleSnapshot(1)).ok());
  for (std::int64_t step = 0; step < 12; ++step) {
    file_system_.FailAnyAfter(step, EIO);
    Store(tier, SampleSnapshot(2)).IgnoreError();
    file_system_.FailAnyAfter(step, EIO);
    Load(*copy, SampleSnapshot(1)).IgnoreError();
  }
  EXPECT_EQ(file_system_.open_files(), open);
}

// --- threads ---

TEST_F(DiskTierTest, ThreadsStoreLoadAndRemoveAtTheSameTime) {
  DiskTier& tier = Reopen();
  const auto work = [&](std::uint64_t thread) {
    const std::unique_ptr<kernels::Stream> stream = *heap_.CreateStream();
    for (std::uint64_t round = 0; round < 20; ++round) {
      const SampleSnapshot snapshot(thread * 1'000 + round);
      const absl::StatusOr<std::shared_ptr<TierCopy>> copy = tier.Store(snapshot.record(), snapshot.parts(), *stream);
      ASSERT_TRUE(copy.ok()) << copy.status();
      std::vector<std::byte> data(snapshot.data().size());
      std::thread remover([&] { (*copy)->Remove(); });
      const absl::Status status = (*copy)->Load(test::PartsIn(snapshot.record().space, data.data()), *stream);
      remover.join();
      if (status.ok()) {
        EXPECT_EQ(data, snapshot.data());
      } else {
        EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
      }
    }
  };
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < 4; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(tier.used(), 0);
  EXPECT_THAT(Files(), IsEmpty());
  EXPECT_THAT(Incidents(), IsEmpty());
}

}  // namespace
}  // namespace gdpcache::cache
