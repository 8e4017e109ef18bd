// How gdpcached starts, shares the machine with others of its kind, loses clients and ends.

#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/control_client.h"
#include "tests/support/eventually.h"
#include "tests/support/process.h"
#include "tests/support/raw_call.h"
#include "tests/support/server_process.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache {
namespace {

using test::ControlClient;
using test::ProgramResult;
using test::RunProgram;
using test::ServerProcess;
using test::ServerProgram;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

TEST(LifecycleTest, TheReadyLineNamesWhatIsServed) {
  ServerProcess both;
  EXPECT_EQ(both.ready_line(), "ready address=" + both.tcp_address() + " unix=" + both.unix_path() + " backend=cpu");
  EXPECT_THAT(both.tcp_address(), MatchesRegex("127\\.0\\.0\\.1:[1-9][0-9]*"));
  const ServerProcess unix_only({"--listen="});
  EXPECT_EQ(unix_only.ready_line(), "ready unix=" + unix_only.unix_path() + " backend=cpu");
  const ServerProcess tcp_only({"--unix=", "--listen=127.0.0.1:0,127.0.0.2:0"});
  EXPECT_THAT(tcp_only.ready_line(),
              MatchesRegex("ready address=127\\.0\\.0\\.1:[0-9]+ address=127\\.0\\.0\\.2:[0-9]+ backend=cpu"));
}

TEST(LifecycleTest, ConfiguredCachesExistFromTheStart) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/config";
  std::ofstream(path) << R"(
    threads: 1
    caches { name: "model" geometry { layers: 2 slots: 4 heads: 2 key_dim: 8 value_dim: 8 } fingerprint: "model@1" })";
  const ServerProcess server({"--config=" + path});
  const v1::GetServerInfoResponse info = ControlClient(test::Connect(server.tcp_address())).GetServerInfo();
  ASSERT_THAT(info.caches(), SizeIs(1));
  EXPECT_EQ(info.caches(0).fingerprint(), "model@1");
  EXPECT_THAT(info.device(), HasSubstr("1 thread"));
}

TEST(LifecycleTest, TheSocketIsForItsUserOnly) {
  const ServerProcess server;
  struct stat status = {};
  ASSERT_EQ(stat(server.unix_path().c_str(), &status), 0);
  EXPECT_TRUE(S_ISSOCK(status.st_mode));
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST(LifecycleTest, ASecondServerCannotTakeTheSocket) {
  const ServerProcess server;
  const ProgramResult second =
      RunProgram(ServerProgram(), {"--listen=", "--backend=cpu", "--unix=" + server.unix_path()});
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_EQ(second.output, "");
  EXPECT_THAT(second.errors, HasSubstr("another server serves " + server.unix_path()));
  EXPECT_EQ(test::CheckHealth(test::Connect(server.unix_address()), ""), 1) << "the first goes on";
}

TEST(LifecycleTest, ASecondServerCannotTakeThePort) {
  const ServerProcess server;
  const ProgramResult second =
      RunProgram(ServerProgram(), {"--listen=" + server.tcp_address(), "--backend=cpu", "--unix="});
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_EQ(second.output, "");
  EXPECT_THAT(second.errors, HasSubstr("cannot listen on " + server.tcp_address() + ": Address already in use"));
}

TEST(LifecycleTest, AKilledServersSocketIsReplaced) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/socket";
  {
    ServerProcess killed({"--listen=", "--unix=" + path});
    killed.process().Signal(SIGKILL);
    EXPECT_EQ(killed.process().Wait(), -SIGKILL);
  }
  for (const char* left : {"", ".fd", ".lock"}) EXPECT_TRUE(std::filesystem::exists(path + left)) << left;
  ServerProcess next({"--listen=", "--unix=" + path});
  EXPECT_EQ(test::CheckHealth(test::Connect("unix:" + path), ""), 1);
  next.process().Signal(SIGTERM);
  EXPECT_EQ(next.process().Wait(), 0);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(LifecycleTest, AFileThatIsNoSocketIsLeftAlone) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/precious";
  std::ofstream(path) << "data";
  const ProgramResult result = RunProgram(ServerProgram(), {"--listen=", "--backend=cpu", "--unix=" + path});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr(path + " exists and is not a socket"));
  EXPECT_TRUE(std::filesystem::is_regular_file(path));
  EXPECT_FALSE(std::filesystem::exists(path + ".lock"));
}

TEST(LifecycleTest, SessionsOfVanishedClientsExpire) {
  const ServerProcess server;
  ControlClient observer(test::Connect(server.tcp_address()));
  observer.CreateCache(ControlClient::SmallCache("a"));
  {
    ControlClient killed(test::Connect(server.tcp_address()));
    killed.AcquireSlots(killed.OpenSession("a", 100), 3);
  }
  const std::string living = observer.OpenSession("a");
  observer.AcquireSlots(living, 1);
  EXPECT_TRUE(test::Eventually([&] { return observer.ListSlots("a").free_slots() == 7; }));
}

TEST(LifecycleTest, SignalsStopItCleanly) {
  for (const int signal_number : {SIGTERM, SIGINT}) {
    ServerProcess server;
    ControlClient client(test::Connect(server.tcp_address()));
    client.CreateCache(ControlClient::SmallCache("a"));
    client.AcquireSlots(client.OpenSession("a"), 2);
    server.process().Signal(signal_number);
    EXPECT_EQ(server.process().Wait(), 0) << server.process().Errors();
    EXPECT_EQ(server.process().ReadLine(), std::nullopt) << "stdout has the ready line only";
    EXPECT_FALSE(std::filesystem::exists(server.unix_path()));
    EXPECT_FALSE(std::filesystem::exists(server.unix_path() + ".lock"));
  }
}

TEST(LifecycleTest, LogsAreJsonLinesWhenAskedFor) {
  ServerProcess server({"--log-format=json"});
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().Wait(), 0);
  const std::string errors = server.process().Errors();
  EXPECT_THAT(errors, HasSubstr(R"("level": "info", "message": "stopped"})"));
  EXPECT_EQ(errors.find('{'), 0u);
}

}  // namespace
}  // namespace gdpcache
