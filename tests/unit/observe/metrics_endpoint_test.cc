#include "server/observe/metrics_endpoint.h"

#include <prometheus/registry.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/loopback.h"

namespace gdpcache::observe {
namespace {

/// A connection over which `bytes` have been sent; -1: there is none.
int ConnectAndSend(const std::string& address, absl::string_view bytes) {
  const int connection = test::ConnectRaw(address);
  if (connection < 0) return -1;
  if (send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size())) {
    return connection;
  }
  close(connection);
  return -1;
}

TEST(MetricsEndpointTest, AnswersAlthoughOthersNeverFinishTheirRequests) {
  const absl::StatusOr<std::unique_ptr<MetricsEndpoint>> endpoint =
      MetricsEndpoint::Start("127.0.0.1:0", {std::make_shared<prometheus::Registry>()});
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  std::vector<int> idle;
  for (int n = 0; n < 16; ++n) idle.push_back(ConnectAndSend((*endpoint)->address(), "GET /metr"));
  const int scrape = ConnectAndSend((*endpoint)->address(), "GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n");
  ASSERT_GE(scrape, 0);
  const timeval patience = {.tv_sec = 20, .tv_usec = 0};  // less than what one of them would be given otherwise
  ASSERT_EQ(setsockopt(scrape, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
  std::string status(12, ' ');
  EXPECT_EQ(recv(scrape, status.data(), status.size(), MSG_WAITALL), static_cast<ssize_t>(status.size()));
  EXPECT_EQ(status, "HTTP/1.1 200");
  for (const int connection : idle) close(connection);
  close(scrape);
}

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
