#include "server/config/listen_address.h"

#include <string>

#include "gtest/gtest.h"

namespace gdpcache::config {
namespace {

TEST(ListenAddressTest, KnowsLoopbackFromTheRest) {
  for (const char* text : {"127.0.0.1:7411", "127.9.9.9:0", "localhost:65535", "[::1]:1"}) {
    const absl::StatusOr<ListenAddress> address = ParseListenAddress(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_TRUE(address->is_loopback()) << text;
  }
  for (const char* text : {"0.0.0.0:1", "128.0.0.1:1", "[::]:1", "[fe80::1]:1", "localhost.example.com:1", "host:1"}) {
    const absl::StatusOr<ListenAddress> address = ParseListenAddress(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_FALSE(address->is_loopback()) << text;
  }
}

TEST(ListenAddressTest, TakesHostAndPortApart) {
  EXPECT_EQ(ParseListenAddress("[::1]:7411")->host, "::1");
  EXPECT_EQ(ParseListenAddress("localhost:7411")->port, 7411);
}

TEST(ListenAddressTest, RefusesWhatIsNoAddress) {
  for (const std::string& text :
       {std::string(""), std::string("7411"), std::string("localhost"), std::string(":7411"), std::string("localhost:"),
        std::string("localhost:-1"), std::string("localhost:65536"), std::string("localhost:http"),
        std::string("::1:7411"), std::string("[::1:7411"), std::string("[::1]7411"), std::string("a\0b:1", 5)}) {
    EXPECT_EQ(ParseListenAddress(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace gdpcache::config
