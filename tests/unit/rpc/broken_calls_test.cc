// Clients that go after each message of a stream, and deadlines that pass in the middle of a call. Whatever it is, no
// state changes by half, nothing stays behind, and the next call is served.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/support/eventually.h"
#include "tests/unit/rpc/served_world.h"

namespace gdpcache::rpc {
namespace {

using engine::Fingerprint;
using engine::GeometryOf;
using engine::LoadState;
using testing::Problem;

constexpr engine::EngineOptions kSmallSegments = {.workers = 2, .segment_bytes = std::int64_t{16} << 10};
constexpr std::int64_t kLaunches = 3;
constexpr char kKey[] = "0123456789abcdef";

class BrokenCalls : public ::testing::Test {
 protected:
  BrokenCalls() : world_(kSmallSegments), session_(world_.OpenSession(GeometryOf(problem_, 1, 5))) {
    LoadState(*session_->cache(), 0, problem_.state);
    request_ = ToProto(problem_, session_->id());
    before_ = Fingerprint(*session_->cache());
  }

  /// All messages that a client sends in a stream of the request.
  std::vector<v1::PrefillFrame> PrefillFrames() const {
    std::vector<v1::PrefillFrame> frames = {HeaderOf(request_)};
    std::vector<Upload> uploads = UploadsOf(request_);
    constexpr std::size_t kRounds = 5;
    for (std::size_t round = 0; round < kRounds; ++round) {
      for (Upload& upload : uploads) {
        const std::size_t piece = upload.bytes->size() / kRounds + 1;
        if (upload.sent < upload.bytes->size()) frames.push_back(NextFrame(upload, piece));
      }
    }
    return frames;
  }

  /// What the request leaves in the cache; afterwards all is as before.
  std::size_t FingerprintAfter() {
    const std::size_t after = FingerprintAfterCall();
    LoadState(*session_->cache(), 0, problem_.state);
    for (std::int64_t slot = 0; slot < session_->cache()->geometry().slots; ++slot) {
      session_->cache()->slots().SetPosition(0, slot, 0);
    }
    EXPECT_EQ(Fingerprint(*session_->cache()), before_);
    EXPECT_NE(after, before_);
    return after;
  }

  /// What a client has sent would otherwise go with its cancellation, before the server sees it.
  void ExpectArrived() {
    EXPECT_TRUE(test::Eventually([this] { return world_.engine->staging().used() > 0; }));
  }

  void ExpectNothingHeld() {
    EXPECT_TRUE(test::Eventually([this] { return world_.engine->staging().used() == 0; }));
    // Takes its turn behind whatever is still under way on the slots.
    grpc::ClientContext context;
    v1::KeepAliveRequest alive;
    alive.set_session(session_->id());
    v1::KeepAliveResponse response;
    EXPECT_TRUE(world_.stub->KeepAlive(&context, alive, &response).ok());
    v1::ReadSlotsRequest read;
    read.set_session(session_->id());
    for (std::int64_t slot = 0; slot < session_->cache()->geometry().slots; ++slot) read.add_slots(slot);
    grpc::ClientContext read_context;
    const auto stream = world_.stub->ReadSlots(&read_context, read);
    v1::ReadSlotsFrame frame;
    while (stream->Read(&frame)) {
    }
    EXPECT_TRUE(stream->Finish().ok());
    EXPECT_TRUE(test::Eventually([this] { return world_.engine->staging().used() == 0; }));
  }

  void ExpectUntouched() {
    ExpectNothingHeld();
    EXPECT_EQ(Fingerprint(*session_->cache()), before_);
  }

  /// The key's snapshot, as messages that bring it to a server.
  std::vector<v1::WriteSnapshotRequest> SnapshotFrames(const std::string& file) const {
    std::vector<v1::WriteSnapshotRequest> frames(1);
    v1::WriteSnapshotHeader& header = *frames.back().mutable_header();
    header.set_cache(session_->cache()->spec().name);
    header.set_size(static_cast<std::int64_t>(file.size()));
    constexpr std::size_t kPiece = 900;
    for (std::size_t at = 0; at < file.size(); at += kPiece) {
      frames.emplace_back().set_payload(file.substr(at, kPiece));
    }
    return frames;
  }

