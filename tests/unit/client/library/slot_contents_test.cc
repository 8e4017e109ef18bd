#include <functional>
#include <string>
#include <vector>

#include "gdpcache/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/library/fake_server.h"

namespace gdpcache {
namespace {

using ::gdpcache::test::FakeServer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A cache of 2 layers, [H, K, V] = [1, 2, 3] in float32 (24 bytes a slot and layer) and 5 auxiliary bytes.
class SlotContentsTest : public ::testing::Test {
 protected:
  SlotContentsTest() {
    server_.geometry.set_layers(2);
    server_.geometry.set_heads(1);
    server_.geometry.set_key_dim(2);
    server_.geometry.set_value_dim(3);
    server_.geometry.set_auxiliary_bytes(5);
  }

  Session& session() {
    if (!session_.ok()) session_ = Client::Connect(server_.address())->OpenSession("model");
    EXPECT_TRUE(session_.ok()) << session_.status();
    return *session_;
  }

  static v1::SlotContents Header() {
    v1::SlotContents contents;
    contents.add_slots(7);
    contents.add_slots(4);
    for (const std::int64_t position : {64, 64, 0, 1}) contents.add_positions(position);
    contents.mutable_state()->set_dtype(v1::DATA_TYPE_FLOAT32);
    for (const std::int64_t size : {2, 2, 1, 2, 3}) contents.mutable_state()->add_shape(size);
    contents.mutable_auxiliary()->set_dtype(v1::DATA_TYPE_UINT8);
    for (const std::int64_t size : {2, 2, 5}) contents.mutable_auxiliary()->add_shape(size);
    return contents;
  }

  static void Send(grpc::ServerWriter<v1::ReadSlotsFrame>* writer, v1::TensorId tensor, std::uint64_t offset,
                   const std::string& bytes) {
    v1::ReadSlotsFrame frame;
    frame.mutable_data()->set_tensor(tensor);
    frame.mutable_data()->set_offset(offset);
    frame.mutable_data()->set_payload(bytes);
    writer->Write(frame);
  }

  /// Answers with a header as changed by the test, and all bytes.
  void AnswerReads(const std::function<void(v1::SlotContents*)>& change) {
    const auto answer = [change](const v1::ReadSlotsRequest& request, grpc::ServerWriter<v1::ReadSlotsFrame>* writer) {
      EXPECT_THAT(request.slots(), ElementsAre(7, 4));
      v1::ReadSlotsFrame frame;
      *frame.mutable_contents() = Header();
      change(frame.mutable_contents());
      writer->Write(frame);
      Send(writer, v1::TENSOR_ID_STATE, 0, std::string(50, 's'));
      Send(writer, v1::TENSOR_ID_STATE, 50, std::string(46, 't'));
      Send(writer, v1::TENSOR_ID_AUXILIARY, 0, std::string(20, 'a'));
      return grpc::Status::OK;
    };
    server_.Change([&] { server_.read_slots = answer; });
  }

  FakeServer server_;
  absl::StatusOr<Session> session_ = absl::UnknownError("not open yet");
};

TEST_F(SlotContentsTest, ReadsStateAndAuxiliaryBytes) {
  AnswerReads([](v1::SlotContents*) {});
  absl::StatusOr<SlotContents> contents = session().ReadSlots({7, 4});
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_THAT(contents->slots, ElementsAre(7, 4));
  EXPECT_THAT(contents->layers, ElementsAre(0, 1));
  EXPECT_THAT(contents->positions, ElementsAre(64, 64, 0, 1));
  EXPECT_THAT(contents->state.shape(), ElementsAre(2, 2, 1, 2, 3));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(contents->state.data()), 96),
            std::string(50, 's') + std::string(46, 't'));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(contents->auxiliary.data()), 20), std::string(20, 'a'));
}

