// What a server does whose device is lost.

#include <cstdlib>
#include <string>
#include <vector>

#include "gdpcache/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/raw_call.h"
#include "tests/support/server_process.h"

namespace gdpcache::test {
namespace {

CacheSpec Spec() {
  CacheSpec spec;
  spec.name = "model";
  spec.geometry = {.layers = 1, .slots = 2, .heads = 2, .key_dim = 8, .value_dim = 8};
  return spec;
}

void ExpectEndForARestart(ServerProcess& server, RawStream& health) {
  EXPECT_EQ(health.Read(), std::string("\x08\x02")) << "NOT_SERVING";
  EXPECT_EQ(server.process().Wait(absl::Seconds(30)), EXIT_FAILURE);
  EXPECT_THAT(server.process().Errors(), ::testing::HasSubstr("the device is lost, stopping: fallen off the bus"));
}

TEST(DeviceLossTest, HealthTurnsNotServingAndTheProcessFailsForARestart) {
  setenv("GDPCACHED_PROGRAM", GDPCACHE_LOSING_SERVER, 1);
  ServerProcess server({"--drain-timeout=60s"});
  absl::StatusOr<Client> client = Client::Connect(server.unix_address());
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE(client->CreateCache(Spec()).ok());
  absl::StatusOr<Session> session = client->OpenSession("model");
  ASSERT_TRUE(session.ok()) << session.status();
  const absl::StatusOr<std::vector<std::int64_t>> slots = session->AcquireSlots(2);
  ASSERT_TRUE(slots.ok()) << slots.status();
  RawStream alive(Connect(server.tcp_address()), "/grpc.health.v1.Health/Watch", "");
  RawStream ready(Connect(server.tcp_address()), "/grpc.health.v1.Health/Watch", "\x0a\x16gdpcache.v1.StateCache");
  ASSERT_EQ(alive.Read(), std::string("\x08\x01")) << "SERVING";
  ASSERT_EQ(ready.Read(), std::string("\x08\x01")) << "SERVING";

  EXPECT_EQ(session->CopySlots({{(*slots)[0], {(*slots)[1]}}}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ready.Read(), std::string("\x08\x02")) << "NOT_SERVING";
  ExpectEndForARestart(server, alive);
}

TEST(DeviceLossTest, ALossFoundByAnAllocationOutsideOfAnyCallOnSlotsIsNoticedToo) {
  setenv("GDPCACHED_PROGRAM", GDPCACHE_LOSING_SERVER, 1);
  setenv("GDPCACHE_LOSE_AT", "allocation", 1);
  ServerProcess server({"--drain-timeout=60s"});
  unsetenv("GDPCACHE_LOSE_AT");
  absl::StatusOr<Client> client = Client::Connect(server.unix_address());
  ASSERT_TRUE(client.ok()) << client.status();
  RawStream health(Connect(server.tcp_address()), "/grpc.health.v1.Health/Watch", "");
  ASSERT_EQ(health.Read(), std::string("\x08\x01")) << "SERVING";
  EXPECT_EQ(client->CreateCache(Spec()).status().code(), absl::StatusCode::kUnavailable);
  ExpectEndForARestart(server, health);
}

}  // namespace
}  // namespace gdpcache::test
