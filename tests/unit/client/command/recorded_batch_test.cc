#include "client/command/recorded_batch.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/client/command/small_batch.h"

namespace gdpcache::command {
namespace {

using ::gdpcache::test::SmallBatch;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<RecordedBatch> Load(const SmallBatch& batch) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/recorded.safetensors";
  EXPECT_TRUE(batch.Write(path).ok());
  return LoadRecordedBatch(path);
}

TEST(LoadRecordedBatchTest, ReadsAWholeRecording) {
  SmallBatch small;
  small.Floats("out.h", {2, 1, 1, 1}, {1, 2});
  small.metadata["triton_err_h"] = "1.5e-03";
  const absl::StatusOr<RecordedBatch> batch = Load(small);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->name, "small");
  EXPECT_EQ(batch->tokens, 3);
  EXPECT_EQ(batch->sequences, 2);
  EXPECT_EQ(batch->boundaries, 2);
  EXPECT_EQ(batch->batch, 0);
  EXPECT_EQ(batch->chunk_size, 2);
  EXPECT_TRUE(batch->save_new_value);
  EXPECT_EQ(batch->initial_state_source, InitialState::kSlot);
  EXPECT_THAT(batch->begins, ElementsAre(0, 3, 3));
  EXPECT_THAT(batch->state_indices, ElementsAre(2, 0));
  EXPECT_TRUE(batch->out_h.has_value());
  EXPECT_FALSE(batch->out_v_new.has_value());
  EXPECT_EQ(batch->error_h, 1.5e-3);
  EXPECT_FALSE(batch->error_state.has_value());
}

