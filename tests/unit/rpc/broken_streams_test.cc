#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gdpcache/v1/prefill.pb.h"
#include "tests/support/eventually.h"
#include "tests/unit/kernels/problem_runner.h"
#include "tests/unit/rpc/large_prefill.h"
#include "tests/unit/rpc/served_world.h"

/// Streams of prefills that end before their time, or say what they must not, and clients that do not read.
namespace gdpcache::rpc {
namespace {

using engine::Fingerprint;
using engine::GeometryOf;
using engine::LoadState;
using test::Eventually;
using testing::Problem;

/// A stream on a cache with known contents, for tests that end it early.
class BrokenStream : public ::testing::Test {
 protected:
  void Open(const engine::EngineOptions& options, absl::Duration timeout = absl::InfiniteDuration()) {
    session_.reset();
    world_.emplace(options);
    context_.emplace();
    if (timeout != absl::InfiniteDuration()) context_->set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    session_ = world_->OpenSession(GeometryOf(problem_));
    LoadState(*session_->cache(), 0, problem_.state);
    request_ = ToProto(problem_, session_->id());
    before_ = Fingerprint(*session_->cache());
    stream_ = world_->stub->PrefillStream(&*context_);
    uploads_ = UploadsOf(request_);
  }

  bool Send(const v1::PrefillFrame& frame) { return stream_->Write(frame); }

  Upload& UploadOf(v1::TensorId id) {
    return *std::find_if(uploads_.begin(), uploads_.end(), [id](const Upload& upload) { return upload.id == id; });
  }

  /// The first `part` of every tensor, interleaved.
  void SendPart(double part) {
    constexpr int kRounds = 20;
    for (int i = 0; i < kRounds; ++i) {
      for (Upload& upload : uploads_) {
        ASSERT_TRUE(Send(NextFrame(upload, static_cast<std::size_t>(part * upload.bytes->size()) / kRounds)));
      }
    }
  }

  /// Nothing has changed, nothing is held, and the slots are usable at once.
  void ExpectUntouched() {
    EXPECT_TRUE(Eventually([&] { return world_->engine->staging().used() == 0; }));
    EXPECT_EQ(Fingerprint(*session_->cache()), before_);
    grpc::ClientContext context;
    v1::PrefillResponse response;
    const grpc::Status status = world_->stub->Prefill(&context, request_, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ExpectResponse(response, testing::RunProblem(*world_->cpu, problem_));
  }

  void ExpectError(grpc::StatusCode code, const std::string& text) {
    const Streamed answer = ReadAll(*stream_);
    EXPECT_EQ(answer.status.error_code(), code);
    EXPECT_THAT(answer.status.error_message(), ::testing::HasSubstr(text));
    EXPECT_FALSE(answer.responded);
    ExpectUntouched();
  }

  const Problem problem_ = LargeProblem();
  std::optional<ServedWorld> world_;
  std::shared_ptr<cache::Session> session_;
  v1::PrefillRequest request_;
  std::size_t before_ = 0;
  std::optional<grpc::ClientContext> context_;
  std::unique_ptr<Stream> stream_;
  std::vector<Upload> uploads_;
};

TEST_F(BrokenStream, CancelledInMidStreamChangesNothing) {
  Open(kSmallSegments);
  ASSERT_TRUE(Send(HeaderOf(request_)));
  SendPart(0.7);
  v1::PrefillFrame frame;
  ASSERT_TRUE(stream_->Read(&frame));  // results flow while inputs arrive
  context_->TryCancel();
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::CANCELLED);
  ExpectUntouched();
}

TEST_F(BrokenStream, CancelledBeforeItsHeaderIsForgotten) {
  Open(kSmallSegments);
  context_->TryCancel();
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::CANCELLED);
  ExpectUntouched();
}

TEST_F(BrokenStream, PastItsDeadlineChangesNothing) {
  Open(kSmallSegments, absl::Milliseconds(300));
  ASSERT_TRUE(Send(HeaderOf(request_)));
  SendPart(0.7);
  const Streamed answer = ReadAll(*stream_);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  ExpectUntouched();
}

TEST_F(BrokenStream, EndedBySessionCloseIsCancelledAndGivesTheSlotsBack) {
  Open(kSmallSegments);
  ASSERT_TRUE(Send(HeaderOf(request_)));
  SendPart(0.7);
  v1::PrefillFrame frame;
  ASSERT_TRUE(stream_->Read(&frame));
  std::atomic<bool> closed = false;
  ASSERT_TRUE(world_->catalog.CloseSession(session_->id(), cache::kDefaultTenant, [&closed] { closed = true; }).ok());
  while (stream_->Read(&frame)) {
  }
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return closed.load(); }));
  EXPECT_TRUE(Eventually([&] { return world_->engine->staging().used() == 0; }));
  EXPECT_EQ(Fingerprint(*session_->cache()), before_);
  EXPECT_EQ(session_->cache()->slots().free_count(), session_->cache()->geometry().slots);
}

