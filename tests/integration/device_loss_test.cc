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

TEST(DeviceLossTest, HealthTurnsNotServingAndTheProcessFailsForARestart) {
  setenv("GDPCACHED_PROGRAM", GDPCACHE_LOSING_SERVER, 1);
  ServerProcess server({"--drain-timeout=60s"});
  absl::StatusOr<Client> client = Client::Connect(server.unix_address());
  ASSERT_TRUE(client.ok()) << client.status();
  CacheSpec spec;
  spec.name = "model";
  spec.geometry = {.layers = 1, .slots = 2, .heads = 2, .key_dim = 8, .value_dim = 8};
  ASSERT_TRUE(client->CreateCache(spec).ok());
  absl::StatusOr<Session> session = client->OpenSession("model");
  ASSERT_TRUE(session.ok()) << session.status();
  const absl::StatusOr<std::vector<std::int64_t>> slots = session->AcquireSlots(2);
  ASSERT_TRUE(slots.ok()) << slots.status();
  RawStream health(Connect(server.tcp_address()), "/grpc.health.v1.Health/Watch", "");
  ASSERT_EQ(health.Read(), std::string("\x08\x01")) << "SERVING";

  EXPECT_EQ(session->CopySlots({{(*slots)[0], {(*slots)[1]}}}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(health.Read(), std::string("\x08\x02")) << "NOT_SERVING";
  EXPECT_EQ(server.process().Wait(absl::Seconds(30)), EXIT_FAILURE);
  EXPECT_THAT(server.process().Errors(), ::testing::HasSubstr("the device is lost, stopping: fallen off the bus"));
}

}  // namespace
}  // namespace gdpcache::test
