#include "client/library/connection.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gdpcache::client {
namespace {

using ::testing::HasSubstr;

TEST(GrpcTargetTest, AcceptsHostsAndUnixSockets) {
  EXPECT_EQ(*GrpcTarget("localhost:7411"), "dns:///localhost:7411");
  EXPECT_EQ(*GrpcTarget("10.0.0.1:1"), "dns:///10.0.0.1:1");
  EXPECT_EQ(*GrpcTarget("[::1]:65535"), "dns:///[::1]:65535");
  EXPECT_EQ(*GrpcTarget("unix:/run/gdpcache.sock"), "unix:/run/gdpcache.sock");
  EXPECT_EQ(*GrpcTarget("unix:relative.sock"), "unix:relative.sock");
}

TEST(GrpcTargetTest, NamesWhatIsWrong) {
  const std::string cases[][2] = {
      {"", "the port is missing"},
      {"localhost", "the port is missing"},
      {":7411", "'' is no host name"},
      {"localhost:", "'' is no port"},
      {"localhost:0", "'0' is no port"},
      {"localhost:65536", "'65536' is no port"},
      {"localhost:http", "'http' is no port"},
      {"http://localhost:7411", "'http://localhost' is no host name"},
      {"::1:7411", "'::1' is no host name"},
      {"unix:", "the path is missing"},
      {"unix:/" + std::string(200, 'x'), "the path has 201 bytes, a socket's at most 107"},
  };
  for (const auto& [address, message] : cases) {
    const absl::StatusOr<std::string> target = GrpcTarget(address);
    EXPECT_EQ(target.status().code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(std::string(target.status().message()), HasSubstr(message)) << address;
  }
}

}  // namespace
}  // namespace gdpcache::client
