// The facts about an overloaded server that hold whatever else the machine does; tests/bench has the times.

#include "tests/bench/overload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gdpcache::bench {
namespace {

using ::testing::AnyOf;

TEST(Overload, IsRefusedWithRetryInfoAndSpoilsNothing) {
  constexpr std::int64_t kStagingBytes = 16 << 20;
  const OverloadOptions options = {
      .duration = absl::Seconds(3),
      .shape = {.sequences = 2},
      .server_flags = {"--max-queue-wait=10ms", "--staging-memory=16MiB", "--snapshot-device-memory=0"}};
  const absl::StatusOr<OverloadReport> report = RunOverload(options);
  ASSERT_TRUE(report.ok()) << report.status();
  SCOPED_TRACE(ToTable(*report));
  EXPECT_EQ(report->server_exit_code, 0);
  EXPECT_GT(report->overload.count("OK"), 0);
  EXPECT_GT(report->overload.count("RESOURCE_EXHAUSTED"), 0);
  for (const OverloadPhase* phase : {&report->idle, &report->at_limit, &report->overload}) {
    for (const auto& [status, count] : phase->statuses) {
      EXPECT_THAT(status, AnyOf("OK", "RESOURCE_EXHAUSTED")) << count;
    }
    EXPECT_EQ(phase->refused_without_retry_info, 0);
    EXPECT_EQ(phase->wrong_results, 0);
  }
  const OverloadShape& shape = options.shape;
  const std::int64_t states =
      options.clients * shape.sequences * shape.heads * shape.key_dim * shape.value_dim * std::int64_t{sizeof(float)};
  constexpr std::int64_t kProgram = std::int64_t{256} << 20;  // with gRPC's buffers; AddressSanitizer takes more
#ifndef __SANITIZE_THREAD__                                   // whose records of every byte would be what is measured
  EXPECT_LT(report->overload.peak_resident_bytes, 2 * (states + kStagingBytes + kProgram));
#else
  static_cast<void>(states + kStagingBytes + kProgram);
#endif
}

}  // namespace
}  // namespace gdpcache::bench
