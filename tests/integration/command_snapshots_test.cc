#include <signal.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/command_support.h"
#include "tests/integration/snapshot_support.h"
#include "tests/support/server_process.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::test {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

std::string Hex(const std::string& key) { return absl::BytesToHexString(key); }

class SnapshotsCommandTest : public ::testing::Test {
 protected:
  SnapshotsCommandTest() {
    const std::int64_t slot = model_.AcquireSlot();
    for (const int number : {1, 2, 3}) {
      model_.Fill(slot, number);
      model_.Save(slot, Key(number));
    }
  }

  ProgramResult Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "snapshots");
    return RunClient(server_.unix_address(), std::move(arguments));
  }

  nlohmann::json Json(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "snapshots");
    return RunJson(server_.unix_address(), std::move(arguments));
  }

  TemporaryDirectory directory_;
  const ServerProcess server_;
  SnapshotModel model_{server_.tcp_address()};
};

TEST_F(SnapshotsCommandTest, ListsAndShows) {
  const ProgramResult list = Run({"list", "model"});
  EXPECT_EQ(list.exit_code, 0);
  EXPECT_THAT(list.output, MatchesRegex("KEY +POSITION +SIZE +TIERS +PINNED +AGE +IDLE\n(.*\n){3}"));
  EXPECT_THAT(list.output, HasSubstr(Hex(Key(2))));
  const nlohmann::json json = Json({"list", "model"});
  ASSERT_EQ(json["snapshots"].size(), 3);
  EXPECT_EQ(json["snapshots"][0]["key"], Hex(Key(1)));
  EXPECT_EQ(json["snapshots"][0]["position"], 1);
  EXPECT_EQ(json["snapshots"][0]["bytes"], 2 * (2 * 8 * 12 * 4 + 5));
  EXPECT_EQ(json["snapshots"][0]["tiers"][0], "device");
  EXPECT_EQ(json["snapshots"][0]["pinned"], false);
  EXPECT_EQ(Json({"show", "model", Hex(Key(2))})["snapshot"]["position"], 2);
  EXPECT_THAT(Run({"show", "model", Hex(Key(2))}).output, HasSubstr(Hex(Key(2))));
  const ProgramResult absent = Run({"show", "model", Hex(Key(4))});
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_THAT(absent.errors, HasSubstr("gdpcache snapshots show: NOT_FOUND: there is no snapshot " + Hex(Key(4))));
  EXPECT_EQ(Run({"list", "another"}).exit_code, 1);
}

TEST_F(SnapshotsCommandTest, ExportsAndImports) {
  const std::string file = directory_.path() + "/snapshot.safetensors";
  const nlohmann::json exported = Json({"export", "model", Hex(Key(2)), file});
  EXPECT_EQ(exported["position"], 2);
  EXPECT_EQ(exported["file_bytes"], std::filesystem::file_size(file));
  EXPECT_EQ(Json({"import", "model", file})["stored"], false);
  EXPECT_EQ(Json({"delete", "model", Hex(Key(2))})["deleted"], 1);
  EXPECT_THAT(Run({"import", "model", file}).output, HasSubstr("stored, position 2"));
  EXPECT_EQ(Json({"import", "model", file, "--key", Hex(Key(9))})["position"], 2);
  EXPECT_TRUE(model_.Has(Key(9)));
  EXPECT_THAT(Run({"export", "model", Hex(Key(9)), file}).output, HasSubstr("wrote " + file));
  for (const std::string& path : {directory_.path() + "/absent", directory_.path()}) {
    const ProgramResult failed = Run({"import", "model", path});
    EXPECT_EQ(failed.exit_code, 1);
    EXPECT_THAT(failed.errors, HasSubstr(path));
  }
  EXPECT_EQ(Run({"export", "model", Hex(Key(4)), file}).exit_code, 1);
}

TEST_F(SnapshotsCommandTest, PinsUnpinsAndDeletes) {
  const std::string pin(absl::StripSuffix(Run({"pin", "model", Hex(Key(1)), Hex(Key(2)), "--ttl", "60"}).output, "\n"));
  EXPECT_EQ(Json({"show", "model", Hex(Key(1))})["snapshot"]["pinned"], true);
  const ProgramResult refused = Run({"delete", "model", Hex(Key(1)), Hex(Key(3))});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.errors, HasSubstr("FAILED_PRECONDITION"));
  EXPECT_TRUE(model_.Has(Key(3)));
  EXPECT_EQ(Json({"unpin", "model", pin})["unpinned"], pin);
  EXPECT_EQ(Run({"unpin", "model", pin}).exit_code, 1);
  EXPECT_EQ(Json({"pin", "model", Hex(Key(2)), "--ttl", "60"})["ttl_ms"], 60'000);
  EXPECT_EQ(Json({"delete", "model", Hex(Key(2)), Hex(Key(4)), "--force"})["deleted"], 1);
  EXPECT_THAT(Run({"delete", "model", Hex(Key(1)), Hex(Key(3))}).output, HasSubstr("deleted 2 of 2"));
  EXPECT_EQ(Run({"list", "model"}).output, "no snapshots\n");
}

TEST_F(SnapshotsCommandTest, InfoShowsTheTiers) {
  EXPECT_THAT(RunClient(server_.unix_address(), {"info"}).output, HasSubstr("snapshots, device            3 in "));
  const nlohmann::json info = RunJson(server_.unix_address(), {"info"});
  EXPECT_EQ(info["snapshot_tiers"][0]["tier"], "device");
  EXPECT_EQ(info["snapshot_tiers"][0]["snapshots"], 3);
}

TEST(PrefixReuseTest, FindsInASecondServerWhatTheFirstHasKept) {
  const TemporaryDirectory directory;
  for (const bool restarted : {false, true}) {
    ServerProcess server({"--snapshot-directory=" + directory.path() + "/snapshots"});
    const ProgramResult result = RunProgram(GDPCACHE_PREFIX_REUSE, {server.unix_address()});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_THAT(result.output,
                HasSubstr(restarted ? "first      1003       960  disk          43                identical"
                                    : "first      1003         0  -           1003  640 896 960   identical"));
    EXPECT_THAT(result.output,
                HasSubstr(restarted ? "second      750       704  disk          46                identical"
                                    : "second      750       640  device       110  704           identical"));
    server.process().Signal(SIGTERM);
    EXPECT_EQ(server.process().Wait(), 0);
  }
}

}  // namespace
}  // namespace gdpcache::test
