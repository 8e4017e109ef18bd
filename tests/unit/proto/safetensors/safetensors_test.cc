#include "proto/safetensors/safetensors.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/file_content.h"

namespace gdpcache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

/// A file with this header text and `data_bytes` bytes of data.
std::string FileWith(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  file += header;
  file.append(data_bytes, '\x5a');
  return file;
}

/// A header of one tensor "a" with these fields.
std::string OneTensor(const std::string& fields) { return R"({"a":{)" + fields + "}}"; }

class SafetensorsFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/safetensors.XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return directory_ / name; }

  void Store(const std::string& name, const std::string& bytes) const {
    std::ofstream(Path(name), std::ios::binary) << bytes;
  }

  std::filesystem::path directory_;
};

const std::vector<float> kFloats = {1.5F, -2.0F, 0.0F, 3.25F, 4.0F, -5.5F};
const std::vector<std::uint8_t> kBytes = {1, 2, 3};

std::vector<TensorToWrite> Tensors() {
  return {{"state", "F32", {2, 3}, {reinterpret_cast<const std::byte*>(kFloats.data()), 24}},
          {"auxiliary", "U8", {3}, {reinterpret_cast<const std::byte*>(kBytes.data()), 3}},
          {"empty", "BF16", {4, 0}, {}},
          {"scalar", "U8", {}, {reinterpret_cast<const std::byte*>(kBytes.data()), 1}}};
}

TEST_F(SafetensorsFileTest, WrittenFileReadsBackEqual) {
  ASSERT_TRUE(WriteSafetensors(Path("x"), Tensors(), {{"name", "a \"quoted\" ünïcode"}, {"empty", ""}}).ok());
  const auto file = SafetensorsFile::Open(Path("x"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->metadata(), ElementsAre(Pair("empty", ""), Pair("name", "a \"quoted\" ünïcode")));
  EXPECT_THAT(file->names(), ElementsAre("auxiliary", "empty", "scalar", "state"));
  const TensorInfo* state = file->Find("state");
  ASSERT_NE(state, nullptr);
  EXPECT_EQ(state->dtype, "F32");
  EXPECT_THAT(state->shape, ElementsAre(2, 3));
  EXPECT_EQ(state->elements, 6);
  ASSERT_EQ(file->Data(*state).size(), 24U);
  EXPECT_EQ(std::memcmp(file->Data(*state).data(), kFloats.data(), 24), 0);
  const TensorInfo* auxiliary = file->Find("auxiliary");
  ASSERT_NE(auxiliary, nullptr);
  EXPECT_EQ(std::memcmp(file->Data(*auxiliary).data(), kBytes.data(), 3), 0);
  EXPECT_EQ(file->Find("empty")->elements, 0);
  EXPECT_EQ(file->Find("scalar")->elements, 1);
  EXPECT_EQ(file->Find("absent"), nullptr);
}

TEST_F(SafetensorsFileTest, CopiesOutliveTheOriginal) {
  ASSERT_TRUE(WriteSafetensors(Path("x"), Tensors(), {}).ok());
  auto file = SafetensorsFile::Open(Path("x"));
  ASSERT_TRUE(file.ok());
  const SafetensorsFile copy = *file;
  file = absl::CancelledError();
  EXPECT_EQ(std::memcmp(copy.Data(*copy.Find("state")).data(), kFloats.data(), 24), 0);
}

TEST_F(SafetensorsFileTest, ParseAgreesWithOpen) {
  ASSERT_TRUE(WriteSafetensors(Path("x"), Tensors(), {{"k", "v"}}).ok());
  const auto file = SafetensorsFile::Parse(test::FileContent(Path("x")));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->metadata(), ElementsAre(Pair("k", "v")));
  EXPECT_EQ(std::memcmp(file->Data(*file->Find("state")).data(), kFloats.data(), 24), 0);
}

TEST_F(SafetensorsFileTest, ParseKeepsTheDataOfAVeryShortFile) {
  // Short enough for std::string to keep it inside the object, where moving would change its address.
  const auto file = SafetensorsFile::Parse(FileWith("{}", 0));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->names(), IsEmpty());
}

TEST_F(SafetensorsFileTest, WritingReplacesTheOldFileAndLeavesNoTemporaryOne) {
  Store("x", "old");
  ASSERT_TRUE(WriteSafetensors(Path("x"), Tensors(), {}).ok());
  EXPECT_TRUE(SafetensorsFile::Open(Path("x")).ok());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_), {}), 1);
}

TEST_F(SafetensorsFileTest, FailedRenameLeavesNothingBehind) {
  std::filesystem::create_directory(Path("x"));
  EXPECT_FALSE(WriteSafetensors(Path("x"), Tensors(), {}).ok());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_), {}), 1);
}

