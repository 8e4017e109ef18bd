#include "server/cache/snapshots/snapshot_file.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/safetensors/safetensors.h"
#include "tests/support/file_content.h"
#include "tests/support/process.h"
#include "tests/support/sample_snapshot.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::cache {
namespace {

using test::SampleSnapshot;
using test::SmallSpace;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// What reading a file gives.
struct Taken {
  SnapshotFileInfo info;
  std::vector<std::byte> data;
};

/// Reads `file` in pieces of `piece` bytes as one of `file_bytes`.
absl::StatusOr<Taken> Read(absl::string_view file, std::size_t piece, std::int64_t file_bytes) {
  SnapshotFileReader reader(file_bytes);
  Taken taken;
  std::vector<SnapshotPart> parts;
  while (!file.empty()) {
    absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(file.data()), std::min(piece, file.size()));
    file.remove_prefix(bytes.size());
    if (absl::Status status = reader.ReadHeader(bytes); !status.ok()) return status;
    if (!reader.has_header()) continue;
    if (parts.empty()) {
      taken.info = reader.info();
      taken.data.resize(static_cast<std::size_t>(taken.info.record.space.snapshot_bytes()));
      parts = PartsIn(taken.info.record.space, taken.data.data());
    }
    std::vector<kernels::ByteCopy> copies;
    if (absl::Status status = reader.ReadData(bytes, parts, copies); !status.ok()) return status;
    for (const kernels::ByteCopy& copy : copies) std::memcpy(copy.destination, copy.source, copy.size);
  }
  if (absl::Status status = reader.Finish(); !status.ok()) return status;
  return taken;
}

absl::StatusOr<Taken> Read(absl::string_view file) {
  return Read(file, file.size(), static_cast<std::int64_t>(file.size()));
}

/// `file` with every `from` replaced by `to`, and a checksum that is right again.
std::string Forge(std::string file, absl::string_view from, absl::string_view to) {
  EXPECT_TRUE(absl::StrContains(file, from));
  file = absl::StrReplaceAll(file, {{from, to}});
  const std::size_t place = file.find(R"("checksum":")") + 12;
  file.replace(place, 32, std::string(32, '0'));
  SnapshotHasher hasher;
  hasher.Add({reinterpret_cast<const std::byte*>(file.data()), file.size()});
  const SnapshotChecksum checksum = hasher.checksum();
  return file.replace(place, 32,
                      absl::BytesToHexString({reinterpret_cast<const char*>(checksum.data()), checksum.size()}));
}

TEST(SnapshotHasherTest, IsXxh3) {
  const SnapshotChecksum checksum = SnapshotHasher().checksum();  // of nothing
  EXPECT_EQ(absl::BytesToHexString({reinterpret_cast<const char*>(checksum.data()), checksum.size()}),
            "99aa06d3014798d86001c324468d497f");
}

class SnapshotFormTest : public ::testing::TestWithParam<std::tuple<kernels::DataType, std::int64_t>> {};

TEST_P(SnapshotFormTest, WhatIsWrittenIsRead) {
  SnapshotSpace space = SmallSpace();
  std::tie(space.state_dtype, space.auxiliary_bytes) = GetParam();
  const SampleSnapshot snapshot({space, "0123456789abcdef", 1'234'567}, 1);
  const std::string file = snapshot.File();
  for (const std::size_t piece : {std::size_t{1}, std::size_t{13}, file.size()}) {
    const absl::StatusOr<Taken> taken = Read(file, piece, static_cast<std::int64_t>(file.size()));
    ASSERT_TRUE(taken.ok()) << taken.status();
    EXPECT_EQ(taken->info.record.space, space);
    EXPECT_EQ(taken->info.record.key, "0123456789abcdef");
    EXPECT_EQ(taken->info.record.position, 1'234'567);
    EXPECT_EQ(taken->data, snapshot.data());
  }
}

