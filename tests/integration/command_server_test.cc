#include <signal.h>

#include <string>
#include <vector>

#include "gdpcache/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/command_support.h"
#include "tests/integration/half_sent_write.h"
#include "tests/support/control_client.h"
#include "tests/support/eventually.h"
#include "tests/support/server_process.h"

namespace gdpcache::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<std::string> kCreate = {"caches",   "create",
                                          "model/a",  "--layers",
                                          "2",        "--slots",
                                          "4",        "--heads",
                                          "2",        "--key-dim",
                                          "8",        "--value-dim",
                                          "16",       "--num-householder",
                                          "3",        "--state-dtype",
                                          "bfloat16", "--auxiliary-bytes",
                                          "100",      "--fingerprint",
                                          "r1"};

TEST(InfoCommandTest, ShowsTheServerAsTextAndJson) {
  const ServerProcess server;
  const ProgramResult text = RunClient(server.tcp_address(), {"info"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.output, HasSubstr("backend                      cpu\n"));
  EXPECT_THAT(text.output, HasSubstr(server.tcp_address()));
  ASSERT_EQ(RunClient(server.tcp_address(), kCreate).exit_code, 0);
  const nlohmann::json json = RunJson(server.unix_address(), {"info"});
  EXPECT_EQ(json["backend"], "cpu");
  EXPECT_EQ(json["caches"][0]["name"], "model/a");
  EXPECT_GT(json["limits"]["max_message_bytes"], 0);
  EXPECT_GT(json["state_memory_used_bytes"], 0);
}

TEST(InfoCommandTest, ShowsWhatClientsMayShare) {
  const ServerProcess server({"--shared-memory=3MiB"});
  EXPECT_THAT(RunClient(server.tcp_address(), {"info"}).output,
              HasSubstr("shared memory, at most       3.0 MiB, 10000 regions and events\n"));
  const nlohmann::json limits = RunJson(server.tcp_address(), {"info"})["limits"];
  EXPECT_EQ(limits["shared_memory_bytes"], 3 << 20);
  EXPECT_EQ(limits["max_regions"], 10'000);
  const ServerProcess without({"--shared-memory=0"});
  EXPECT_THAT(RunClient(without.tcp_address(), {"info"}).output, HasSubstr("shared memory, at most       none\n"));
}

TEST(InfoCommandTest, ShowsTheBuildAndEveryLimit) {
  const ServerProcess server({"--max-calls=9", "--max-queue-wait=8ms", "--max-connection-calls=7",
                              "--max-tenant-sessions=6", "--max-tenant-slots=5", "--max-sessions=12"});
  const std::string text = RunClient(server.tcp_address(), {"info"}).output;
  const nlohmann::json json = RunJson(server.tcp_address(), {"info"});
  const nlohmann::json& build = json["build"];
  ASSERT_FALSE(build["libraries"].empty());
  EXPECT_THAT(RunProgram(ServerProgram(), {"--version"}).output,
              HasSubstr("\ncommit " + build["commit"].get<std::string>() + "\n" + build["compiler"].get<std::string>() +
                        "\n" + build["libraries"][0].get<std::string>()));
  EXPECT_THAT(text, HasSubstr("build                        commit " + build["commit"].get<std::string>() + ", " +
                              build["compiler"].get<std::string>() + ", " + build["libraries"][0].get<std::string>()));
  EXPECT_EQ(json["expected_wait_ms"], 0);
  EXPECT_THAT(text, HasSubstr("\nexpected wait                0\n"));
  const nlohmann::json& limits = json["limits"];
  EXPECT_EQ(limits["max_calls"], 9);
  EXPECT_EQ(limits["max_connection_calls"], 7);
  EXPECT_THAT(text, HasSubstr("\ncalls, at most               9, 7 of one connection\n"));
  EXPECT_EQ(limits["max_queue_wait_ms"], 8);
  EXPECT_THAT(text, HasSubstr("\nexpected wait, at most       8ms\n"));
  EXPECT_EQ(limits["max_tenant_sessions"], 6);
  EXPECT_THAT(text, HasSubstr("\nsessions, at most            12, 6 of one tenant\n"));
  EXPECT_EQ(limits["max_tenant_slots"], 5);
  EXPECT_THAT(text, HasSubstr("\nslots, at most               5 of one tenant\n"));
  const std::string unlimited = RunClient(ServerProcess().tcp_address(), {"info"}).output;
  EXPECT_THAT(unlimited, HasSubstr("\nsessions, at most            10000\n"));
  EXPECT_THAT(unlimited, Not(HasSubstr("slots, at most")));
}

TEST(CachesCommandTest, CreatesListsAndDeletes) {
  const ServerProcess server;
  const std::string address = server.unix_address();
  EXPECT_THAT(RunClient(address, {"caches"}).output, HasSubstr("no caches"));
  nlohmann::json created = RunJson(address, kCreate);
  EXPECT_EQ(created["created"], true);
  EXPECT_EQ(created["cache"]["geometry"]["state_dtype"], "bfloat16");
  EXPECT_EQ(created["cache"]["geometry"]["num_householder"], 3);
  EXPECT_EQ(created["cache"]["geometry"]["auxiliary_bytes"], 100);
  EXPECT_EQ(created["cache"]["fingerprint"], "r1");
  EXPECT_EQ(RunJson(address, kCreate)["created"], false);

  std::vector<std::string> other = kCreate;
  other[6] = "5";
  const ProgramResult refused = RunClient(address, other);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.errors, HasSubstr("gdpcache caches create: ALREADY_EXISTS: "));

  EXPECT_THAT(RunClient(address, {"caches", "list"}).output, HasSubstr("model/a"));
  EXPECT_EQ(RunJson(address, {"caches", "list"})["caches"].size(), 1);
  EXPECT_EQ(RunJson(address, {"caches", "delete", "model/a"})["deleted"], "model/a");
  const ProgramResult absent = RunClient(address, {"caches", "delete", "model/a"});
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_THAT(absent.errors, HasSubstr("NOT_FOUND"));
}

TEST(CachesCommandTest, DeletesUnderOpenSessionsOnlyByForce) {
  const ServerProcess server;
  ASSERT_EQ(RunClient(server.tcp_address(), kCreate).exit_code, 0);
  const absl::StatusOr<Client> client = Client::Connect(server.tcp_address());
  const absl::StatusOr<Session> session = client->OpenSession("model/a");
  ASSERT_TRUE(session.ok()) << session.status();
  const ProgramResult refused = RunClient(server.tcp_address(), {"caches", "delete", "model/a"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.errors, HasSubstr("FAILED_PRECONDITION"));
  EXPECT_EQ(RunClient(server.tcp_address(), {"caches", "delete", "model/a", "--force"}).exit_code, 0);
}

TEST(SlotsCommandTest, ShowsWhoHoldsWhat) {
  const ServerProcess server;
  const std::string& address = server.tcp_address();
  EXPECT_THAT(RunClient(address, {"slots"}).output, HasSubstr("no caches"));
  ASSERT_EQ(RunClient(address, kCreate).exit_code, 0);
  const absl::StatusOr<Client> client = Client::Connect(address);
  SessionOptions options;
  options.client_name = "engine 7";
  absl::StatusOr<Session> session = client->OpenSession("model/a", options);
  ASSERT_TRUE(session.ok());
  ASSERT_TRUE(session->AcquireSlots(3).ok());
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"slots"}, {"slots", "model/a"}}) {
    const nlohmann::json json = RunJson(address, arguments);
    EXPECT_EQ(json["caches"][0]["free_slots"], 1);
    EXPECT_EQ(json["caches"][0]["slots"].size(), 3);
    EXPECT_EQ(json["caches"][0]["slots"][0]["client_name"], "engine 7");
  }
  const std::string text = RunClient(address, {"slots"}).output;
  EXPECT_THAT(text, HasSubstr("model/a: 3 held, 1 free\n"));
  EXPECT_THAT(text, HasSubstr("engine 7"));
  const ProgramResult absent = RunClient(address, {"slots", "other"});
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_THAT(absent.errors, HasSubstr("NOT_FOUND"));
}

