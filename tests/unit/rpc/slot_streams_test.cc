#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "tests/reference/random_problem.h"
#include "tests/support/eventually.h"
#include "tests/unit/rpc/served_world.h"

namespace gdpcache::rpc {
namespace {

using engine::Fingerprint;
using test::Eventually;

constexpr cache::Geometry kGeometry = {.layers = 2,
                                       .slots = 3,
                                       .heads = 2,
                                       .key_dim = 64,
                                       .value_dim = 32,
                                       .num_householder = 1,
                                       .state_dtype = kernels::DataType::kBFloat16,
                                       .auxiliary_bytes = 11};

void Fill(cache::Cache& cache) {
  for (std::int64_t layer = 0; layer < cache.geometry().layers; ++layer) {
    for (std::int64_t slot = 0; slot < cache.geometry().slots; ++slot) {
      const auto mark = static_cast<int>(10 * layer + slot + 1);
      std::memset(cache.pool().State(layer, slot).data, mark, cache.geometry().state_bytes());
      const kernels::ByteRange auxiliary = cache.pool().Auxiliary(layer, slot);
      std::memset(auxiliary.data, 100 + mark, auxiliary.size);
      cache.slots().SetPosition(layer, slot, mark);
    }
  }
}

struct Contents {
  grpc::Status status;
  v1::SlotContents header;
  std::string state;
  std::string auxiliary;
};

Contents Read(v1::StateCache::Stub& stub, const v1::ReadSlotsRequest& request) {
  grpc::ClientContext context;
  const auto stream = stub.ReadSlots(&context, request);
  Contents contents;
  v1::ReadSlotsFrame frame;
  while (stream->Read(&frame)) {
    if (frame.has_contents()) {
      contents.header = frame.contents();
      continue;
    }
    std::string& tensor = frame.data().tensor() == v1::TENSOR_ID_STATE ? contents.state : contents.auxiliary;
    EXPECT_EQ(frame.data().offset(), tensor.size());
    tensor += frame.data().payload();
  }
  contents.status = stream->Finish();
  return contents;
}

v1::WriteSlotsFrame HeaderOf(const std::string& session, const v1::SlotContents& contents) {
  v1::WriteSlotsFrame frame;
  frame.mutable_header()->set_session(session);
  *frame.mutable_header()->mutable_contents() = contents;
  return frame;
}

v1::WriteSlotsFrame DataOf(v1::TensorId tensor, std::uint64_t offset, const std::string& payload) {
  v1::WriteSlotsFrame frame;
  frame.mutable_data()->set_tensor(tensor);
  frame.mutable_data()->set_offset(offset);
  frame.mutable_data()->set_payload(payload);
  return frame;
}

grpc::Status Write(v1::StateCache::Stub& stub, const std::string& session, const v1::SlotContents& contents,
                   const std::string& state, const std::string& auxiliary) {
  grpc::ClientContext context;
  v1::WriteSlotsResponse response;
  const auto stream = stub.WriteSlots(&context, &response);
  stream->Write(HeaderOf(session, contents));
  constexpr std::size_t kFrame = 1000;
  for (std::size_t offset = 0; offset < state.size(); offset += kFrame) {
    stream->Write(DataOf(v1::TENSOR_ID_STATE, offset, state.substr(offset, kFrame)));
  }
  if (!auxiliary.empty()) stream->Write(DataOf(v1::TENSOR_ID_AUXILIARY, 0, auxiliary));
  stream->WritesDone();
  return stream->Finish();
}

TEST(SlotStreams, WhatIsReadCanBeWrittenElsewhere) {
  ServedWorld world({.segment_bytes = 5000});
  const auto from = world.OpenSession(kGeometry);
  const auto to = world.OpenSession(kGeometry);
  Fill(*from->cache());
  v1::ReadSlotsRequest request;
  request.set_session(from->id());
  for (const std::int64_t slot : {2, 0, 1}) request.add_slots(slot);
  Contents contents = Read(*world.stub, request);
  ASSERT_TRUE(contents.status.ok()) << contents.status.error_message();
  EXPECT_THAT(contents.header.positions(), ::testing::ElementsAre(3, 13, 1, 11, 2, 12));
  EXPECT_THAT(contents.header.state().shape(), ::testing::ElementsAre(3, 2, 2, 64, 32));
  EXPECT_THAT(contents.header.auxiliary().shape(), ::testing::ElementsAre(3, 2, 11));
  ASSERT_TRUE(Write(*world.stub, to->id(), contents.header, contents.state, contents.auxiliary).ok());
  EXPECT_EQ(Fingerprint(*to->cache()), Fingerprint(*from->cache()));
}

TEST(SlotStreams, ErrorsCarryTheirStatus) {
  ServedWorld world;
  const auto session = world.OpenSession(kGeometry);
  v1::ReadSlotsRequest request;
  request.set_session("nobody");
  EXPECT_EQ(Read(*world.stub, request).status.error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_session(session->id());
  request.add_slots(3);
  EXPECT_EQ(Read(*world.stub, request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_slots(0, 1);
  request.set_session(world.OpenSessionOn(*session->cache())->id());
  EXPECT_EQ(Read(*world.stub, request).status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

class WriteSlotsFault : public ::testing::Test {
 protected:
  WriteSlotsFault() {
    session_ = world_.OpenSession(kGeometry);
    Fill(*session_->cache());
    before_ = Fingerprint(*session_->cache());
    v1::ReadSlotsRequest request;
    request.set_session(session_->id());
    request.add_slots(1);
    contents_ = Read(*world_.stub, request);
  }

  void ExpectUntouched() {
    EXPECT_TRUE(Eventually([&] { return world_.engine->staging().used() == 0; }));
    EXPECT_EQ(Fingerprint(*session_->cache()), before_);
    EXPECT_TRUE(Write(*world_.stub, session_->id(), contents_.header, contents_.state, contents_.auxiliary).ok());
  }

  ServedWorld world_;
  std::shared_ptr<cache::Session> session_;
  std::size_t before_ = 0;
  Contents contents_;
};

TEST_F(WriteSlotsFault, TruncatedOverlongAndWrongHeadersChangeNothing) {
  const auto write = [&](const v1::SlotContents& header, const std::string& state) {
    const grpc::Status status = Write(*world_.stub, session_->id(), header, state, contents_.auxiliary);
    return std::pair(status.error_code(), status.error_message());
  };
  EXPECT_EQ(write(contents_.header, contents_.state.substr(1)).first, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(write(contents_.header, contents_.state + "x").first, grpc::StatusCode::INVALID_ARGUMENT);
  v1::SlotContents header = contents_.header;
  header.mutable_state()->set_dtype(v1::DATA_TYPE_FLOAT32);
  EXPECT_EQ(write(header, contents_.state),
            std::pair(grpc::StatusCode::INVALID_ARGUMENT,
                      std::string("contents.state.dtype is float32; it must be bfloat16")));
  header = contents_.header;
  header.mutable_state()->set_dtype(static_cast<v1::DataType>(77));
  EXPECT_EQ(write(header, contents_.state).first, grpc::StatusCode::INVALID_ARGUMENT);
  header = contents_.header;
  header.set_slots(0, -1);
  EXPECT_EQ(write(header, contents_.state).first, grpc::StatusCode::INVALID_ARGUMENT);
  ExpectUntouched();
}

TEST_F(WriteSlotsFault, CancelledChangesNothingAndGivesTheSlotBack) {
  grpc::ClientContext context;
  v1::WriteSlotsResponse response;
  const auto stream = world_.stub->WriteSlots(&context, &response);
  ASSERT_TRUE(stream->Write(HeaderOf(session_->id(), contents_.header)));
  ASSERT_TRUE(stream->Write(DataOf(v1::TENSOR_ID_STATE, 0, std::string(500, 'x'))));
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  ExpectUntouched();
}

TEST_F(WriteSlotsFault, NothingOrGarbageFirstIsRefused) {
  for (const bool garbage : {false, true}) {
    grpc::ClientContext context;
    v1::WriteSlotsResponse response;
    const auto stream = world_.stub->WriteSlots(&context, &response);
    if (garbage) stream->Write(DataOf(v1::TENSOR_ID_STATE, 0, "x"));
    stream->WritesDone();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  ExpectUntouched();
}

TEST(SlotStreams, AReaderThatDoesNotReadIsLetGoWithItsSession) {
  ServedWorld world({.segment_bytes = 1 << 20});
  cache::Geometry geometry = kGeometry;
  geometry.heads = 64;
  geometry.slots = 64;  // 32 MiB
  const auto session = world.OpenSession(geometry);
  v1::ReadSlotsRequest request;
  request.set_session(session->id());
  for (std::int64_t slot = 0; slot < geometry.slots; ++slot) request.add_slots(slot);
  grpc::ClientContext context;
  const auto stream = world.stub->ReadSlots(&context, request);
  EXPECT_TRUE(Eventually([&] { return world.backend.calls(engine::Operation::kCopyBytes) > 1; }));
  const std::int64_t renewals = 50;  // what the transport swallows may renew the lease a few times
  EXPECT_TRUE(Eventually([&] {
    world.clock.Advance(absl::Minutes(2));
    world.catalog.ExpireSessions();
    return session->cache()->slots().free_count() == geometry.slots;
  }));
  EXPECT_TRUE(Eventually([&] { return world.engine->staging().used() == 0; }));
  EXPECT_LT(world.backend.calls(engine::Operation::kCopyBytes), renewals);
  v1::ReadSlotsFrame frame;
  while (stream->Read(&frame)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(SlotStreams, ContentsThatNobodyReadsGoWithTheirSession) {
  ServedWorld world;
  cache::Geometry geometry = kGeometry;
  geometry.heads = 64;  // 1.5 MiB: one piece, and the call is over
  std::shared_ptr<cache::Session> session = world.OpenSession(geometry);
  v1::ReadSlotsRequest request;
  request.set_session(session->id());
  for (std::int64_t slot = 0; slot < geometry.slots; ++slot) request.add_slots(slot);
  grpc::ClientContext context;
  const auto stub = world.StubWithSmallWindow();
  const auto stream = stub->ReadSlots(&context, request);
  EXPECT_TRUE(Eventually([&] { return world.backend.calls(engine::Operation::kCopyBytes) > 0; }));
  v1::ResetSlotsRequest reset;  // behind the reading call
  reset.set_session(session->id());
  reset.add_slots(0);
  v1::ResetSlotsResponse response;
  grpc::ClientContext reset_context;
  EXPECT_TRUE(world.stub->ResetSlots(&reset_context, reset, &response).ok());
  EXPECT_GT(world.engine->staging().used(), 0);
  ASSERT_TRUE(world.catalog.CloseSession(session->id(), cache::kDefaultTenant, [] {}).ok());
  EXPECT_TRUE(Eventually([&] { return world.engine->staging().used() == 0; }));
  const std::weak_ptr<cache::Session> ended = std::exchange(session, nullptr);
  EXPECT_TRUE(Eventually([&] { return ended.expired(); })) << "it would hold up the cache's deletion";
  v1::ReadSlotsFrame frame;
  while (stream->Read(&frame)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace gdpcache::rpc
