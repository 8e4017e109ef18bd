// What a stop signal does to calls that are running.

#include <signal.h>

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/half_sent_write.h"
#include "tests/integration/ready_line.h"
#include "tests/support/control_client.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_call.h"
#include "tests/support/server_process.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache {
namespace {

using test::ControlClient;
using test::HalfSentWrite;
using test::ServerProcess;
using Stub = v1::StateCache::Stub;

constexpr char kReady[] = "gdpcache.v1.StateCache";  // what health tells of calls, and of the process
constexpr char kAlive[] = "";
constexpr int kServing = 1;
constexpr int kNotServing = 2;

class DrainTest : public ::testing::Test {
 protected:
  // A session with a slot, and proof that the server has begun to work on a write to it.
  std::unique_ptr<HalfSentWrite> StartWrite(const ServerProcess& server) {
    client_ = std::make_unique<ControlClient>(test::Connect(server.tcp_address()));
    client_->CreateCache(ControlClient::SmallCache("a"));
    const std::string session = client_->OpenSession("a");
    client_->AcquireSlots(session, 1);
    auto write = std::make_unique<HalfSentWrite>(*client_, session);
    EXPECT_TRUE(test::Eventually([this] { return client_->GetServerInfo().staging_used_bytes() > 0; }));
    return write;
  }

  grpc::Status OpenSession() {
    v1::OpenSessionRequest request;
    request.set_cache("a");
    return client_->Call(&Stub::OpenSession, request);
  }

  std::unique_ptr<ControlClient> client_;
};

TEST_F(DrainTest, RunningCallsFinishWhileNewWorkIsRefused) {
  ServerProcess server({"--drain-timeout=60s"});
  const std::shared_ptr<grpc::Channel> health = test::Connect(server.unix_address());
  const std::unique_ptr<HalfSentWrite> write = StartWrite(server);
  ASSERT_EQ(test::CheckHealth(health, kReady), kServing);
  ASSERT_EQ(test::CheckHealth(health, kAlive), kServing);
  server.process().Signal(SIGTERM);
  EXPECT_TRUE(test::Eventually([&] { return test::CheckHealth(health, kReady) == kNotServing; }));
  EXPECT_TRUE(test::Eventually([&] { return OpenSession().error_code() == grpc::StatusCode::UNAVAILABLE; }));
  EXPECT_EQ(test::CheckHealth(health, kAlive), kServing) << "nobody needs to restart it";
  EXPECT_EQ(test::CheckHealth(health, kReady), kNotServing);
  const grpc::Status status = write->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(server.process().Wait(), 0);
}

TEST_F(DrainTest, TheAdminAddressTellsTheSame) {
  ServerProcess server({"--drain-timeout=60s", "--admin=127.0.0.1:0"});
  const std::shared_ptr<grpc::Channel> health = test::Connect(test::ReadyValue(server, "admin"));
  const std::unique_ptr<HalfSentWrite> write = StartWrite(server);
  ASSERT_EQ(test::CheckHealth(health, kReady), kServing);
  server.process().Signal(SIGTERM);
  EXPECT_TRUE(test::Eventually([&] { return test::CheckHealth(health, kReady) == kNotServing; }));
  EXPECT_EQ(test::CheckHealth(health, kAlive), kServing);
  EXPECT_TRUE(write->Finish().ok());
  EXPECT_EQ(server.process().Wait(), 0);
}

TEST_F(DrainTest, CallsThatTakeTooLongAreCancelled) {
  ServerProcess server({"--drain-timeout=100ms"});
  const std::unique_ptr<HalfSentWrite> write = StartWrite(server);
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().Wait(), 0) << "it does not wait for the client";
  EXPECT_FALSE(write->End().ok());
}

TEST_F(DrainTest, TheSnapshotDirectoryIsTheDrainingServersUntilItHasEnded) {
  const test::TemporaryDirectory directory;
  const std::string flag = "--snapshot-directory=" + directory.path() + "/snapshots";
  const auto run_next = [&] {
    return test::RunProgram(test::ServerProgram(),
                            {"--backend=cpu", "--listen=", "--unix=" + directory.path() + "/next", flag});
  };
  ServerProcess server({"--drain-timeout=60s", flag});
  const std::shared_ptr<grpc::Channel> health = test::Connect(server.unix_address());
  const std::unique_ptr<HalfSentWrite> write = StartWrite(server);
  server.process().Signal(SIGTERM);
  ASSERT_TRUE(test::Eventually([&] { return test::CheckHealth(health, kReady) == kNotServing; })) << "it drains";

  const test::ProgramResult refused = run_next();
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.output, "");
  EXPECT_THAT(refused.errors, ::testing::ContainsRegex(absl::StrCat(directory.path(),
                                                                    "/snapshots is used by another server \\(process ",
                                                                    server.process().pid(), " on [^)]+\\)")));

  const grpc::Status status = write->Finish();
  EXPECT_TRUE(status.ok()) << "as if nobody had come: " << status.error_message();
  EXPECT_EQ(server.process().Wait(), 0);
  const ServerProcess next({flag});
  EXPECT_THAT(next.ready_line(), ::testing::HasSubstr("ready"));
  const test::ProgramResult after = run_next();
  EXPECT_THAT(after.errors,
              ::testing::Not(::testing::HasSubstr(absl::StrCat("process ", server.process().pid(), " "))));
  EXPECT_THAT(after.errors, ::testing::HasSubstr("(process "));
}

TEST_F(DrainTest, ASecondSignalStopsAtOnceAndLeavesNothingBehind) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/socket";
  for (const int signal_number : {SIGTERM, SIGINT}) {
    ServerProcess server({"--drain-timeout=60s", "--unix=" + path});
    const std::unique_ptr<HalfSentWrite> write = StartWrite(server);
    const std::shared_ptr<grpc::Channel> health = test::Connect("unix:" + path);
    server.process().Signal(SIGTERM);
    EXPECT_TRUE(test::Eventually([&] { return test::CheckHealth(health, kReady) == kNotServing; }));
    EXPECT_FALSE(std::filesystem::is_empty(directory.path()));
    server.process().Signal(signal_number);
    EXPECT_EQ(server.process().Wait(), -signal_number);
    EXPECT_TRUE(std::filesystem::is_empty(directory.path())) << *std::filesystem::directory_iterator(directory.path());
    EXPECT_FALSE(write->End().ok());
  }
}

TEST_F(DrainTest, WatchersOfTheHealthDoNotHoldItUp) {
  ServerProcess server({"--drain-timeout=60s"});
  const std::shared_ptr<grpc::Channel> channel = test::Connect(server.tcp_address());
  // HealthCheckRequests {service}: the calls go on until the server ends them.
  test::RawStream ready(channel, "/grpc.health.v1.Health/Watch", std::string("\x0a\x16") + kReady);
  test::RawStream alive(channel, "/grpc.health.v1.Health/Watch", "");
  EXPECT_EQ(ready.Read(), std::string("\x08\x01")) << "SERVING";
  EXPECT_EQ(alive.Read(), std::string("\x08\x01")) << "SERVING";
  server.process().Signal(SIGTERM);
  EXPECT_EQ(ready.Read(), std::string("\x08\x02")) << "NOT_SERVING";
  EXPECT_EQ(server.process().Wait(absl::Seconds(30)), 0);
}

}  // namespace
}  // namespace gdpcache