  const Problem problem_ = engine::SmallProblem();
  ServedWorld world_;
  std::shared_ptr<cache::Session> session_;
  v1::PrefillRequest request_;
  std::size_t before_ = 0;

 private:
  std::size_t FingerprintAfterCall() {
    grpc::ClientContext context;
    v1::PrefillResponse response;
    const grpc::Status status = world_.stub->Prefill(&context, request_, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return Fingerprint(*session_->cache());
  }
};

TEST_F(BrokenCalls, APrefillWhoseClientGoesAfterAnyMessageChangesNothing) {
  const std::vector<v1::PrefillFrame> frames = PrefillFrames();
  ASSERT_GT(frames.size(), 15);
  for (std::size_t count = 0; count <= frames.size(); ++count) {
    SCOPED_TRACE(count);
    grpc::ClientContext context;
    const std::unique_ptr<Stream> stream = world_.stub->PrefillStream(&context);
    for (std::size_t i = 0; i < count; ++i) ASSERT_TRUE(stream->Write(frames[i]));
    if (count > 0) ExpectArrived();
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
    ExpectUntouched();
  }
}

TEST_F(BrokenCalls, AllOfAPrefillWithoutItsEndChangesNothing) {
  const std::vector<v1::PrefillFrame> frames = PrefillFrames();
  for (int round = 0; round < 200 && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const std::int64_t launches = world_.backend.calls(engine::Operation::kRunRecurrence);
    grpc::ClientContext context;
    const std::unique_ptr<Stream> stream = world_.stub->PrefillStream(&context);
    for (const v1::PrefillFrame& frame : frames) ASSERT_TRUE(stream->Write(frame));
    // Whatever can be computed has been.
    ASSERT_TRUE(test::Eventually(
        [&] { return world_.backend.calls(engine::Operation::kRunRecurrence) >= launches + kLaunches; }));
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
    ExpectUntouched();
  }
}

TEST_F(BrokenCalls, AWriteOfSlotsWhoseClientGoesAfterAnyMessageChangesNothing) {
  v1::WriteSlotsFrame header;
  header.mutable_header()->set_session(session_->id());
  v1::SlotContents& contents = *header.mutable_header()->mutable_contents();
  contents.add_slots(1);
  contents.mutable_state()->set_dtype(v1::DATA_TYPE_FLOAT32);
  const cache::Geometry& geometry = session_->cache()->geometry();
  for (const std::int64_t size :
       {std::int64_t{1}, std::int64_t{1}, geometry.heads, geometry.key_dim, geometry.value_dim}) {
    contents.mutable_state()->add_shape(size);
  }
  constexpr std::size_t kPieces = 8;
  const std::size_t piece = static_cast<std::size_t>(geometry.state_bytes()) / kPieces;
  for (std::size_t count = 0; count <= kPieces + 1; ++count) {
    SCOPED_TRACE(count);
    grpc::ClientContext context;
    v1::WriteSlotsResponse response;
    const auto stream = world_.stub->WriteSlots(&context, &response);
    for (std::size_t i = 0; i < count; ++i) {
      v1::WriteSlotsFrame data;
      data.mutable_data()->set_tensor(v1::TENSOR_ID_STATE);
      data.mutable_data()->set_offset((i - 1) * piece);
      data.mutable_data()->set_payload(std::string(piece, 'x'));
      ASSERT_TRUE(stream->Write(i == 0 ? header : data));
    }
    if (count > 0) ExpectArrived();
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
    ExpectUntouched();
  }
}

TEST_F(BrokenCalls, TransfersOfSnapshotsWhoseClientGoesAfterAnyMessageLeaveNothing) {
  ASSERT_TRUE(engine::Save(world_, session_, {{.slot = 0, .key = kKey}}).ok());
  const auto read = [&](std::size_t count, std::string* file) {
    grpc::ClientContext context;
    v1::ReadSnapshotRequest request;
    request.set_cache(session_->cache()->spec().name);
    request.set_key(kKey);
    const auto stream = world_.stub->ReadSnapshot(&context, request);
    v1::ReadSnapshotResponse response;
    std::size_t messages = 0;
    while (messages < count && stream->Read(&response)) {
      ++messages;
      if (file != nullptr) *file += response.payload();
    }
    if (messages == count) context.TryCancel();
    stream->Finish();
    return messages;
  };
  std::string file;
  const std::size_t messages = read(1'000, &file);
  for (std::size_t count = 0; count <= messages; ++count) {
    SCOPED_TRACE(count);
    read(count, nullptr);
    ExpectUntouched();
  }

  const std::vector<v1::WriteSnapshotRequest> frames = SnapshotFrames(file);
  ASSERT_GT(frames.size(), 2);
  const auto delete_snapshot = [&] {
    grpc::ClientContext context;
    v1::DeleteSnapshotsRequest request;
    request.set_cache(session_->cache()->spec().name);
    request.add_keys(kKey);
    v1::DeleteSnapshotsResponse response;
    EXPECT_TRUE(world_.stub->DeleteSnapshots(&context, request, &response).ok());
    return response.deleted();
  };
  ASSERT_EQ(delete_snapshot(), 1);
  for (std::size_t count = 0; count <= frames.size(); ++count) {
    SCOPED_TRACE(count);
    grpc::ClientContext context;
    v1::WriteSnapshotResponse response;
    const auto stream = world_.stub->WriteSnapshot(&context, &response);
    for (std::size_t i = 0; i < count; ++i) ASSERT_TRUE(stream->Write(frames[i]));
    context.TryCancel();
    EXPECT_FALSE(stream->Finish().ok());
    ExpectUntouched();
    if (count < frames.size()) {
      EXPECT_EQ(delete_snapshot(), 0) << "it was not whole";
    }
  }
}

TEST_F(BrokenCalls, ADeadlineInTheMiddleLeavesTheStateBeforeOrAfter) {
  const std::size_t after = FingerprintAfter();
  const std::vector<v1::PrefillFrame> frames = PrefillFrames();
  for (const bool streamed : {false, true}) {
    int successes = 0;
    int expired = 0;
    for (int step = 0; successes < 3; ++step) {
      // gRPC rounds deadlines up to milliseconds: the first are late from the start, however fast the call is. What the
      // engine makes of each moment is for DeadlineAtEachStage to tell.
      const absl::Duration timeout = absl::Microseconds(500) * step - absl::Milliseconds(2);
      ASSERT_LT(timeout, absl::Seconds(30)) << "it never has enough time";
      SCOPED_TRACE(::testing::Message() << (streamed ? "streamed, " : "unary, ") << timeout);
      LoadState(*session_->cache(), 0, problem_.state);
      for (std::int64_t slot = 0; slot < session_->cache()->geometry().slots; ++slot) {
        session_->cache()->slots().SetPosition(0, slot, 0);
      }
      grpc::ClientContext context;
      context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
      grpc::Status status;
      if (streamed) {
        const std::unique_ptr<Stream> stream = world_.stub->PrefillStream(&context);
        for (const v1::PrefillFrame& frame : frames) {
          if (!stream->Write(frame)) break;
        }
        stream->WritesDone();
        v1::PrefillFrame answer;
        while (stream->Read(&answer)) {
        }
        status = stream->Finish();
      } else {
        v1::PrefillResponse response;
        status = world_.stub->Prefill(&context, request_, &response);
      }
      ExpectNothingHeld();
      const std::size_t now = Fingerprint(*session_->cache());
      if (status.ok()) {
        ++successes;
        EXPECT_EQ(now, after);
      } else {
        ++expired;
        EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
        EXPECT_TRUE(now == before_ || now == after);
      }
      if (HasFailure()) return;
    }
    EXPECT_GT(expired, 0);
  }
}

}  // namespace
}  // namespace gdpcache::rpc
