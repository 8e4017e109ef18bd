// Snapshots on disk: what is left of them when the server stops, is killed, and starts anew.

#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/snapshot_support.h"
#include "tests/support/eventually.h"
#include "tests/support/server_process.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::test {
namespace {

using ::testing::Contains;
using ::testing::SizeIs;

class SnapshotRestartTest : public ::testing::Test {
 protected:
  std::unique_ptr<ServerProcess> Start(std::vector<std::string> flags = {}) {
    flags.push_back("--snapshot-directory=" + Directory());
    return std::make_unique<ServerProcess>(flags);
  }

  std::string Directory() const { return directory_.path() + "/snapshots"; }

  static void Stop(ServerProcess& server) {
    server.process().Signal(SIGTERM);
    EXPECT_EQ(server.process().Wait(), 0) << server.process().Errors();
  }

  static void Kill(ServerProcess& server) {
    server.process().Signal(SIGKILL);
    EXPECT_EQ(server.process().Wait(), -SIGKILL);
  }

  static void SaveAll(SnapshotModel& model, const std::vector<int>& numbers) {
    const std::int64_t slot = model.AcquireSlot();
    for (const int number : numbers) {
      model.Fill(slot, number);
      EXPECT_EQ(model.Save(slot, Key(number)).result, SnapshotResult::kStored);
    }
  }

  static bool IsOnDisk(const Snapshot& snapshot) {
    return std::find(snapshot.tiers.begin(), snapshot.tiers.end(), SnapshotTier::kDisk) != snapshot.tiers.end();
  }

  /// Every snapshot that is there holds what Fill once put into its slot; returns their keys.
  static std::set<std::string> CheckAll(SnapshotModel& model) {
    std::set<std::string> keys;
    const std::int64_t slot = model.AcquireSlot();
    for (const Snapshot& snapshot : model.List()) {
      const absl::StatusOr<std::vector<std::int64_t>> restored = model.Restore(snapshot.key, {slot});
      EXPECT_TRUE(restored.ok()) << restored.status();
      EXPECT_EQ(snapshot.key, Key(static_cast<int>(snapshot.position)));
      EXPECT_TRUE(model.IsFilled(slot, static_cast<int>(snapshot.position))) << snapshot.position;
      keys.insert(snapshot.key);
    }
    return keys;
  }

