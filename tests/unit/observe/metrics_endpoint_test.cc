#include "server/observe/metrics_endpoint.h"

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gdpcache::observe {
namespace {

TEST(MetricsEndpointTest, StopsWithoutWaitingForItsListener) {
  for (const char* address : {"127.0.0.1:0", "localhost:0", "0.0.0.0:0"}) {
    absl::StatusOr<std::unique_ptr<MetricsEndpoint>> endpoint = MetricsEndpoint::Start(address, {});
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    const absl::Time begin = absl::Now();
    endpoint->reset();
    EXPECT_LT(absl::Now() - begin, absl::Seconds(1.5)) << address << ": its listener looks up every two seconds";
  }
}

TEST(MetricsEndpointTest, NamesAnAddressThatIsTaken) {
  const absl::StatusOr<std::unique_ptr<MetricsEndpoint>> first = MetricsEndpoint::Start("127.0.0.1:0", {});
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status second = MetricsEndpoint::Start((*first)->address(), {}).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.message()), testing::HasSubstr((*first)->address()));
}

}  // namespace
}  // namespace gdpcache::observe