TEST_F(BrokenStream, ClientThatNeverReadsIsHeldUpAndLetGoWithItsSession) {
  // Results of many times what the transport and the server are willing to hold.
  Problem& problem = const_cast<Problem&>(problem_);
  testing::ProblemSpec spec;
  spec.shape = {.heads = 4,
                .key_dim = 64,
                .value_dim = 64,
                .num_householder = 1,
                .chunk_size = 16,
                .input_dtype = kernels::DataType::kBFloat16};
  spec.lengths = {8000};
  problem = testing::RandomProblem(spec, 7);
  constexpr engine::EngineOptions kOptions = {.staging_bytes = 24 << 20, .segment_bytes = 1 << 20};
  Open(kOptions);
  ASSERT_TRUE(Send(HeaderOf(request_)));
  std::thread writer([this] {
    bool sent = true;
    while (sent && uploads_[0].sent < uploads_[0].bytes->size()) {
      for (Upload& upload : uploads_) sent = sent && Send(NextFrame(upload, upload.bytes->size() / 400));
    }
    EXPECT_FALSE(sent) << "everything was taken although nothing was read";
  });
  // It ends up stuck: no launch for a while although input is there.
  std::int64_t launches = -1;
  EXPECT_TRUE(Eventually([&] {
    const std::int64_t now = world_->backend.calls(engine::Operation::kRunRecurrence);
    const bool stuck = now > 0 && now == launches;
    launches = now;
    absl::SleepFor(absl::Milliseconds(100));
    return stuck;
  }));
  EXPECT_LT(launches, 25);
  EXPECT_LE(world_->engine->staging().used(), world_->engine->staging().budget());
  world_->clock.Advance(absl::Minutes(2));
  world_->catalog.ExpireSessions();
  EXPECT_TRUE(Eventually([&] { return world_->engine->staging().used() == 0; }));
  EXPECT_EQ(Fingerprint(*session_->cache()), before_);
  EXPECT_EQ(session_->cache()->slots().free_count(), session_->cache()->geometry().slots);
  writer.join();
  EXPECT_EQ(ReadAll(*stream_).status.error_code(), grpc::StatusCode::CANCELLED);
}

/// What a client that has stopped reading holds of the server once its session is closed: nothing.
class UnreadResults : public ::testing::Test {
 protected:
  /// Sends the first `part` of every tensor, interleaved.
  void Send(const engine::EngineOptions& options, double part) {
    world_.emplace(options);
    session_ = world_->OpenSession(GeometryOf(problem_));
    stub_ = world_->StubWithSmallWindow();
    stream_ = stub_->PrefillStream(&context_);
    request_ = ToProto(problem_, session_->id());
    request_.set_initial_state_source(v1::INITIAL_STATE_SOURCE_ZERO);
    ASSERT_TRUE(stream_->Write(HeaderOf(request_)));
    for (Upload& upload : uploads_ = UploadsOf(request_)) {
      ASSERT_TRUE(stream_->Write(NextFrame(upload, static_cast<std::size_t>(part * upload.bytes->size()))));
    }
  }