TEST(HealthCommandTest, FollowsTheServer) {
  ServerProcess server;
  for (const std::string& address : {server.tcp_address(), server.unix_address()}) {
    const ProgramResult text = RunClient(address, {"health"});
    EXPECT_EQ(text.exit_code, 0);
    EXPECT_EQ(text.output, "serving\n");
    EXPECT_EQ(RunJson(address, {"health"})["status"], "serving");
  }
  server.process().Signal(SIGKILL);
  server.process().Wait();
  for (const std::string& address : {server.tcp_address(), server.unix_address()}) {
    const ProgramResult gone = RunClient(address, {"health"});
    EXPECT_EQ(gone.exit_code, 1);
    EXPECT_THAT(gone.errors, HasSubstr(address));
  }
}

TEST(HealthCommandTest, ADrainingServerIsAliveButNotReady) {
  ServerProcess server({"--drain-timeout=60s"});
  ControlClient client(Connect(server.tcp_address()));
  client.CreateCache(ControlClient::SmallCache("a"));
  const std::string session = client.OpenSession("a");
  client.AcquireSlots(session, 1);
  HalfSentWrite write(client, session);
  ASSERT_TRUE(Eventually([&] { return client.GetServerInfo().staging_used_bytes() > 0; }));
  const std::string address = server.unix_address();
  EXPECT_EQ(RunClient(address, {"health"}).exit_code, 0);
  EXPECT_EQ(RunClient(address, {"health", "--alive"}).output, "serving\n");
  server.process().Signal(SIGTERM);
  EXPECT_TRUE(Eventually([&] { return RunClient(address, {"health"}).exit_code == 1; }));
  const ProgramResult ready = RunClient(address, {"health"});
  EXPECT_EQ(ready.exit_code, 1);
  EXPECT_EQ(ready.output, "not serving\n");
  EXPECT_THAT(ready.errors, HasSubstr(address + ": not serving"));
  const ProgramResult alive = RunClient(address, {"health", "--alive"});
  EXPECT_EQ(alive.exit_code, 0) << alive.errors;
  EXPECT_EQ(alive.output, "serving\n");
  EXPECT_TRUE(write.Finish().ok());
  EXPECT_EQ(server.process().Wait(), 0);
  EXPECT_EQ(RunClient(address, {"health", "--alive"}).exit_code, 1);
}

TEST(QuickstartTest, Runs) {
  const ServerProcess server;
  for (const std::string& address : {server.tcp_address(), server.unix_address()}) {
    const ProgramResult result = RunProgram(GDPCACHE_QUICKSTART, {address});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_EQ(result.output, "3 boundary states, slots at positions 100 and 28, v_new[0] = 1\n");
  }
  EXPECT_EQ(RunProgram(GDPCACHE_QUICKSTART, {"unix:/nobody"}).exit_code, 1);
}

}  // namespace
}  // namespace gdpcache::test
