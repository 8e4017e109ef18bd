#include "client/command/replay_check.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <sstream>
#include <string>

#include "client/command/exact_recurrence.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/client/command/small_batch.h"

namespace gdpcache::command {
namespace {

using ::gdpcache::test::SmallBatch;
using ::testing::HasSubstr;

OwnedTensor Copy(const ConstTensor& view) {
  OwnedTensor tensor = OwnedTensor::Allocate(view.dtype, view.shape).value();
  if (tensor.byte_size() > 0) std::memcpy(tensor.data(), view.data, static_cast<std::size_t>(tensor.byte_size()));
  return tensor;
}

float* Floats(OwnedTensor& tensor) { return reinterpret_cast<float*>(tensor.data()); }

/// A server that answers with exactly what the file has recorded.
ReplayResults RecordedResults(const RecordedBatch& batch) {
  ReplayResults results;
  results.prefill.h = Copy(*batch.out_h);
  if (batch.out_v_new) results.prefill.v_new = Copy(*batch.out_v_new);
  if (batch.out_state) results.state = Copy(*batch.out_state);
  if (batch.out_final_state) results.prefill.final_state = Copy(*batch.out_final_state);
  return results;
}

/// The small batch with its right results.
RecordedBatch Batch() {
  SmallBatch small;
  small.Floats("out.h", {2, 1, 1, 1}, {4, 37});
  small.Floats("out.v_new", {3, 1, 1}, {8, 16, -44});
  small.Floats("out.state", {3, 1, 1, 1}, {7, 8, -113.5});
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/check.safetensors";
  EXPECT_TRUE(small.Write(path).ok());
  return LoadRecordedBatch(path).value();
}

TEST(RelativeErrorTest, ComparesNorms) {
  EXPECT_EQ(RelativeError({3, 4}, {3, 4}), 0);
  EXPECT_DOUBLE_EQ(RelativeError({3, 5}, {3, 4}), 0.2);
  EXPECT_EQ(RelativeError({0}, {0}), 0);
  EXPECT_EQ(RelativeError({1}, {0}), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(RelativeError({std::nan("")}, {1})));
}

TEST(CheckResultsTest, RightResultsPass) {
  const RecordedBatch batch = Batch();
  const absl::StatusOr<CheckReport> report = CheckResults(batch, RecordedResults(batch));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->pass);
  ASSERT_EQ(report->tensors.size(), 3);
  EXPECT_EQ(report->tensors[0].limit, 1e-5);
  // Slot 1 has no sequence, that of slot 0 no tokens.
  EXPECT_EQ(report->identities[0].checked, 2);
  std::ostringstream text;
  PrintReport(*report, text);
  EXPECT_THAT(text.str(), HasSubstr("v_new   [3, 1, 1]     0.000e+00"));
  EXPECT_THAT(text.str(), HasSubstr("\nPASS\n"));
  EXPECT_EQ(ToJson(*report)["tensors"][2]["name"], "state");
}

TEST(CheckResultsTest, AnyTensorBeyondItsLimitFails) {
  const RecordedBatch batch = Batch();
  ReplayResults results = RecordedResults(batch);
  Floats(results.prefill.h)[1] += 1e-2F;
  EXPECT_FALSE(CheckResults(batch, results)->pass);
  results = RecordedResults(batch);
  Floats(results.prefill.v_new)[2] = std::nanf("");
  EXPECT_FALSE(CheckResults(batch, results)->pass);
  results = RecordedResults(batch);
  Floats(results.state)[2] += 1e-2F;
  const absl::StatusOr<CheckReport> report = CheckResults(batch, results);
  EXPECT_FALSE(report->pass);
  std::ostringstream text;
  PrintReport(*report, text);
  EXPECT_THAT(text.str(), HasSubstr("\nFAIL\n"));
}

TEST(CheckResultsTest, TheRecordedKernelsErrorSetsTheLimit) {
  RecordedBatch batch = Batch();
  ReplayResults results = RecordedResults(batch);
  Floats(results.prefill.h)[1] *= 1.01F;
  batch.error_h = 0.01;
  EXPECT_TRUE(CheckResults(batch, results)->pass);
  batch.error_h = 0.005;
  EXPECT_FALSE(CheckResults(batch, results)->pass);
  EXPECT_DOUBLE_EQ(CheckResults(batch, results)->tensors[0].limit, 1.1 * 0.005);
}

TEST(CheckResultsTest, ATinyChangeOfAnUntouchedSlotFails) {
  const RecordedBatch batch = Batch();
  for (const int slot : {0, 1}) {
    ReplayResults results = RecordedResults(batch);
    float& value = Floats(results.state)[slot];
    value = std::nextafter(value, 100.0F);
    const absl::StatusOr<CheckReport> report = CheckResults(batch, results);
    EXPECT_FALSE(report->pass);
    EXPECT_EQ(report->identities[0].different, 1);
  }
}

TEST(CheckResultsTest, ASlotThatDiffersFromItsFinalStateFails) {
  const RecordedBatch batch = Batch();
  ReplayResults results = RecordedResults(batch);
  const float final_states[] = {-113.5F, 7};
  results.prefill.final_state = Copy({DataType::kFloat32, {2, 1, 1, 1}, final_states});
  EXPECT_TRUE(CheckResults(batch, results)->pass);
  EXPECT_EQ(CheckResults(batch, results)->identities[1].checked, 2);
  Floats(results.prefill.final_state)[0] = std::nextafter(-113.5F, 0.0F);
  EXPECT_FALSE(CheckResults(batch, results)->pass);
}

TEST(CheckResultsTest, NeedsTheRecordedResults) {
  RecordedBatch batch = Batch();
  const ReplayResults results = RecordedResults(batch);
  batch.out_v_new.reset();
  EXPECT_THAT(std::string(CheckResults(batch, results).status().message()),
              HasSubstr("check.safetensors: there is no tensor out.v_new to check against"));
}

TEST(CheckResultsTest, FindsTheErrorsThatTheGoldenBatchesTellOfTheirKernel) {
  for (const auto& entry : std::filesystem::directory_iterator(GDPCACHE_GOLDEN_DIRECTORY)) {
    if (entry.path().extension() != ".safetensors") continue;
    absl::StatusOr<RecordedBatch> batch = LoadRecordedBatch(entry.path());
    ASSERT_TRUE(batch.ok()) << batch.status();
    const absl::StatusOr<CheckReport> report = CheckResults(*batch, RecordedResults(*batch));
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->pass) << entry.path();
    for (const TensorCheck& check : report->tensors) {
      const std::optional<double> told = check.name == "h"       ? batch->error_h
                                         : check.name == "v_new" ? batch->error_v_new
                                                                 : batch->error_state;
      EXPECT_NEAR(check.recorded_vs_exact, told.value(), 1e-3 * *told + 1e-12) << entry.path() << " " << check.name;
    }
  }
}

}  // namespace
}  // namespace gdpcache::command