TEST_P(SnapshotFormTest, AnySafetensorsReaderFindsTheTensors) {
  SnapshotSpace space = SmallSpace();
  std::tie(space.state_dtype, space.auxiliary_bytes) = GetParam();
  const SampleSnapshot snapshot({space, "0123456789abcdef", 5}, 1);
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Parse(snapshot.File());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->names().size(), space.auxiliary_bytes == 0 ? 2 : 4);
  const auto expect = [&](const std::string& name, const std::vector<std::int64_t>& shape, std::int64_t element_bytes,
                          const kernels::ByteRange& bytes) {
    const TensorInfo* const tensor = file->Find(name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(tensor->shape, shape);
    EXPECT_EQ(SafetensorsElementSize(tensor->dtype), element_bytes);
    ASSERT_EQ(tensor->size, static_cast<std::int64_t>(bytes.size));
    EXPECT_EQ(std::memcmp(file->Data(*tensor).data(), bytes.data, bytes.size), 0);
  };
  for (std::size_t layer = 0; layer < 2; ++layer) {
    expect(absl::StrCat("layer.", layer, ".state"), {2, 3, 5}, kernels::ByteSize(space.state_dtype),
           snapshot.parts()[layer].state);
    if (space.auxiliary_bytes == 0) continue;
    expect(absl::StrCat("layer.", layer, ".auxiliary"), {7}, 1, snapshot.parts()[layer].auxiliary);
  }
}

INSTANTIATE_TEST_SUITE_P(, SnapshotFormTest,
                         ::testing::Combine(::testing::Values(kernels::DataType::kFloat32, kernels::DataType::kBFloat16,
                                                              kernels::DataType::kFloat16),
                                            ::testing::Values(0, 7)),
                         [](const auto& param) {
                           return absl::StrCat(std::string(kernels::Name(std::get<0>(param.param))), "_",
                                               std::get<1>(param.param), "_auxiliary_bytes");
                         });

TEST(SnapshotFileTest, TheHeaderIsTheDocumentedText) {
  SnapshotSpace space = SmallSpace();
  space.layers = 1;
  space.tenant = "Zoë \"100%\" \\";
  space.fingerprint = std::string("a\0/b", 4);
  const SampleSnapshot snapshot({space, "0123456789abcdef", 9}, 3);
  const std::string file = snapshot.File();
  const std::string expected =
      R"({"__metadata__":{"auxiliary_bytes":"7","checksum":"################################",)"
      R"("fingerprint":"a%00/b","format":"gdpcache-snapshot","format_version":"1","heads":"2",)"
      R"("key":"30313233343536373839616263646566","key_dim":"3","layers":"1","layout_version":"1",)"
      R"("num_householder":"2","position":"9","state_dtype":"float32","tenant":"Zo%C3%AB %22100%25%22 %5C",)"
      R"("value_dim":"5"},"layer.0.state":{"dtype":"F32","shape":[2,3,5],"data_offsets":[0,120]},)"
      R"("layer.0.auxiliary":{"dtype":"U8","shape":[7],"data_offsets":[120,127]}})";
  std::string header = file.substr(8, expected.size());
  const std::size_t place = header.find(R"("checksum":")") + 12;
  header.replace(place, 32, std::string(32, '#'));
  EXPECT_EQ(header, expected);

  EXPECT_EQ(file, Forge(file, "heads", "heads")) << "the checksum is not the documented one";
  const absl::StatusOr<Taken> taken = Read(file);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->info.record.space, space);
}

TEST(SnapshotFileTest, TheSameSnapshotIsTheSameFile) {
  EXPECT_EQ(SampleSnapshot(7).File(), SampleSnapshot(7).File());
  EXPECT_NE(SampleSnapshot(7).File(), SampleSnapshot(8).File());
}

TEST(SnapshotFileTest, EveryFlippedBitIsFound) {
  const std::string file = SampleSnapshot(1).File();
  ASSERT_TRUE(Read(file).ok());
  for (std::size_t at = 0; at < file.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = file;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      ASSERT_FALSE(Read(damaged).ok()) << "bit " << bit << " of byte " << at;
    }
  }
}

TEST(SnapshotFileTest, EveryOtherByteIsFoundAtEveryPlaceOfTheHeader) {
  const std::string file = SampleSnapshot(1).File();
  const std::size_t header_bytes = file.size() - SampleSnapshot(1).data().size();
  for (std::size_t at = 0; at < header_bytes; at += 7) {
    for (int value = 0; value < 256; ++value) {
      std::string damaged = file;
      damaged[at] = static_cast<char>(value);
      if (damaged[at] == file[at]) continue;
      ASSERT_FALSE(Read(damaged).ok()) << "byte " << at << " is " << value;
    }
  }
}

TEST(SnapshotFileTest, EveryTruncationIsFound) {
  const std::string file = SampleSnapshot(1).File();
  for (std::size_t size = 0; size < file.size(); ++size) {
    const absl::string_view cut = absl::string_view(file).substr(0, size);
    EXPECT_EQ(Read(cut).status().code(), absl::StatusCode::kDataLoss) << "a file of " << size;
    EXPECT_EQ(Read(cut, 100, static_cast<std::int64_t>(file.size())).status().code(), absl::StatusCode::kDataLoss)
        << "a stream of " << size;
  }
}

