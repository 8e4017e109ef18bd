#include <signal.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gdpcache/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/command_support.h"
#include "tests/support/file_content.h"
#include "tests/support/server_process.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

/// As little as it takes to see that everything is measured.
const std::vector<std::string> kShort = {"bench",    "--quick", "--seconds", "0.01",
                                         "--tokens", "1,70",    "--clients", "1,3"};

std::vector<std::string> Short(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = kShort;
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::vector<std::string> Names(const nlohmann::json& list) {
  std::vector<std::string> names;
  for (const nlohmann::json& one : list) names.push_back(one["name"]);
  return names;
}

/// Neither caches nor snapshots.
void ExpectEmpty(const std::string& address) {
  const nlohmann::json info = RunJson(address, {"info"});
  EXPECT_THAT(info["caches"], IsEmpty());
  EXPECT_EQ(info["state_memory_used_bytes"], 0);
  for (const nlohmann::json& tier : info["snapshot_tiers"]) EXPECT_EQ(tier["snapshots"], 0);
}

TEST(BenchCommandTest, MeasuresEverythingOverEitherSocket) {
  ServerProcess server({"--snapshot-host-memory=64MiB"});
  const TemporaryDirectory directory;
  for (const std::string& address : {server.tcp_address(), server.unix_address()}) {
    const std::string output = directory.path() + "/bench.json";
    const std::string plot = directory.path() + "/bench.svg";
    const ProgramResult result = RunClient(address, Short({"--json", "--output", output, "--plot", plot}));
    ASSERT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_EQ(result.errors, "") << "no terminal, no progress";
    const nlohmann::json json = nlohmann::json::parse(result.output);
    EXPECT_EQ(json["server"]["address"], address);
    EXPECT_EQ(json["server"]["backend"], "cpu");
    EXPECT_NE(json["server"]["device"], "");
    EXPECT_NE(json["server"]["version"], "");
    EXPECT_NE(json["date"], "");
    EXPECT_EQ(json["seconds"], 0.01);
    EXPECT_EQ(json["model"]["slot_bytes"], 4 * 8 * 64 * 64 * 4);
    EXPECT_THAT(json["skipped"], IsEmpty());
    EXPECT_THAT(Names(json["measurements"]),
                ElementsAre("kernel/1", "kernel/70", "prefill/1/unary", "prefill/1/stream", "prefill/1/shared",
                            "prefill/70/unary", "prefill/70/stream", "prefill/70/shared", "decode/1", "decode/3",
                            "slots/copy", "slots/read", "slots/write", "snapshots/save", "snapshots/lookup",
                            "snapshots/restore/device", "snapshots/restore/host"));
    for (const nlohmann::json& figure : json["measurements"]) {
      const std::string name = figure["name"];
      const bool throughput = absl::StartsWith(name, "decode/");
      EXPECT_EQ(figure["unit"], throughput ? "calls/s" : "us") << name;
      EXPECT_EQ(figure["better"], throughput ? "more" : "less") << name;
      EXPECT_EQ(figure["value"], figure[throughput ? "calls_per_second" : "p50_us"]) << name;
      EXPECT_GT(figure["p50_us"], 0) << name;
      EXPECT_GE(figure["p99_us"], figure["p50_us"]) << name;
      EXPECT_GT(figure["calls_per_second"], 0) << name;
      EXPECT_GE(figure["calls"], throughput ? 1 : 5) << name;
      EXPECT_EQ(figure.contains("bytes"), !throughput && name != "snapshots/lookup") << name;
      EXPECT_GT(figure.value("bytes", 1), 0) << name;
      double sum = 0;
      for (const nlohmann::json& part : figure["yardstick"]["parts"]) {
        EXPECT_NE(part["name"], "") << name;
        EXPECT_GT(part["value"], 0) << name;
        sum += part["value"].get<double>();
      }
      EXPECT_DOUBLE_EQ(figure["yardstick"]["value"], sum) << name;
      EXPECT_DOUBLE_EQ(figure["ratio"], figure["value"].get<double>() / sum) << name;
    }
    EXPECT_EQ(nlohmann::json::parse(FileContent(output)), json);
    EXPECT_THAT(FileContent(plot), StartsWith("<svg "));
    EXPECT_THAT(FileContent(plot), HasSubstr(">snapshots/restore/host<"));
    ExpectEmpty(address);
  }
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().Wait(), 0);
  EXPECT_THAT(server.process().Errors(), Not(HasSubstr(" failed: "))) << "a call that nobody needed";
}

TEST(BenchCommandTest, EachIsComparedWithWhatItsNamePromises) {
  const ServerProcess server;
  const nlohmann::json json =
      RunJson(server.unix_address(), Short({"--only", "prefill", "--only", "decode", "--only", "slots/read"}));
  const auto yardsticks = [&json](const std::string& name) {
    for (const nlohmann::json& figure : json["measurements"]) {
      if (figure["name"] == name) return Names(figure["yardstick"]["parts"]);
    }
    return std::vector<std::string>();
  };
  EXPECT_THAT(yardsticks("prefill/1/unary"), ElementsAre("empty RPC", "kernel"));
  EXPECT_THAT(yardsticks("prefill/1/stream"), ElementsAre("empty RPC", "kernel"));
  EXPECT_THAT(yardsticks("prefill/70/unary"), ElementsAre("byte pump", "kernel"));
  EXPECT_THAT(yardsticks("prefill/70/stream"), ElementsAre("byte pump", "kernel"));
  EXPECT_THAT(yardsticks("prefill/70/shared"), ElementsAre("empty RPC", "kernel"));
  EXPECT_THAT(yardsticks("decode/1"), ElementsAre("empty RPC"));
  EXPECT_THAT(yardsticks("decode/3"), ElementsAre("one client"));
  EXPECT_THAT(yardsticks("slots/read"), ElementsAre("byte pump"));
}

