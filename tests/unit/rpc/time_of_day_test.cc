// Somebody sets the host's clock while calls are under way, an hour forward or back. Nothing that takes the time from
// elsewhere expires or waits for it.

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/library/token_source.h"
#include "server/cache/clock.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/wall_clock.h"
#include "tests/unit/rpc/served_world.h"

namespace gdpcache::rpc {
namespace {

constexpr absl::Duration kHour = absl::Hours(1);

class TimeOfDay : public ::testing::TestWithParam<absl::Duration> {
 protected:
  ~TimeOfDay() override { test::SetTimeOfDay(-GetParam()); }
};

TEST_P(TimeOfDay, IsSetForTheWholeProgramAndNotForSteadyClocks) {
  const absl::Time before = absl::Now();
  const absl::Time steady_before = cache::SteadyNow();
  test::SetTimeOfDay(GetParam());
  EXPECT_LT(absl::AbsDuration(absl::Now() - before - GetParam()), absl::Minutes(1));
  EXPECT_LT(absl::AbsDuration(cache::SteadyNow() - steady_before), absl::Minutes(1));
  EXPECT_GE(cache::SteadyNow(), steady_before);
}

TEST_P(TimeOfDay, LeavesDeadlinesAndTimingsOfCallsUnderWayAlone) {
  const testing::Problem problem = engine::SmallProblem();
  ServedWorld world({.workers = 2, .segment_bytes = std::int64_t{16} << 10});
  const std::shared_ptr<cache::Session> session = world.OpenSession(engine::GeometryOf(problem));
  const v1::PrefillRequest request = ToProto(problem, session->id(), true);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(10));
  const std::unique_ptr<Stream> stream = world.stub->PrefillStream(&context);
  ASSERT_TRUE(stream->Write(HeaderOf(request)));
  std::vector<Upload> uploads = UploadsOf(request);
  for (Upload& upload : uploads) ASSERT_TRUE(stream->Write(NextFrame(upload, upload.bytes->size() / 2)));
  ASSERT_TRUE(test::Eventually([&] { return world.backend.calls(engine::Operation::kRunRecurrence) > 0; }));
  test::SetTimeOfDay(GetParam());
  for (Upload& upload : uploads) ASSERT_TRUE(stream->Write(NextFrame(upload, upload.bytes->size())));
  stream->WritesDone();
  const Streamed streamed = ReadAll(*stream);
  EXPECT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  EXPECT_LT(streamed.response.timing().total_us(), absl::ToInt64Microseconds(absl::Minutes(9)));
  for (const std::int64_t spent : {streamed.response.timing().queue_us(), streamed.response.timing().stage_in_us(),
                                   streamed.response.timing().compute_us(), streamed.response.timing().stage_out_us(),
                                   streamed.response.timing().total_us()}) {
    EXPECT_GE(spent, 0);
  }
}

TEST_P(TimeOfDay, DoesNotKeepAClientFromReadingItsTokenAgain) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/token";
  std::ofstream(path) << "first";
  const auto source = client::TokenSource::FromFile(path);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->Token(), "first");
  std::ofstream(path) << "second";
  test::SetTimeOfDay(GetParam());
  test::PassTime(absl::Seconds(2));
  EXPECT_EQ((*source)->Token(), "second");
}

INSTANTIATE_TEST_SUITE_P(ForwardAndBack, TimeOfDay, ::testing::Values(kHour, -kHour), [](const auto& instance) {
  return std::string(instance.param > absl::ZeroDuration() ? "Forward" : "Back");
});

}  // namespace
}  // namespace gdpcache::rpc