TEST(SnapshotFileTest, BytesBehindTheEndAreFound) {
  const std::string file = SampleSnapshot(1).File();
  EXPECT_THAT(Read(file + "x").status().message(), HasSubstr("header and snapshot have"));
  EXPECT_THAT(Read(file + "x", 10, static_cast<std::int64_t>(file.size())).status().message(),
              HasSubstr("more than the file's"));
}

TEST(SnapshotFileTest, OtherVersionsAreNamed) {
  const std::string file = SampleSnapshot(1).File();
  for (const absl::string_view name : {"format_version", "layout_version"}) {
    const absl::Status status =
        Read(Forge(file, absl::StrCat("\"", name, "\":\"1\""), absl::StrCat("\"", name, "\":\"7\""))).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(status.message(), absl::StrCat(name, " is 7; only 1 can be read"));
  }
}

TEST(SnapshotFileTest, MetadataOfLaterServersArePassedOver) {
  const SampleSnapshot snapshot(1);
  const std::string file = snapshot.File();
  const std::int64_t header_bytes = Read(file).value().info.header_bytes;
  std::map<std::string, std::string> metadata =
      ReadSafetensorsBeginning(file, static_cast<std::int64_t>(file.size())).value().metadata;
  // Before, behind and between ours, with what looks like ours inside.
  metadata["aaa"] = R"("checksum":"0123456789")";
  metadata["created_at"] = "2031-01-01";
  metadata["zzz"] = "";
  std::vector<TensorDescription> tensors;
  const SnapshotSpace& space = snapshot.record().space;
  for (const std::string layer : {"layer.0.", "layer.1."}) {
    tensors.push_back({layer + "state", "F32", {space.heads, space.key_dim, space.value_dim}});
  }
  for (const std::string layer : {"layer.0.", "layer.1."}) {
    tensors.push_back({layer + "auxiliary", "U8", {space.auxiliary_bytes}});
  }
  const std::string later =
      Forge(EncodeSafetensorsHeader(tensors, metadata).value() + file.substr(static_cast<std::size_t>(header_bytes)),
            "created_at", "created_at");
  for (const std::size_t piece : {std::size_t{1}, later.size()}) {
    const absl::StatusOr<Taken> taken = Read(later, piece, static_cast<std::int64_t>(later.size()));
    ASSERT_TRUE(taken.ok()) << taken.status();
    EXPECT_EQ(taken->data, snapshot.data());
    EXPECT_EQ(taken->info.record.position, snapshot.record().position);
  }
  // They are under the checksum like everything else.
  for (std::size_t at = 0; at < later.size(); ++at) {
    std::string damaged = later;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    ASSERT_FALSE(Read(damaged).ok()) << "byte " << at;
  }
}

