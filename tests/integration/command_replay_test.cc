#include <signal.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/safetensors/safetensors.h"
#include "tests/integration/command_support.h"
#include "tests/support/file_content.h"
#include "tests/support/server_process.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

struct Way {
  std::string name;
  bool unix_socket;
  std::string transport;
};

class ReplayTest : public ::testing::TestWithParam<Way> {};

TEST_P(ReplayTest, EveryGoldenBatchPassesItsCheck) {
  const ServerProcess server;
  const std::string address = GetParam().unix_socket ? server.unix_address() : server.tcp_address();
  const std::vector<std::string> files = GoldenFiles();
  EXPECT_EQ(files.size(), 23);
  for (const std::string& file : files) {
    const nlohmann::json result =
        RunJson(address, {"replay", "--check", "--input", file, "--transport", GetParam().transport});
    ASSERT_TRUE(result.is_object()) << file;
    EXPECT_EQ(result["check"]["pass"], true) << result.dump(2);
    EXPECT_EQ(result["transport"], GetParam().transport);
  }
  EXPECT_TRUE(RunJson(address, {"caches"})["caches"].empty());
}

INSTANTIATE_TEST_SUITE_P(Ways, ReplayTest,
                         ::testing::Values(Way{"TcpUnary", false, "unary"}, Way{"TcpStream", false, "stream"},
                                           Way{"UnixUnary", true, "unary"}, Way{"UnixStream", true, "stream"},
                                           Way{"UnixSharedMemory", true, "shm"}),
                         [](const auto& way) { return way.param.name; });

TEST(ReplayLogTest, TheServerHasNothingToComplainOf) {
  ServerProcess server;
  for (const char* transport : {"unary", "stream", "shm"}) {
    EXPECT_EQ(RunClient(server.unix_address(),
                        {"replay", "--input", GoldenFile("m2_ragged_lengths"), "--transport", transport})
                  .exit_code,
              0);
  }
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().Wait(), 0);
  EXPECT_THAT(server.process().Errors(), Not(HasSubstr(" failed: ")));
}

/// Bytes of a tensor of a file.
std::string Tensor(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo* info = file.Find(name);
  if (info == nullptr) return "absent";
  const auto data = file.Data(*info);
  return info->dtype + std::string(reinterpret_cast<const char*>(data.data()), data.size());
}

TEST(ReplayOutputTest, HoldsTheResultsInTheFilesSlotOrder) {
  const ServerProcess server;
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/out.safetensors";
  const std::string input = GoldenFile("m1_ragged_lengths");
  ASSERT_EQ(RunClient(server.tcp_address(), {"replay", "--input", input, "--output", path}).exit_code, 0);
  const absl::StatusOr<SafetensorsFile> out = SafetensorsFile::Open(path);
  const absl::StatusOr<SafetensorsFile> in = SafetensorsFile::Open(input);
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_THAT(out->names(), ElementsAre("final_state", "h", "state", "v_new"));
  EXPECT_THAT(out->Find("h")->shape, ElementsAre(8, 2, 128, 128));
  EXPECT_EQ(out->Find("h")->dtype, "F32");
  EXPECT_THAT(out->Find("v_new")->shape, ElementsAre(323, 2, 128));
  EXPECT_EQ(out->Find("v_new")->dtype, "BF16");
  EXPECT_THAT(out->Find("state")->shape, ElementsAre(7, 2, 128, 128));
  EXPECT_THAT(out->Find("final_state")->shape, ElementsAre(5, 2, 128, 128));
  // Boundary 0 of the first sequence is its slot before the call, and slots 4 and 5 are those of the file.
  const std::size_t slot_bytes = std::size_t{2} * 128 * 128 * 4;
  const std::string before = Tensor(*in, "state.before").substr(3);
  EXPECT_EQ(Tensor(*out, "h").substr(3, slot_bytes), before.substr(6 * slot_bytes, slot_bytes));
  EXPECT_EQ(Tensor(*out, "state").substr(3 + 4 * slot_bytes, 2 * slot_bytes),
            before.substr(4 * slot_bytes, 2 * slot_bytes));
}

