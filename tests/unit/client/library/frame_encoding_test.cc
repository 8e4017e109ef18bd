#include "client/library/frame_encoding.h"

#include <string>
#include <vector>

#include "gdpcache/v1/prefill.pb.h"
#include "gdpcache/v1/session.pb.h"
#include "gtest/gtest.h"

namespace gdpcache::client {
namespace {

std::vector<grpc::Slice> Slices(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  return slices;
}

std::string Bytes(const grpc::ByteBuffer& buffer) {
  std::string bytes;
  for (const grpc::Slice& slice : Slices(buffer)) bytes.append(slice.begin(), slice.end());
  return bytes;
}

Piece PieceOf(const std::string& bytes, std::int64_t offset) {
  return {v1::TENSOR_ID_INITIAL_STATE, offset, reinterpret_cast<const std::byte*>(bytes.data()),
          static_cast<std::int64_t>(bytes.size())};
}

TEST(EncodeDataFrameTest, IsWhatProtobufParses) {
  for (const std::size_t size : {0, 1, 127, 128, 5000, 1 << 20}) {
    for (const std::int64_t offset : {std::int64_t{0}, std::int64_t{300}, std::int64_t{1} << 61}) {
      const std::string payload(size, 'p');
      BorrowedMemory memory;
      const grpc::ByteBuffer encoded = EncodeDataFrame(PieceOf(payload, offset), memory);
      v1::PrefillFrame prefill;
      v1::WriteSlotsFrame write;
      ASSERT_TRUE(prefill.ParseFromString(Bytes(encoded)));
      ASSERT_TRUE(write.ParseFromString(Bytes(encoded)));
      EXPECT_EQ(prefill.data().tensor(), v1::TENSOR_ID_INITIAL_STATE);
      EXPECT_EQ(prefill.data().offset(), offset);
      EXPECT_EQ(prefill.data().payload(), payload);
      EXPECT_EQ(write.data().SerializeAsString(), prefill.data().SerializeAsString());
    }
  }
}

TEST(EncodeDataFrameTest, SendsLargePayloadsFromTheCallersMemory) {
  const std::string payload(100'000, 'p');
  BorrowedMemory memory;
  const grpc::ByteBuffer encoded = EncodeDataFrame(PieceOf(payload, 0), memory);
  const std::vector<grpc::Slice> slices = Slices(encoded);
  ASSERT_EQ(slices.size(), 2);
  EXPECT_EQ(reinterpret_cast<const char*>(slices[1].begin()), payload.data());
}

TEST(EncodeWithTensorsTest, IsWhatProtobufParses) {
  v1::PrefillRequest request;
  request.set_session("abc");
  request.set_request_id("id");
  v1::Tensor header;
  header.set_dtype(v1::DATA_TYPE_BFLOAT16);
  header.add_shape(2);
  header.add_shape(25'000);
  const std::string large(100'000, 'l');
  const std::string small = "s";
  BorrowedMemory memory;
  const grpc::ByteBuffer encoded = EncodeWithTensors(
      request,
      {{v1::PrefillRequest::kKFieldNumber, header, reinterpret_cast<const std::byte*>(large.data()), 100'000},
       {v1::PrefillRequest::kAuxiliaryStateFieldNumber, header, reinterpret_cast<const std::byte*>(small.data()), 1},
       {v1::PrefillRequest::kGFieldNumber, header, nullptr, 0}},
      memory);
  v1::PrefillRequest parsed;
  ASSERT_TRUE(parsed.ParseFromString(Bytes(encoded)));
  EXPECT_EQ(parsed.session(), "abc");
  EXPECT_EQ(parsed.request_id(), "id");
  EXPECT_EQ(parsed.k().dtype(), v1::DATA_TYPE_BFLOAT16);
  EXPECT_EQ(parsed.k().shape(1), 25'000);
  EXPECT_EQ(parsed.k().inline_(), large);
  EXPECT_EQ(parsed.auxiliary_state().inline_(), small);
  EXPECT_EQ(parsed.g().data_case(), v1::Tensor::kInline);
  EXPECT_EQ(parsed.g().inline_(), "");
  EXPECT_FALSE(parsed.has_w());
}

TEST(EncodeWithTensorsTest, TakesNoTensorsToo) {
  v1::PrefillRequest request;
  request.set_session("abc");
  BorrowedMemory memory;
  EXPECT_EQ(Bytes(EncodeWithTensors(request, {}, memory)), request.SerializeAsString());
}

}  // namespace
}  // namespace gdpcache::client