  /// A later call on the same slots: answered when the stream's call is over.
  void WaitForItsSlots() {
    v1::ResetSlotsRequest reset;
    reset.set_session(session_->id());
    reset.add_slots(0);
    v1::ResetSlotsResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(world_->stub->ResetSlots(&context, reset, &response).ok());
  }

  void ExpectNothingHeldAfterClose() {
    EXPECT_GT(world_->engine->staging().used(), 0);
    std::atomic<bool> closed = false;
    ASSERT_TRUE(world_->catalog.CloseSession(session_->id(), cache::kDefaultTenant, [&closed] { closed = true; }).ok());
    EXPECT_TRUE(Eventually([&] { return closed.load(); }));
    EXPECT_TRUE(Eventually([&] { return world_->engine->staging().used() == 0; }));
    const std::weak_ptr<cache::Session> session = std::exchange(session_, nullptr);
    EXPECT_TRUE(Eventually([&] { return session.expired(); })) << "it would hold up the cache's deletion";
    v1::PrefillFrame frame;
    while (stream_->Read(&frame)) {
    }
    EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }

  const Problem problem_ = LargeProblem();
  std::optional<ServedWorld> world_;
  std::unique_ptr<v1::StateCache::Stub> stub_;
  std::shared_ptr<cache::Session> session_;
  v1::PrefillRequest request_;
  std::vector<Upload> uploads_;
  grpc::ClientContext context_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(UnreadResults, OfACommittedCallGoWithTheSession) {
  Send({}, 1);
  ASSERT_TRUE(stream_->WritesDone());
  EXPECT_TRUE(Eventually([&] { return world_->backend.calls(engine::Operation::kRunRecurrence) == 1; }));
  WaitForItsSlots();
  ExpectNothingHeldAfterClose();
}

TEST_F(UnreadResults, OfARefusedCallGoWithTheSession) {
  Send({.segment_bytes = std::int64_t{400} << 10}, 0.6);
  EXPECT_TRUE(Eventually([&] { return world_->backend.calls(engine::Operation::kRunRecurrence) > 0; }));
  ASSERT_TRUE(stream_->Write(HeaderOf(request_)));
  WaitForItsSlots();
  ExpectNothingHeldAfterClose();
}

TEST_F(BrokenStream, ATensorFarAheadIsToldToInterleave) {
  Open({.staging_bytes = std::int64_t{1} << 20, .segment_bytes = std::int64_t{16} << 10});
  ASSERT_TRUE(Send(HeaderOf(request_)));
  while (UploadOf(v1::TENSOR_ID_K).sent < UploadOf(v1::TENSOR_ID_K).bytes->size()) {
    if (!Send(NextFrame(UploadOf(v1::TENSOR_ID_K), 10'000))) break;
  }
  const Streamed answer = ReadAll(*stream_);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(answer.status.error_message(), ::testing::HasSubstr("interleave"));
  EXPECT_TRUE(Eventually([&] { return world_->engine->staging().used() == 0; }));
  EXPECT_EQ(Fingerprint(*session_->cache()), before_);
}

TEST_F(BrokenStream, ATensorAheadIsBufferedWithinTheBudget) {
  Open(kSmallSegments);
  ASSERT_TRUE(Send(HeaderOf(request_)));
  for (Upload& upload : uploads_) {
    while (upload.sent < upload.bytes->size()) ASSERT_TRUE(Send(NextFrame(upload, 50'000)));
  }
  ASSERT_TRUE(stream_->WritesDone());
  const Streamed answer = ReadAll(*stream_);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ExpectResponse(answer.response, testing::RunProblem(*world_->cpu, problem_));
}

TEST_F(BrokenStream, TruncatedIsRefusedNamingTheTensorAndBothSizes) {
  Open(kSmallSegments);
  ASSERT_TRUE(Send(HeaderOf(request_)));
  for (Upload& upload : uploads_) {
    const std::size_t size = upload.bytes->size() - (upload.id == v1::TENSOR_ID_U ? 1 : 0);
    while (upload.sent < size) ASSERT_TRUE(Send(NextFrame(upload, std::min<std::size_t>(size - upload.sent, 50'000))));
  }
  ASSERT_TRUE(stream_->WritesDone());
  const std::string size = std::to_string(UploadOf(v1::TENSOR_ID_U).bytes->size());
  const std::string sent = std::to_string(UploadOf(v1::TENSOR_ID_U).sent);
  ExpectError(grpc::StatusCode::INVALID_ARGUMENT, "of u ended after " + sent + " bytes; the tensor has " + size);
}

TEST_F(BrokenStream, OverlongIsRefused) {
  Open(kSmallSegments);
  ASSERT_TRUE(Send(HeaderOf(request_)));
  SendPart(0.1);
  Upload& w = UploadOf(v1::TENSOR_ID_W);
  const std::string longer = w.bytes->substr(w.sent) + "x";
  v1::PrefillFrame frame = NextFrame(w, 0);
  frame.mutable_data()->set_payload(longer);
  ASSERT_TRUE(Send(frame));
  ExpectError(grpc::StatusCode::INVALID_ARGUMENT, "of w holds " + std::to_string(longer.size()) + " bytes");
}

TEST_F(BrokenStream, OverlappingFramesAreRefused) {
  Open(kSmallSegments);
  ASSERT_TRUE(Send(HeaderOf(request_)));
  ASSERT_TRUE(Send(NextFrame(UploadOf(v1::TENSOR_ID_K), 1000)));
  v1::PrefillFrame frame = NextFrame(UploadOf(v1::TENSOR_ID_K), 1000);
  frame.mutable_data()->set_offset(999);
  Send(frame);
  ExpectError(grpc::StatusCode::INVALID_ARGUMENT, "data.offset of k is 999; the next byte is 1000");
}

TEST_F(BrokenStream, GapsBetweenFramesAreRefused) {
  Open(kSmallSegments);
  ASSERT_TRUE(Send(HeaderOf(request_)));
  v1::PrefillFrame frame = NextFrame(UploadOf(v1::TENSOR_ID_U), 10);
  frame.mutable_data()->set_offset(1);
  Send(frame);
  ExpectError(grpc::StatusCode::INVALID_ARGUMENT, "data.offset of u is 1; the next byte is 0");
}

TEST_F(BrokenStream, WrongFirstAndSecondFramesAreRefused) {
  Open(kSmallSegments);
  const auto error = [&](const std::vector<v1::PrefillFrame>& frames) {
    grpc::ClientContext context;
    const std::unique_ptr<Stream> stream = world_->stub->PrefillStream(&context);
    for (const v1::PrefillFrame& frame : frames) stream->Write(frame);
    stream->WritesDone();
    const Streamed answer = ReadAll(*stream);
    return std::pair(answer.status.error_code(), answer.status.error_message());
  };
  const v1::PrefillFrame header = HeaderOf(request_);
  v1::PrefillFrame answer;
  answer.mutable_response();
  EXPECT_EQ(error({}).first, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(error({v1::PrefillFrame()}).first, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(error({answer}).first, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(error({NextFrame(uploads_[0], 10)}).first, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(error({header, header}).first, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(error({header, v1::PrefillFrame()}).first, grpc::StatusCode::INVALID_ARGUMENT);
  v1::PrefillFrame with_data = header;
  with_data.mutable_request()->mutable_k()->set_inline_("abc");
  EXPECT_EQ(error({with_data}), std::pair(grpc::StatusCode::INVALID_ARGUMENT,
                                          std::string("k.inline holds 3 bytes; in a stream they follow in frames")));
  v1::PrefillFrame nobody = header;
  nobody.mutable_request()->set_session("nobody");
  EXPECT_EQ(error({nobody}).first, grpc::StatusCode::NOT_FOUND);
  context_->TryCancel();
  stream_->Finish();
  ExpectUntouched();
}

}  // namespace
}  // namespace gdpcache::rpc