TEST(SnapshotFileTest, FilesOfTheFirstServersAreReadForEver) {
  const std::string file = test::FileContent(GDPCACHE_SNAPSHOT_GOLDEN_DIRECTORY "/format_1.safetensors");
  const absl::StatusOr<Taken> taken = Read(file);
  ASSERT_TRUE(taken.ok()) << taken.status();
  // As it was written: 2 layers of [1, 8, 8], layer by layer 0, 1/4, 2/4, ..., then 3 bytes each: 1, 2, ..., 6.
  const SnapshotRecord& record = taken->info.record;
  EXPECT_EQ(record.key, "0123456789abcdef");
  EXPECT_EQ(record.position, 1'234);
  EXPECT_EQ(record.space.tenant, "default");
  EXPECT_EQ(record.space.fingerprint, "model@1");
  EXPECT_EQ(record.space.num_householder, 2);
  std::vector<float> states(128);
  ASSERT_EQ(taken->data.size(), states.size() * sizeof(float) + 6);
  std::memcpy(states.data(), taken->data.data(), states.size() * sizeof(float));
  for (std::size_t i = 0; i < states.size(); ++i) ASSERT_EQ(states[i], static_cast<float>(i) / 4);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(taken->data[states.size() * sizeof(float) + i], std::byte(i + 1));
}

TEST(SnapshotFileTest, OtherSafetensorsFilesAreNoSnapshots) {
  const absl::StatusOr<std::string> other = EncodeSafetensorsHeader({{"a", "U8", {0}}}, {{"format", "pt"}});
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(Read(*other).status().code(), absl::StatusCode::kInvalidArgument);
  const absl::StatusOr<std::string> bare = EncodeSafetensorsHeader({{"a", "U8", {0}}}, {});
  ASSERT_TRUE(bare.ok());
  EXPECT_EQ(Read(*bare).status().code(), absl::StatusCode::kDataLoss);
}

TEST(SnapshotFileTest, HeadersThatLieAreFoundThoughTheirChecksumIsRight) {
  const std::string file = SampleSnapshot(1).File();
  const std::vector<std::pair<std::string, std::string>> lies = {
      {R"("layers":"2")", R"("layers":"3")"},
      {R"("layers":"2")", R"("layers":"0")"},
      {R"("heads":"2")", R"("heads":"-")"},
      {R"("heads":"2")", R"("heads": 2 )"},
      {R"("num_householder":"2")", R"("num_householder":"0")"},
      {R"("shape":[2,3,5])", R"("shape":[3,2,5])"},
      {R"("dtype":"F32")", R"("dtype":"I32")"},
      {R"("data_offsets":[240,247])", R"("data_offsets":[247,254])"},
      {"layer.0.state", "layer.9.state"},
      {R"("tenant":"tenant")", R"("tenant":"tena%x")"},
      {R"("tenant":"tenant")", R"("tenant":"ten%61")"},
      {R"("state_dtype":"float32")", R"("state_dtype":"float64")"},
      {R"("position":"1")", R"("position":"+")"},
      {R"("key":")", R"("Key":")"},
      {R"("key":"6)", R"("key":"G)"},
      {R"("format")", R"("fOrmat")"},
      {"}}", "},"},
  };
  for (const auto& [from, to] : lies) {
    const absl::Status status = Read(Forge(file, from, to)).status();
    EXPECT_THAT(status.code(), ::testing::AnyOf(absl::StatusCode::kDataLoss, absl::StatusCode::kInvalidArgument)) << to;
  }
}

TEST(SnapshotFileTest, AHeaderThatDiffersIsQuoted) {
  const std::string file = SampleSnapshot(1).File();
  const absl::Status status = Read(Forge(file, R"("shape":[2,3,5])", R"("shape":[3,2,5])")).status();
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("it has '3,2,5]"), HasSubstr("not '2,3,5]")));
}

TEST(SnapshotFileTest, AbsurdGeometriesAreRefusedBeforeMemoryIsTaken) {
  const std::string file = SampleSnapshot(1).File();
  for (const std::string field : {"layers", "heads", "key_dim", "auxiliary_bytes"}) {
    const std::string value = field == "auxiliary_bytes" ? "7" : field == "key_dim" ? "3" : "2";
    for (const std::string absurd :
         {"65536", "9223372036854775807", "9223372036854775808", "-1", "4611686018427387904", "1e3", ""}) {
      const absl::Status status = Read(Forge(file, absl::StrCat("\"", field, "\":\"", value, "\""),
                                             absl::StrCat("\"", field, "\":\"", absurd, "\"")))
                                      .status();
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << field << " " << absurd;
    }
  }
  std::string huge = file;
  for (const std::uint64_t length :
       {~std::uint64_t{0}, std::uint64_t{1} << 63, std::uint64_t{1} << 24, std::uint64_t{0}}) {
    std::memcpy(huge.data(), &length, sizeof(length));
    EXPECT_EQ(Read(huge).status().code(), absl::StatusCode::kDataLoss) << length;
  }
}