  TemporaryDirectory directory_;
};

TEST_F(SnapshotRestartTest, AKeptPrefixIsContinuedByTheNextServerBitForBit) {
  std::string whole;
  {
    const std::unique_ptr<ServerProcess> server = Start();
    SnapshotModel model(server->tcp_address());
    const std::int64_t slot = model.AcquireSlot();
    model.Prefill(slot, 1, 0, 48, {{0, 2, Key(32), ""}});
    model.Prefill(slot, 1, 48, 100);
    whole = model.State(slot);
    Stop(*server);
  }
  const std::unique_ptr<ServerProcess> server = Start();
  SnapshotModel model(server->unix_address());
  const auto match = model.client().LookupPrefix("model", {Key(16), Key(32), Key(48)});
  ASSERT_TRUE(match.ok() && match->has_value()) << match.status();
  EXPECT_EQ((*match)->index, 1);
  EXPECT_THAT((*match)->snapshot.tiers, Contains(SnapshotTier::kDisk));
  const std::int64_t slot = model.AcquireSlot();
  ASSERT_EQ(model.Restore(Key(32), {slot}).value(), std::vector<std::int64_t>{32});
  model.Prefill(slot, 1, 32, 100);
  EXPECT_TRUE(model.State(slot) == whole);
}

TEST_F(SnapshotRestartTest, WrittenThroughTheyAreThereAfterAKill) {
  const std::unique_ptr<ServerProcess> killed = Start();
  {
    SnapshotModel model(killed->tcp_address());
    SaveAll(model, {1, 2, 3, 4, 5});
    ASSERT_TRUE(Eventually([&model] {
      for (const Snapshot& snapshot : model.List()) {
        if (!IsOnDisk(snapshot)) return false;
      }
      return true;
    }));
    Kill(*killed);
  }
  const std::unique_ptr<ServerProcess> server = Start();
  SnapshotModel model(server->tcp_address());
  EXPECT_THAT(CheckAll(model), SizeIs(5));
}

TEST_F(SnapshotRestartTest, WrittenBackTheyAreFlushedWhenTheServerStops) {
  {
    const std::unique_ptr<ServerProcess> server = Start({"--snapshot-write=back"});
    SnapshotModel model(server->tcp_address());
    SaveAll(model, {1, 2, 3, 4, 5});
    for (const Snapshot& snapshot : model.List()) EXPECT_FALSE(IsOnDisk(snapshot));
    Stop(*server);
  }
  const std::unique_ptr<ServerProcess> server = Start();
  SnapshotModel model(server->tcp_address());
  EXPECT_THAT(CheckAll(model), SizeIs(5));
}

TEST_F(SnapshotRestartTest, AFlushWithoutTimeLosesThemAndSaysSo) {
  const std::unique_ptr<ServerProcess> server = Start({"--snapshot-write=back", "--snapshot-flush-timeout=0s"});
  {
    SnapshotModel model(server->tcp_address());
    SaveAll(model, {1, 2, 3, 4, 5});
  }
  Stop(*server);
  EXPECT_THAT(server->process().Errors(), ::testing::HasSubstr(" lost"));
}

TEST_F(SnapshotRestartTest, WhatIsDeletedStaysDeleted) {
  {
    const std::unique_ptr<ServerProcess> server = Start();
    SnapshotModel model(server->tcp_address());
    SaveAll(model, {1, 2});
    ASSERT_TRUE(Eventually([&model] { return IsOnDisk(model.List().at(0)); }));
    ASSERT_EQ(model.client().DeleteSnapshots("model", {Key(1)}).value(), 1);
    Stop(*server);
  }
  const std::unique_ptr<ServerProcess> server = Start();
  SnapshotModel model(server->tcp_address());
  EXPECT_EQ(CheckAll(model), std::set<std::string>{Key(2)});
}

TEST_F(SnapshotRestartTest, WhatIsDeletedStaysDeletedAfterAKill) {
  std::set<std::string> left;
  {
    const std::unique_ptr<ServerProcess> server = Start();
    SnapshotModel model(server->tcp_address());
    std::vector<int> numbers;
    for (int number = 1; number <= 20; ++number) numbers.push_back(number);
    SaveAll(model, numbers);  // some are being written when they are deleted
    std::vector<std::string> keys;
    for (const int number : numbers) {
      if (number % 4 == 0) {
        left.insert(Key(number));
      } else {
        keys.push_back(Key(number));
      }
    }
    ASSERT_EQ(model.client().DeleteSnapshots("model", keys).value(), 15);
    Kill(*server);
  }
  const std::unique_ptr<ServerProcess> server = Start();
  SnapshotModel model(server->tcp_address());
  for (const std::string& key : CheckAll(model)) EXPECT_THAT(left, Contains(key));
}

TEST_F(SnapshotRestartTest, ARemovedDirectoryIsUsedAgain) {
  const std::unique_ptr<ServerProcess> server = Start({"--snapshot-device-memory=1MiB"});
  SnapshotModel model(server->tcp_address());
  SaveAll(model, {1});
  ASSERT_TRUE(Eventually([&model] { return IsOnDisk(model.List().at(0)); }));
  std::filesystem::remove_all(Directory());
  SaveAll(model, {2});
  EXPECT_TRUE(Eventually([&model] { return IsOnDisk(model.List().at(1)); }));
  Kill(*server);
  const std::unique_ptr<ServerProcess> next = Start();
  SnapshotModel after(next->tcp_address());
  EXPECT_EQ(CheckAll(after), std::set<std::string>{Key(2)});
}

TEST_F(SnapshotRestartTest, WithoutADirectoryNothingOutlivesTheServer) {
  for (int round = 0; round < 2; ++round) {
    ServerProcess server({"--snapshot-host-memory=1MiB"});
    SnapshotModel model(server.tcp_address());
    EXPECT_THAT(model.List(), SizeIs(0));
    SaveAll(model, {1});
    Stop(server);
  }
}

TEST_F(SnapshotRestartTest, ADirectoryThatCannotBeUsedIsToldAtTheStart) {
  const ProgramResult absent = RunProgram(
      ServerProgram(),
      {"--backend=cpu", "--listen=", "--unix=" + Directory() + ".s", "--snapshot-directory=/absent/snapshots"});
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_THAT(absent.errors, ::testing::HasSubstr("/absent/snapshots"));
}

/// Saves, overwrites by deleting first, and restores, until the server is gone.
class Load {
 public:
  Load(const std::string& address, std::uint64_t seed) : thread_([this, address, seed] { Run(address, seed); }) {}
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  ~Load() { thread_.join(); }