TEST_F(SafetensorsFileTest, WritingReplacesNothingButFiles) {
  ASSERT_EQ(mkfifo(Path("x").c_str(), 0600), 0);
  EXPECT_EQ(WriteSafetensors(Path("x"), Tensors(), {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(std::filesystem::is_fifo(Path("x")));
}

TEST_F(SafetensorsFileTest, WritingIntoAMissingDirectoryIsNotFound) {
  EXPECT_EQ(WriteSafetensors(Path("no/x"), Tensors(), {}).code(), absl::StatusCode::kNotFound);
}

TEST_F(SafetensorsFileTest, WriterRefusesWhatItsReaderWouldRefuse) {
  const std::vector<std::byte> eight(8);
  const auto written = [&](const std::vector<TensorToWrite>& tensors) {
    return WriteSafetensors(Path("x"), tensors, {}).code();
  };
  EXPECT_EQ(written({{"a", "F32", {3}, eight}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(written({{"a", "FP4", {8}, eight}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(written({{"a", "F32", {-1, -2}, eight}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(written({{"__metadata__", "F32", {2}, eight}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(written({{"a", "F32", {2}, eight}, {"a", "F32", {2}, eight}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(written({{"\xff", "F32", {2}, eight}}), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(Path("x")));
}

TEST_F(SafetensorsFileTest, OpenRefusesWhatIsNoRegularFile) {
  EXPECT_EQ(SafetensorsFile::Open(Path("absent")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SafetensorsFile::Open(directory_).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(::mkfifo(Path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(SafetensorsFile::Open(Path("fifo")).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SafetensorsFileTest, OpenRefusesAFileAboveTheLimit) {
  Store("x", FileWith(OneTensor(R"("dtype":"U8","shape":[100],"data_offsets":[0,100])"), 100));
  EXPECT_TRUE(SafetensorsFile::Open(Path("x")).ok());
  EXPECT_EQ(SafetensorsFile::Open(Path("x"), 64).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SafetensorsFileTest, EveryTruncationIsRefused) {
  ASSERT_TRUE(WriteSafetensors(Path("x"), Tensors(), {{"k", "v"}}).ok());
  const std::string whole = test::FileContent(Path("x"));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto parsed = SafetensorsFile::Parse(whole.substr(0, size));
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kDataLoss) << size << ": " << parsed.status();
    Store("cut", whole.substr(0, size));
    EXPECT_EQ(SafetensorsFile::Open(Path("cut")).status().code(), absl::StatusCode::kDataLoss) << size;
  }
  EXPECT_FALSE(SafetensorsFile::Parse(whole + "x").ok());
}

TEST_F(SafetensorsFileTest, RandomlyDamagedHeadersNeverCrash) {
  ASSERT_TRUE(WriteSafetensors(Path("x"), Tensors(), {{"k", "v"}}).ok());
  const std::string whole = test::FileContent(Path("x"));
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = whole;
    for (unsigned flips = 1 + random() % 3; flips > 0; --flips)
      damaged[random() % damaged.size()] ^= 1U << (random() % 8);
    const auto file = SafetensorsFile::Parse(damaged);
    if (!file.ok()) continue;
    for (const std::string& name : file->names()) {
      const TensorInfo* tensor = file->Find(name);
      ASSERT_NE(tensor, nullptr);
      unsigned sum = 0;
      for (const std::byte byte : file->Data(*tensor)) sum += std::to_integer<unsigned>(byte);
      EXPECT_LE(sum, 255U * static_cast<unsigned>(tensor->size));
    }
  }
}

struct HostileFile {
  const char* name;
  std::string bytes;
  const char* reason;
};

class HostileSafetensorsTest : public ::testing::TestWithParam<HostileFile> {};

TEST_P(HostileSafetensorsTest, IsRefusedWithItsReason) {
  const auto file = SafetensorsFile::Parse(GetParam().bytes);
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(file.status().code(), ::testing::AnyOf(absl::StatusCode::kInvalidArgument, absl::StatusCode::kDataLoss));
  EXPECT_THAT(std::string(file.status().message()), HasSubstr(GetParam().reason));
}

std::string LengthOnly(std::uint64_t length) {
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + "{}";
}

std::string Deep() {
  std::string nested(1 << 20, '[');
  return FileWith(R"({"a":)" + nested, 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, HostileSafetensorsTest,
    ::testing::Values(
        HostileFile{"Empty", "", "has 0 bytes"},  //
        HostileFile{"HugeHeaderLength", LengthOnly(std::numeric_limits<std::uint64_t>::max()), "header length"},
        HostileFile{"SignedOverflowHeaderLength", LengthOnly(std::uint64_t{1} << 63), "header length"},
        HostileFile{"HeaderLengthBeyondFile", LengthOnly(3), "only 2 bytes follow"},
        HostileFile{"ZeroHeaderLength", LengthOnly(0), "start with '{'"},
        HostileFile{"NotAnObject", FileWith("[]", 0), "start with '{'"},
        HostileFile{"BadJson", FileWith("{\"a\":}", 0), "no valid JSON at byte"},
        HostileFile{"TrailingJson", FileWith("{}{}", 0), "no valid JSON at byte"},
        HostileFile{"NotUtf8", FileWith("{\"\xff\":{}}", 0), "no valid JSON at byte"},
        HostileFile{"DeepNesting", Deep(), "an array was not expected"},
        HostileFile{"NestedObject", FileWith(OneTensor(R"("dtype":{"a":1})"), 0), "an object was not expected"},
        HostileFile{"NestedShape", FileWith(OneTensor(R"("shape":[[1]])"), 0), "an array was not expected"},
        HostileFile{"TensorIsNumber", FileWith(R"({"a":1})", 0), "the number 1 was not expected"},
        HostileFile{"TensorIsNull", FileWith(R"({"a":null})", 0), "null was not expected"},
        HostileFile{"MetadataIsNumber", FileWith(R"({"__metadata__":{"a":1}})", 0), "not expected"},
        HostileFile{"MetadataTwice", FileWith(R"({"__metadata__":{},"__metadata__":{}})", 0), "twice"},
        HostileFile{"MetadataKeyTwice", FileWith(R"({"__metadata__":{"a":"1","a":"2"}})", 0), "twice"},
        HostileFile{"UnknownField", FileWith(OneTensor(R"("dtype":"U8","extra":1)"), 0), "unknown field 'extra'"},
        HostileFile{"FieldTwice", FileWith(OneTensor(R"("dtype":"U8","dtype":"U8")"), 0), "dtype twice"},
        HostileFile{"MissingShape", FileWith(OneTensor(R"("dtype":"U8","data_offsets":[0,1])"), 1), "needs dtype"},
        HostileFile{"UnknownDtype", FileWith(OneTensor(R"("dtype":"U9","shape":[1],"data_offsets":[0,1])"), 1), "U9"},
        HostileFile{"DtypeIsNumber", FileWith(OneTensor(R"("dtype":8)"), 0), "not expected"},
        HostileFile{"NegativeDimension", FileWith(OneTensor(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"), 1),
                    "-1 was not expected"},
        HostileFile{"FractionalDimension", FileWith(OneTensor(R"("dtype":"U8","shape":[1.0],"data_offsets":[0,1])"), 1),
                    "1.0 was not expected"},
        HostileFile{"DimensionBeyondInt64",
                    FileWith(OneTensor(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1])"), 1),
                    "too large"},
        HostileFile{"DimensionBeyondDouble", FileWith(OneTensor(R"("dtype":"U8","shape":[1e999])"), 1),
                    "no valid JSON"},
        HostileFile{"ShapeOverflow",
                    FileWith(OneTensor(R"("dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0),
                    "overflows"},
        HostileFile{"ShapeOverflowHiddenByZero",
                    FileWith(OneTensor(R"("dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0])"), 0),
                    "overflows"},
        HostileFile{"TooManyDimensions",
                    FileWith(OneTensor(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,)"
                                       R"(1,1,1,1,1,1,1,1],"data_offsets":[0,1])"),
                             1),
                    "dimensions"},
        HostileFile{"OneOffset", FileWith(OneTensor(R"("dtype":"U8","shape":[1],"data_offsets":[0])"), 1),
                    "two numbers"},
        HostileFile{"ThreeOffsets", FileWith(OneTensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,2])"), 1),
                    "not expected"},
        HostileFile{"DescendingOffsets", FileWith(OneTensor(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])"), 1),
                    "descend"},
        HostileFile{"SizeMismatch", FileWith(OneTensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4),
                    "need 8"},
        HostileFile{"BeyondData", FileWith(OneTensor(R"("dtype":"U8","shape":[9],"data_offsets":[0,9])"), 8),
                    "the file has 8"},
        HostileFile{"OffsetsNearInt64Max",
                    FileWith(OneTensor(R"("dtype":"U8","shape":[1],)"
                                       R"("data_offsets":[9223372036854775806,9223372036854775807])"),
                             1),
                    "starts at byte 9223372036854775806"},
        HostileFile{"GapAtTheStart", FileWith(OneTensor(R"("dtype":"U8","shape":[1],"data_offsets":[1,2])"), 2),
                    "starts at byte 1"},
        HostileFile{"UnusedTail", FileWith(OneTensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1])"), 2),
                    "end at byte 1"},
        HostileFile{"Overlap",
                    FileWith(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                             R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                             3),
                    "starts at byte 1"},
        HostileFile{"TensorTwice",
                    FileWith(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                             2),
                    "appears twice"}),
    [](const auto& hostile) { return std::string(hostile.param.name); });

}  // namespace
}  // namespace gdpcache
