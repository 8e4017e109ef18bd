#include "client/library/incoming_tensors.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gdpcache/v1/prefill.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/support/slice.h"
#include "gtest/gtest.h"

namespace gdpcache::client {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kGuard = 64;

/// A message in slices of at most `slice_size` bytes, as they come from the network.
grpc::ByteBuffer Buffer(const std::string& bytes, std::size_t slice_size = 7) {
  std::vector<grpc::Slice> slices;
  for (std::size_t i = 0; i < bytes.size(); i += slice_size) slices.emplace_back(bytes.substr(i, slice_size));
  if (slices.empty()) slices.emplace_back();
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string DataFrame(v1::TensorId tensor, std::uint64_t offset, const std::string& payload) {
  v1::PrefillFrame frame;
  frame.mutable_data()->set_tensor(tensor);
  frame.mutable_data()->set_offset(offset);
  frame.mutable_data()->set_payload(payload);
  return frame.SerializeAsString();
}

/// Expects h, [2, 5] of float32: 40 bytes, between guard bytes.
class IncomingTensorsTest : public ::testing::Test {
 protected:
  IncomingTensorsTest() : memory_(40 + 2 * kGuard, '.') {
    incoming_.Expect(v1::TENSOR_ID_H, "h", DataType::kFloat32, {2, 5},
                     reinterpret_cast<std::byte*>(memory_.data()) + kGuard, 40);
  }

  absl::StatusOr<bool> Take(const std::string& bytes) {
    grpc::ByteBuffer buffer = Buffer(bytes);
    return TakeDataFrame(buffer, incoming_);
  }

  std::string Received() const { return memory_.substr(kGuard, 40); }
  bool GuardsAreIntact() const {
    return memory_.substr(0, kGuard) == std::string(kGuard, '.') &&
           memory_.substr(kGuard + 40) == std::string(kGuard, '.');
  }

  std::string memory_;
  IncomingTensors incoming_;
};

TEST_F(IncomingTensorsTest, PutsPiecesInTheirPlace) {
  EXPECT_TRUE(*Take(DataFrame(v1::TENSOR_ID_H, 0, std::string(30, 'a'))));
  EXPECT_THAT(std::string(incoming_.CheckComplete().message()), HasSubstr("only 30 of the 40 bytes of h came"));
  EXPECT_TRUE(*Take(DataFrame(v1::TENSOR_ID_H, 30, std::string(10, 'b'))));
  EXPECT_TRUE(incoming_.CheckComplete().ok());
  EXPECT_EQ(Received(), std::string(30, 'a') + std::string(10, 'b'));
}

TEST_F(IncomingTensorsTest, RefusesWhatWasNotAskedFor) {
  EXPECT_THAT(std::string(Take(DataFrame(v1::TENSOR_ID_V_NEW, 0, "x")).status().message()),
              HasSubstr("tensor 17, which was not asked for"));
}

TEST_F(IncomingTensorsTest, RefusesGapsRepetitionsAndOverruns) {
  EXPECT_THAT(std::string(Take(DataFrame(v1::TENSOR_ID_H, 1, "x")).status().message()),
              HasSubstr("h at offset 1 instead of 0"));
  EXPECT_THAT(std::string(Take(DataFrame(v1::TENSOR_ID_H, 0, std::string(41, 'x'))).status().message()),
              HasSubstr("h has 40 bytes and 41 more were sent after the first 0"));
  ASSERT_TRUE(*Take(DataFrame(v1::TENSOR_ID_H, 0, std::string(20, 'a'))));
  EXPECT_FALSE(Take(DataFrame(v1::TENSOR_ID_H, 0, std::string(20, 'b'))).ok());
  EXPECT_FALSE(Take(DataFrame(v1::TENSOR_ID_H, 20, std::string(21, 'b'))).ok());
  EXPECT_FALSE(Take(DataFrame(v1::TENSOR_ID_H, ~std::uint64_t{0}, "b")).ok());
  EXPECT_TRUE(GuardsAreIntact());
  EXPECT_EQ(Received().substr(0, 20), std::string(20, 'a'));
}

TEST_F(IncomingTensorsTest, LeavesOtherFramesAndOtherOrdersToProtobuf) {
  v1::PrefillFrame response;
  response.mutable_response()->add_positions(1);
  EXPECT_FALSE(*Take(response.SerializeAsString()));

  // payload, then offset, then tensor
  std::string data = "\x1a\x02pp";
  data += '\x10';
  data += '\x00';
  data += "\x08\x10";
  const std::string frame = std::string("\x12") + static_cast<char>(data.size()) + data;
  EXPECT_FALSE(*Take(frame));
  v1::PrefillFrame parsed;
  ASSERT_TRUE(parsed.ParseFromString(frame));
  EXPECT_TRUE(TakeData(parsed.data(), incoming_).ok());
  EXPECT_EQ(Received().substr(0, 3), "pp.");
}

TEST_F(IncomingTensorsTest, DamagedFramesNeverWriteOutside) {
  std::mt19937 random(1);
  const std::string valid = DataFrame(v1::TENSOR_ID_H, 0, std::string(33, 'v'));
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = valid;
    for (int changes = 0; changes < 3; ++changes) {
      bytes[random() % std::min<std::size_t>(bytes.size(), 12)] = static_cast<char>(random());
    }
    bytes.resize(random() % (bytes.size() + 1));
    IncomingTensors incoming;
    incoming.Expect(v1::TENSOR_ID_H, "h", DataType::kFloat32, {2, 5},
                    reinterpret_cast<std::byte*>(memory_.data()) + kGuard, 40);
    grpc::ByteBuffer buffer = Buffer(bytes);
    const absl::StatusOr<bool> taken = TakeDataFrame(buffer, incoming);
    v1::PrefillFrame frame;
    if (taken.ok() && !*taken && ParseMessage(buffer, &frame).ok() && frame.has_data()) {
      TakeData(frame.data(), incoming).IgnoreError();
    }
    ASSERT_TRUE(GuardsAreIntact());
  }
}

TEST_F(IncomingTensorsTest, ChecksHeaders) {
  v1::Tensor header;
  header.set_dtype(v1::DATA_TYPE_FLOAT32);
  header.add_shape(2);
  header.add_shape(5);
  EXPECT_TRUE(incoming_.CheckHeader(v1::TENSOR_ID_H, true, header).ok());
  EXPECT_TRUE(incoming_.CheckHeader(v1::TENSOR_ID_V_NEW, false, {}).ok());
  EXPECT_THAT(std::string(incoming_.CheckHeader(v1::TENSOR_ID_H, false, {}).message()), HasSubstr("has no h"));
  EXPECT_FALSE(incoming_.CheckHeader(v1::TENSOR_ID_V_NEW, true, header).ok());
  header.set_shape(1, 6);
  EXPECT_THAT(std::string(incoming_.CheckHeader(v1::TENSOR_ID_H, true, header).message()),
              HasSubstr("the shape [2, 6] instead of [2, 5]"));
  header.set_shape(1, 5);
  header.set_dtype(v1::DATA_TYPE_BFLOAT16);
  EXPECT_FALSE(incoming_.CheckHeader(v1::TENSOR_ID_H, true, header).ok());
}

}  // namespace
}  // namespace gdpcache::client
