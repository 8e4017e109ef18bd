#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cache/snapshots/disk_tier.h"
#include "tests/support/fault_injecting_file_system.h"
#include "tests/support/sample_snapshot.h"
#include "tests/unit/cache/snapshots/disk_tier_fixture.h"

namespace gdpcache::cache {
namespace {

namespace fs = std::filesystem;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = DiskIncident::Kind;
using Operation = test::FaultInjectingFileSystem::Operation;
using test::SampleSnapshot;

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
        EXPECT_EQ(Told(Kind::kReadFailed), 1) << failed.back();
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

}  // namespace
}  // namespace gdpcache::cache