TEST(LoadRecordedBatchTest, ReadsDenseBatchesAndWideIntegers) {
  SmallBatch small;
  small.Remove("cu_seqlens");
  small.Remove("state_indices");
  small.Remove("state.before");
  small.metadata["initial_state"] = "zero";
  small.metadata["batch"] = "3";
  absl::StatusOr<RecordedBatch> batch = Load(small);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_THAT(batch->begins, ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(batch->cu_seqlens.empty());
  EXPECT_EQ(batch->boundaries, 3);

  SmallBatch wide;
  const std::int64_t values[] = {0, 1, 3};
  wide.Set("cu_seqlens", "I64", {3}, values, sizeof(values));
  batch = Load(wide);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_THAT(batch->begins, ElementsAre(0, 1, 3));
}

TEST(LoadRecordedBatchTest, NamesTheFileAndWhatIsWrong) {
  struct Case {
    std::string message;
    std::function<void(SmallBatch*)> change;
  };
  const std::vector<Case> cases = {
      {"the metadata has no 'num_householder'", [](SmallBatch* b) { b->metadata.erase("num_householder"); }},
      {"the metadata has no 'initial_state'", [](SmallBatch* b) { b->metadata.erase("initial_state"); }},
      {"'chunk_size' is 'many', not a positive number", [](SmallBatch* b) { b->metadata["chunk_size"] = "many"; }},
      {"'chunk_size' is '0', not a positive number", [](SmallBatch* b) { b->metadata["chunk_size"] = "0"; }},
      {"'states_dtype' is 'int8', which has no meaning", [](SmallBatch* b) { b->metadata["states_dtype"] = "int8"; }},
      {"'save_new_value' is 'yes'", [](SmallBatch* b) { b->metadata["save_new_value"] = "yes"; }},
      {"'triton_err_h' is 'nan'", [](SmallBatch* b) { b->metadata["triton_err_h"] = "nan"; }},
      {"there is no tensor k", [](SmallBatch* b) { b->Remove("k"); }},
      {"there is no tensor w", [](SmallBatch* b) { b->Remove("w"); }},
      {"instead of [T, H, K]",
       [](SmallBatch* b) {
         b->Floats("k", {3}, {1, 2, 3});
       }},
      {"tensor w has the shape [3, 1, 2] instead of [3, 1, 1]",
       [](SmallBatch* b) {
         b->Floats("w", {3, 1, 2}, {1, 2, 3, 4, 5, 6});
       }},
      {"tensor g has the shape [3] instead of [3, 1]",
       [](SmallBatch* b) {
         b->Floats("g", {3}, {1, 2, 3});
       }},
      {"tensor k is I32 instead of F32, BF16 or F16",
       [](SmallBatch* b) {
         const std::int32_t values[] = {1, 2, 3};
         b->Set("k", "I32", {3, 1, 1}, values, 12);
       }},
      {"H, K and V must be 1 or more",
       [](SmallBatch* b) {
         b->Floats("u", {3, 1, 0}, {});
       }},
      {"cu_seqlens does not start at 0",
       [](SmallBatch* b) {
         b->Integers("cu_seqlens", {1, 3, 3});
       }},
      {"cu_seqlens does not start at 0", [](SmallBatch* b) { b->Integers("cu_seqlens", {}); }},
      {"sequence 1 ends at 2",
       [](SmallBatch* b) {
         b->Integers("cu_seqlens", {0, 3, 2});
       }},
      {"sequence 0 ends at 4",
       [](SmallBatch* b) {
         b->Integers("cu_seqlens", {0, 4, 4});
       }},
      {"multiple of num_householder (2)", [](SmallBatch* b) { b->metadata["num_householder"] = "2"; }},
      {"cu_seqlens is F32",
       [](SmallBatch* b) {
         b->Floats("cu_seqlens", {3}, {0, 3, 3});
       }},
      {"both cu_seqlens and metadata 'batch'", [](SmallBatch* b) { b->metadata["batch"] = "3"; }},
      {"there are 1 state_indices for 2 sequences", [](SmallBatch* b) { b->Integers("state_indices", {0}); }},
      {"state_indices[1] is 3; state.before has 3 slots",
       [](SmallBatch* b) {
         b->Integers("state_indices", {0, 3});
       }},
      {"state_indices[0] is -2",
       [](SmallBatch* b) {
         b->Integers("state_indices", {-2, 0});
       }},
      {"no state.before", [](SmallBatch* b) { b->Remove("state.before"); }},
      {"there are no state_indices", [](SmallBatch* b) { b->Remove("state_indices"); }},
      {"there is no tensor initial_state", [](SmallBatch* b) { b->metadata["initial_state"] = "dense"; }},
      {"tensor out.h has the shape [1, 1, 1, 1] instead of [2, 1, 1, 1]",
       [](SmallBatch* b) {
         b->Floats("out.h", {1, 1, 1, 1}, {1});
       }},
      {"T is 3, which is no multiple of the batch of 2",
       [](SmallBatch* b) {
         b->Remove("cu_seqlens");
         b->metadata["batch"] = "2";
       }},
      {"metadata 'batch' is 65537; one call may have 65536 sequences",
       [](SmallBatch* b) {
         for (const char* tensor : {"k", "w", "u"}) b->Floats(tensor, {0, 1, 1}, {});
         for (const char* tensor : {"g", "cu_seqlens", "state_indices"}) b->Remove(tensor);
         b->metadata["initial_state"] = "zero";
         b->metadata["batch"] = "65537";
       }},
  };
  for (const Case& wrong : cases) {
    SmallBatch small;
    wrong.change(&small);
    const absl::Status status = Load(small).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.message));
    EXPECT_THAT(std::string(status.message()), HasSubstr("recorded.safetensors"));
  }
}

TEST(LoadRecordedBatchTest, RefusesMissingAndDamagedFiles) {
  EXPECT_EQ(LoadRecordedBatch("/nonexistent/x.safetensors").status().code(), absl::StatusCode::kNotFound);
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/damaged.safetensors";
  std::ofstream(path) << "this is no safetensors file";
  EXPECT_FALSE(LoadRecordedBatch(path).ok());
}

TEST(LoadRecordedBatchTest, ReadsEveryGoldenBatch) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(GDPCACHE_GOLDEN_DIRECTORY)) {
    if (entry.path().extension() != ".safetensors") continue;
    ++count;
    EXPECT_TRUE(LoadRecordedBatch(entry.path()).ok()) << entry.path();
  }
  EXPECT_EQ(count, 23);
}

}  // namespace
}  // namespace gdpcache::command