TEST(BenchCommandTest, TheTableTellsWhatWasSkippedAndOnlyPicks) {
  const ServerProcess server({"--snapshot-device-memory=0"});
  const ProgramResult all = RunClient(server.tcp_address(), Short({}));
  EXPECT_EQ(all.exit_code, 0) << all.errors;
  EXPECT_THAT(all.output, HasSubstr("\nprefill/1/unary "));
  EXPECT_THAT(all.output, HasSubstr("\nskipped snapshots/save: the server keeps no snapshots\n"));

  const nlohmann::json one = RunJson(server.tcp_address(), Short({"--only", "decode/3", "--only", "kernel/1"}));
  EXPECT_THAT(Names(one["measurements"]), UnorderedElementsAre("decode/3", "kernel/1"));

  const nlohmann::json some = RunJson(server.tcp_address(), Short({"--only", "copy", "--only", "restore"}));
  EXPECT_THAT(Names(some["measurements"]), ElementsAre("slots/copy"));
  EXPECT_THAT(Names(some["skipped"]), ElementsAre("snapshots/restore/device", "snapshots/restore/host"));

  const ProgramResult refused = RunClient(server.tcp_address(), Short({"--only", "snapshots/save"}));
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.errors,
              HasSubstr("gdpcache bench: UNIMPLEMENTED: snapshots/save: the server keeps no snapshots"));
  ExpectEmpty(server.tcp_address());
}

TEST(BenchCommandTest, NamesBothSizesWhereTheServerLacksMemory) {
  const ServerProcess server({"--state-memory=1MiB", "--snapshot-device-memory=256KiB"});
  const ProgramResult states = RunClient(server.tcp_address(), {"bench", "--model", "4x8x64x128", "--clients", "8"});
  EXPECT_EQ(states.exit_code, 1);
  EXPECT_THAT(states.errors, HasSubstr("RESOURCE_EXHAUSTED: the benchmark's states take 2.0 MiB; the server has 1.0 "
                                       "MiB of 1.0 MiB left"));
  const ProgramResult snapshots =
      RunClient(server.tcp_address(), Short({"--model", "4x8x32x64", "--only", "snapshots/save"}));
  EXPECT_EQ(snapshots.exit_code, 0) << snapshots.errors;
  const ProgramResult large =
      RunClient(server.tcp_address(), Short({"--model", "4x8x64x64", "--only", "snapshots/save"}));
  EXPECT_EQ(large.exit_code, 1);
  EXPECT_THAT(large.errors, HasSubstr("a snapshot takes 512.0 KiB, the server's device tier has 256.0 KiB"));
  ExpectEmpty(server.tcp_address());
}

TEST(BenchCommandTest, FailsBeforeItMeasuresWhereAFileCannotBeWritten) {
  const ServerProcess server;
  const TemporaryDirectory directory;
  const std::string good = directory.path() + "/bench.json";
  const std::string bad = directory.path() + "/absent/bench.svg";
  const ProgramResult result =
      RunClient(server.tcp_address(), {"bench", "--seconds", "1000", "--output", good, "--plot", bad});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr(bad + " cannot be written"));
  EXPECT_FALSE(std::filesystem::exists(good)) << "there is nothing to write into it";
}

TEST(BenchCommandTest, LeavesNothingBehindWhenInterrupted) {
  const ServerProcess server;
  const std::string& address = server.tcp_address();
  const absl::StatusOr<Client> client = Client::Connect(address);
  ASSERT_TRUE(client.ok()) << client.status();
  for (const auto& [only, signal_number] : {std::pair{"prefill/70/stream", SIGINT}, std::pair{"decode/3", SIGINT},
                                            std::pair{"slots/read", SIGTERM}, std::pair{"snapshots/restore", SIGINT}}) {
    std::vector<std::string> arguments = {"bench", "--quick", "--seconds", "1000", "--tokens", "70", "--clients", "3"};
    arguments.insert(arguments.end(), {"--only", only, "--server", address});
    Process bench(GDPCACHE_COMMAND, arguments);
    // Until it has what it has to give back.
    const absl::Time give_up = absl::Now() + absl::Seconds(60);
    for (bool there = false; !there && absl::Now() < give_up;) {
      const absl::StatusOr<ServerInfo> info = client->GetServerInfo();
      ASSERT_TRUE(info.ok()) << info.status();
      const bool snapshots = absl::StartsWith(only, "snapshots");
      there = snapshots ? info->snapshot_tiers.front().snapshots > 0
                        : !info->caches.empty() && info->caches.front().held_slots > 0;
    }
    bench.Signal(signal_number);
    EXPECT_EQ(bench.Wait(), 1) << only;
    EXPECT_THAT(bench.Errors(), HasSubstr("gdpcache bench: CANCELLED: interrupted")) << only;
    ExpectEmpty(address);
  }
}

}  // namespace
}  // namespace gdpcache::test
