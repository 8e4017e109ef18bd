#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cache/snapshots/disk_tier.h"
#include "tests/support/fault_injecting_file_system.h"
#include "tests/support/sample_snapshot.h"
#include "tests/unit/cache/snapshots/disk_tier_fixture.h"

namespace gdpcache::cache {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Kind = DiskIncident::Kind;
using Operation = test::FaultInjectingFileSystem::Operation;
using test::SampleSnapshot;

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
  EXPECT_EQ(Told(Kind::kForeign), 11);
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
      ASSERT_EQ(Told(Kind::kDamaged) + Told(Kind::kForeign), 1);
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
    ASSERT_EQ(Told(Kind::kDamaged), 1);
  }
}

TEST_F(DiskTierTest, AnotherSnapshotsFileInAFilesPlaceIsFound) {
  const std::shared_ptr<TierCopy> copy = MustStore(Reopen(), SampleSnapshot(1));
  Overwrite(Files()[0], SampleSnapshot(2).File());
  EXPECT_EQ(Load(*copy, SampleSnapshot(1)).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace gdpcache::cache