  int saves() const { return saves_; }

 private:
  void Run(const std::string& address, std::uint64_t seed) {
    absl::StatusOr<Client> client = Client::Connect(address);
    if (!client.ok()) return;
    absl::StatusOr<Session> session = client->OpenSession("model");
    if (!session.ok()) return;
    const absl::StatusOr<std::vector<std::int64_t>> slots = session->AcquireSlots(1);
    if (!slots.ok()) return;
    std::mt19937_64 random(seed);
    while (true) {
      const int number = 1 + static_cast<int>(random() % 40);
      absl::Status status;
      if (random() % 3 == 0) {
        status = client->DeleteSnapshots("model", {Key(number)}).status();
      } else {
        status = SnapshotModel::Fill(*session, slots->front(), number);
        if (status.ok()) status = session->SaveSnapshots({{slots->front(), Key(number)}}).status();
        if (status.ok()) ++saves_;
      }
      if (!status.ok()) {
        EXPECT_TRUE(absl::IsUnavailable(status)) << status;
        return;
      }
    }
  }

  std::atomic<int> saves_ = 0;
  std::thread thread_;
};

/// Rounds of killing: more with GDPCACHE_KILL_ROUNDS, see `./dev crash`.
int KillRounds() {
  const char* const wanted = std::getenv("GDPCACHE_KILL_ROUNDS");
  int rounds = 0;
  return wanted != nullptr && absl::SimpleAtoi(wanted, &rounds) ? rounds : 10;
}

TEST_F(SnapshotRestartTest, KilledAtAnyMomentItNeverYieldsAWrongStateAndLeavesNoFileBehind) {
  std::mt19937_64 random(1);
  std::set<std::string> on_disk;  // when the last server was killed, and nobody has deleted them since
  const int rounds = KillRounds();
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    // Memory for a few only, so that they come and go; in every other round written back.
    const std::unique_ptr<ServerProcess> server =
        Start({"--snapshot-device-memory=32KiB", "--snapshot-disk-size=1MiB",
               round % 2 == 0 ? "--snapshot-write=through" : "--snapshot-write=back"});
    EXPECT_TRUE(std::filesystem::is_empty(Directory() + "/temporary"));
    SnapshotModel model(server->tcp_address());
    const std::set<std::string> found = CheckAll(model);
    for (const std::string& key : on_disk) EXPECT_THAT(found, Contains(key)) << "round " << round;
    std::int64_t files = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(Directory())) {
      files += entry.path().extension() == ".safetensors" ? 1 : 0;
    }
    EXPECT_EQ(files, static_cast<std::int64_t>(found.size()));
    on_disk.clear();
    {
      Load first(server->unix_address(), random());
      Load second(server->tcp_address(), random());
      const int enough = static_cast<int>(random() % 60);
      EXPECT_TRUE(Eventually([&] { return first.saves() + second.saves() >= enough; }));
      Kill(*server);
    }
    // A round in between, in which nobody deletes anything: what has reached the disk must be there in the next.
    const std::unique_ptr<ServerProcess> quiet = Start();
    SnapshotModel reader(quiet->tcp_address());
    CheckAll(reader);
    EXPECT_TRUE(reader.client().DeleteSnapshots("model", {Key(1'000), Key(1'001)}).ok());
    SaveAll(reader, {1'000, 1'001});
    for (const Snapshot& snapshot : reader.List()) {
      if (IsOnDisk(snapshot)) on_disk.insert(snapshot.key);
    }
    Kill(*quiet);
  }
}

}  // namespace
}  // namespace gdpcache::test