TEST_F(SlotContentsTest, ReadsIntoTheCallersMemory) {
  AnswerReads([](v1::SlotContents*) {});
  std::vector<char> state(96);
  SlotOutputs outputs;
  outputs.state = Tensor{DataType::kFloat32, {2, 2, 6}, state.data()};
  const absl::StatusOr<SlotContents> contents = session().ReadSlots({7, 4}, {}, outputs);
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(contents->state.data(), nullptr);
  EXPECT_EQ(std::string(state.begin(), state.end()), std::string(50, 's') + std::string(46, 't'));
  outputs.state->shape = {95};
  EXPECT_EQ(session().ReadSlots({7, 4}, {}, outputs).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SlotContentsTest, RefusesAnswersToOtherQuestions) {
  const std::vector<std::function<void(v1::SlotContents*)>> changes = {
      [](v1::SlotContents* contents) { contents->set_slots(0, 8); },
      [](v1::SlotContents* contents) { contents->add_layers(0); },
      [](v1::SlotContents* contents) { contents->add_positions(0); },
      [](v1::SlotContents* contents) { contents->mutable_state()->set_shape(0, 3); },
      [](v1::SlotContents* contents) { contents->clear_auxiliary(); },
  };
  for (const auto& change : changes) {
    AnswerReads(change);
    EXPECT_EQ(session().ReadSlots({7, 4}).status().code(), absl::StatusCode::kInternal);
  }
}

TEST_F(SlotContentsTest, RefusesIncompleteAnswers) {
  server_.read_slots = [](const v1::ReadSlotsRequest&, grpc::ServerWriter<v1::ReadSlotsFrame>* writer) {
    v1::ReadSlotsFrame frame;
    *frame.mutable_contents() = Header();
    writer->Write(frame);
    Send(writer, v1::TENSOR_ID_STATE, 0, std::string(50, 's'));
    return grpc::Status::OK;
  };
  EXPECT_THAT(std::string(session().ReadSlots({7, 4}).status().message()),
              HasSubstr("only 50 of the 96 bytes of state"));
  server_.Change([this] {
    server_.read_slots = [](const v1::ReadSlotsRequest&, grpc::ServerWriter<v1::ReadSlotsFrame>*) {
      return grpc::Status::OK;
    };
  });
  EXPECT_THAT(std::string(session().ReadSlots({7, 4}).status().message()), HasSubstr("ended without contents"));
}

TEST_F(SlotContentsTest, WritesHeaderAndThenTheBytes) {
  const std::string state(3'000'000, 's');
  const std::string auxiliary(20, 'a');
  const std::vector<std::int64_t> slots = {7, 4};
  const std::vector<std::int64_t> positions = {1, 2, 3, 4};
  server_.write_slots = [&](grpc::ServerReader<v1::WriteSlotsFrame>* reader) {
    v1::WriteSlotsFrame frame;
    EXPECT_TRUE(reader->Read(&frame));
    EXPECT_EQ(frame.header().session(), "s");
    EXPECT_THAT(frame.header().contents().slots(), ElementsAre(7, 4));
    EXPECT_THAT(frame.header().contents().positions(), ElementsAre(1, 2, 3, 4));
    EXPECT_EQ(frame.header().contents().auxiliary().dtype(), v1::DATA_TYPE_UINT8);
    std::string received[2];
    while (reader->Read(&frame)) {
      std::string& bytes = received[frame.data().tensor() == v1::TENSOR_ID_STATE ? 0 : 1];
      EXPECT_EQ(frame.data().offset(), bytes.size());
      bytes += frame.data().payload();
    }
    EXPECT_EQ(received[0], state);
    EXPECT_EQ(received[1], auxiliary);
    return grpc::Status::OK;
  };
  SlotUpdate update;
  update.slots = slots;
  update.positions = positions;
  update.state = {DataType::kFloat32, {750'000}, state.data()};
  update.auxiliary = ConstTensor{DataType::kUInt8, {20}, auxiliary.data()};
  EXPECT_TRUE(session().WriteSlots(update).ok());
}

TEST_F(SlotContentsTest, BringsTheServersErrorWhileWriting) {
  server_.write_slots = [](grpc::ServerReader<v1::WriteSlotsFrame>*) {
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "slot 7 is not yours");
  };
  const std::vector<char> state(30'000'000);
  SlotUpdate update;
  update.state = {DataType::kUInt8, {30'000'000}, state.data()};
  const absl::Status status = session().WriteSlots(update);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(status.message(), "slot 7 is not yours");
}

}  // namespace
}  // namespace gdpcache