TEST(ReplayOutputTest, HoldsWhatTheRecordingAsksFor) {
  const ServerProcess server;
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/out.safetensors";
  const auto names = [&](const std::string& batch) {
    EXPECT_EQ(RunClient(server.tcp_address(), {"replay", "--input", GoldenFile(batch), "--output", path}).exit_code, 0);
    return SafetensorsFile::Open(path).value().names();
  };
  EXPECT_THAT(names("dense_batch"), ElementsAre("final_state", "h", "v_new"));
  EXPECT_THAT(names("no_v_new"), ElementsAre("final_state", "h", "state"));
}

TEST(ReplayOutputTest, IsBitIdenticalOverEveryTransport) {
  const ServerProcess server;
  const TemporaryDirectory directory;
  std::vector<std::string> files;
  for (const std::string transport : {"unary", "stream", "inline"}) {
    const std::string path = directory.path() + "/" + transport;
    ASSERT_EQ(RunClient(server.unix_address(),
                        {"replay", "--input", GoldenFile("k96_v80"), "--output", path, "--transport", transport})
                  .exit_code,
              0);
    files.push_back(FileContent(path));
  }
  EXPECT_FALSE(files[0].empty());
  EXPECT_EQ(files[0], files[1]);
  EXPECT_EQ(files[0], files[2]);
}

/// A golden batch to be changed.
struct Recording {
  std::map<std::string, std::string> metadata;
  std::map<std::string, std::vector<std::byte>> tensors;
};

void WriteChanged(const std::string& batch, const std::string& path, const std::function<void(Recording*)>& change) {
  const SafetensorsFile file = SafetensorsFile::Open(GoldenFile(batch)).value();
  Recording recording{file.metadata(), {}};
  for (const std::string& name : file.names()) {
    const auto data = file.Data(*file.Find(name));
    recording.tensors[name].assign(data.begin(), data.end());
  }
  change(&recording);
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, bytes] : recording.tensors) {
    tensors.push_back({name, file.Find(name)->dtype, file.Find(name)->shape, bytes});
  }
  ASSERT_TRUE(WriteSafetensors(path, tensors, recording.metadata).ok());
}

TEST(ReplayFailureTest, ResultsBeyondTheLimitsAreOneWithTheTable) {
  const ServerProcess server;
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/changed.safetensors";
  // A recording that claims an exact kernel: no bfloat16 v_new comes as near.
  WriteChanged("strong_decay", path, [](Recording* recording) { recording->metadata["triton_err_v_new"] = "0"; });
  ProgramResult result = RunClient(server.tcp_address(), {"replay", "--input", path, "--check"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("\nFAIL\n"));
  EXPECT_THAT(result.errors, HasSubstr(path + ": the server's results are beyond the limits"));
  result = RunClient(server.tcp_address(), {"replay", "--input", path, "--check", "--json"});
  EXPECT_EQ(result.exit_code, 1);
  const nlohmann::json json = nlohmann::json::parse(result.output);
  EXPECT_EQ(json["check"]["pass"], false);
  EXPECT_EQ(json["check"]["tensors"][1]["name"], "v_new");
  EXPECT_EQ(json["check"]["tensors"][1]["pass"], false);
}

TEST(ReplayFailureTest, TheServersRefusalIsOneAndTheCacheGoes) {
  const ServerProcess server;
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/changed.safetensors";
  WriteChanged("strong_decay", path, [](Recording* recording) {
    std::vector<std::byte>& slots = recording->tensors["state_indices"];
    std::copy_n(slots.begin(), 4, slots.begin() + 4);  // the same slot twice
  });
  const ProgramResult result = RunClient(server.tcp_address(), {"replay", "--input", path, "--check"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr("gdpcache replay: INVALID_ARGUMENT: "));
  EXPECT_THAT(result.errors, HasSubstr("state_indices"));
  EXPECT_TRUE(RunJson(server.tcp_address(), {"caches"})["caches"].empty());
}

TEST(ReplayFailureTest, AnOutputThatCannotBeWrittenIsOneAndIsNamed) {
  const ServerProcess server;
  const ProgramResult result =
      RunClient(server.tcp_address(), {"replay", "--input", GoldenFile("chunk16"), "--output", "/nonexistent/out"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr("/nonexistent/out"));
}

}  // namespace
}  // namespace gdpcache::test