TEST(SnapshotFileTest, TheBeginningIsEnoughForTheMetadata) {
  SnapshotSpace space = SmallSpace();
  space.layers = 300;  // the header is longer than the beginning that is read
  space.fingerprint = std::string(1'024, '\xFF');
  space.tenant = std::string(1'024, '\xFE');
  const SampleSnapshot snapshot({space, std::string(64, 'k'), 9}, 3);
  const std::string file = snapshot.File();
  const auto file_bytes = static_cast<std::int64_t>(file.size());
  const absl::string_view beginning = absl::string_view(file).substr(0, kMaxSnapshotMetadataBytes);
  const absl::StatusOr<SnapshotFileInfo> info = ReadSnapshotMetadata(beginning, file_bytes);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->record.space, space);
  EXPECT_EQ(info->record.key, snapshot.record().key);
  EXPECT_EQ(info->header_bytes, file_bytes - space.snapshot_bytes());
  EXPECT_EQ(ReadSnapshotMetadata(beginning, file_bytes - 1).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(Read(file).ok());
}

TEST(SnapshotFileTest, RecordsWithoutAFileAreRefused) {
  const auto create = [](const SnapshotRecord& record) { return SnapshotFileWriter::Create(record).status(); };
  const SnapshotRecord good = SampleSnapshot(1).record();
  EXPECT_TRUE(create(good).ok());
  SnapshotRecord bad = good;
  bad.key = "short";
  EXPECT_THAT(std::string(create(bad).message()), HasSubstr("has 5 bytes"));
  bad = good;
  bad.position = -1;
  EXPECT_EQ(create(bad).code(), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.space.layers = 0;
  EXPECT_EQ(create(bad).code(), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.space.tenant = std::string(9'000, 't');
  EXPECT_THAT(std::string(create(bad).message()), HasSubstr("the tenant 9000"));
  EXPECT_EQ(EncodeSnapshotHeader(good, {}).status().code(), absl::StatusCode::kInternal);
}

TEST(SnapshotFileTest, DifferentSpacesAreToldApart) {
  const SnapshotSpace space = SmallSpace();
  EXPECT_TRUE(CheckSameSpace(space, space).ok());
  SnapshotSpace other = space;
  other.heads = 16;
  other.fingerprint = "model@2";
  const absl::Status status = CheckSameSpace(space, other);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("heads is 2, not 16"), HasSubstr("fingerprint is 'model@1', not 'model@2'")));
  other = space;
  other.tenant = "b";
  EXPECT_THAT(std::string(CheckSameSpace(space, other).message()), HasSubstr("tenant is 'tenant', not 'b'"));
}

TEST(SnapshotFileTest, PartsOfOtherSizesAreNamed) {
  const SampleSnapshot snapshot(1);
  std::vector<SnapshotPart> parts(snapshot.parts().begin(), snapshot.parts().end());
  EXPECT_TRUE(CheckParts(SmallSpace(), parts).ok());
  parts[1].auxiliary.size = 6;
  EXPECT_EQ(CheckParts(SmallSpace(), parts).message(), "part 1 has 120 + 6 bytes, not 120 + 7");
  parts.pop_back();
  EXPECT_EQ(CheckParts(SmallSpace(), parts).message(), "there are 1 parts; the space has 2");
}

TEST(SnapshotFileTest, AnyRangeOfTheDataIsFoundInTheParts) {
  const SampleSnapshot snapshot(1);
  const auto bytes = static_cast<std::int64_t>(snapshot.data().size());
  for (std::int64_t offset = 0; offset <= bytes; ++offset) {
    for (std::int64_t size = 0; size <= bytes - offset; ++size) {
      std::vector<kernels::ByteRange> ranges;
      AppendDataRanges(snapshot.parts(), offset, size, ranges);
      // The sample's parts lie as in a file, so the ranges must follow each other.
      const std::byte* at = snapshot.data().data() + offset;
      for (const kernels::ByteRange& range : ranges) {
        ASSERT_EQ(range.data, at);
        at += range.size;
      }
      ASSERT_EQ(at, snapshot.data().data() + offset + size);
    }
  }
}

// --- other languages ---

class SnapshotInPythonTest : public ::testing::TestWithParam<std::string> {};

TEST_P(SnapshotInPythonTest, FindsMetadataAndTensors) {
  SnapshotSpace space = SmallSpace();
  space.fingerprint = std::string("a\0\xFF/b%", 6);
  space.state_dtype = kernels::DataType::kBFloat16;
  const SampleSnapshot snapshot({space, "0123456789abcdef", 77}, 5);
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/snapshot.safetensors";
  std::ofstream(path, std::ios::binary) << snapshot.File();

  const test::ProgramResult result = test::RunProgram("/usr/bin/env", {"python3", READ_SNAPSHOT_PY, GetParam(), path});
  if (result.exit_code == 127) GTEST_SKIP() << "python3 is not installed";
  if (result.exit_code == 77) GTEST_SKIP() << result.output;
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  const auto hex = [](const kernels::ByteRange& bytes) {
    return absl::BytesToHexString({static_cast<const char*>(bytes.data), bytes.size});
  };
  std::string expected = absl::StrCat("fingerprint ", absl::BytesToHexString(space.fingerprint), "\nkey ",
                                      absl::BytesToHexString("0123456789abcdef"), "\nposition 77\n");
  for (std::size_t layer = 0; layer < 2; ++layer) {
    const SnapshotPart part = snapshot.parts()[layer];
    absl::StrAppend(&expected, "layer.", layer, ".auxiliary U8 [7] ", hex(part.auxiliary), "\n");
    absl::StrAppend(&expected, "layer.", layer, ".state BF16 [2, 3, 5] ", hex(part.state), "\n");
  }
  EXPECT_EQ(result.output, expected);
}

INSTANTIATE_TEST_SUITE_P(, SnapshotInPythonTest, ::testing::Values("standard_library", "safetensors_package"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace gdpcache::cache
