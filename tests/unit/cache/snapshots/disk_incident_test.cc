#include "server/cache/snapshots/disk_incident.h"

#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"

namespace gdpcache::cache {
namespace {

using Kind = DiskIncident::Kind;

TEST(IncidentDigestTest, OneOfAKindIsToldAtOnceAndTheRestOnceInAWhile) {
  test::ManualClock clock;
  std::vector<DiskIncident> told;
  IncidentDigest digest(clock, [&](const DiskIncident& incident) { told.push_back(incident); });
  for (int n = 0; n < 1'000; ++n) digest.Add({Kind::kFull, "a", 1, absl::ResourceExhaustedError("full")});
  digest.Add({Kind::kDamaged, "b", 3, absl::DataLossError("torn")});
  ASSERT_EQ(told.size(), 2);
  EXPECT_EQ(told[0].kind, Kind::kFull);
  EXPECT_EQ(told[0].files, 1);
  EXPECT_EQ(told[1].kind, Kind::kDamaged);
  EXPECT_EQ(told[1].files, 3);
  clock.Advance(IncidentDigest::kPeriod);
  for (int n = 0; n < 2; ++n) digest.Add({Kind::kFull, "c", 1, absl::ResourceExhaustedError("full")});
  ASSERT_EQ(told.size(), 3);
  EXPECT_EQ(told[2].path, "c");
  EXPECT_EQ(told[2].files, 1'000);  // 999 that were not told, and itself
}

}  // namespace
}  // namespace gdpcache::cache
