#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <random>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gdpcache/v1/prefill.pb.h"
#include "google/rpc/error_details.pb.h"
#include "tests/golden/golden_batch.h"
#include "tests/reference/random_problem.h"
#include "tests/support/eventually.h"
#include "tests/support/status_details.h"
#include "tests/unit/kernels/problem_runner.h"
#include "tests/unit/rpc/served_world.h"

namespace gdpcache::rpc {
namespace {

using engine::Fingerprint;
using engine::GeometryOf;
using engine::LoadState;
using engine::StoreState;
using test::Eventually;
using testing::Outputs;
using testing::Problem;

std::string Text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A problem whose stream takes several segments of `ServedWorld({.segment_bytes = 64 << 10})`.
Problem LargeProblem() {
  testing::ProblemSpec spec;
  spec.shape = {.heads = 2,
                .key_dim = 32,
                .value_dim = 16,
                .num_householder = 2,
                .chunk_size = 16,
                .input_dtype = kernels::DataType::kBFloat16};
  spec.lengths = {700, 1200, 3, 500};
  spec.state_indices = {3, 0, 5, -1};
  return testing::RandomProblem(spec, 5);
}

constexpr engine::EngineOptions kSmallSegments = {.segment_bytes = std::int64_t{64} << 10};

void ExpectResponse(const v1::PrefillResponse& response, const Outputs& alone) {
  EXPECT_TRUE(response.h().inline_() == Text(alone.h.bytes));
  EXPECT_TRUE(response.v_new().inline_() == Text(alone.v_new.bytes));
  EXPECT_TRUE(response.final_state().inline_() == Text(alone.final_state.bytes));
  EXPECT_EQ(std::vector<std::int64_t>(response.h().shape().begin(), response.h().shape().end()), alone.h.shape);
  EXPECT_EQ(response.has_v_new(), alone.v_new.present());
  EXPECT_EQ(response.has_final_state(), alone.final_state.present());
}

/// Through the server, unary and as a stream, every bit as from the kernel alone.
void ExpectSameAsAlone(ServedWorld& world, const Problem& problem, std::uint64_t seed) {
  const Outputs alone = testing::RunProblem(*world.cpu, problem);
  for (const bool streamed : {false, true}) {
    SCOPED_TRACE(streamed ? "streamed" : "unary");
    const auto session = world.OpenSession(GeometryOf(problem));
    if (problem.state.present()) LoadState(*session->cache(), 0, problem.state);
    const v1::PrefillRequest request = ToProto(problem, session->id());
    v1::PrefillResponse response;
    if (streamed) {
      const Streamed answer = RunStream(*world.stub, request, seed);
      ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
      response = answer.response;
    } else {
      grpc::ClientContext context;
      const grpc::Status status = world.stub->Prefill(&context, request, &response);
      ASSERT_TRUE(status.ok()) << status.error_message();
    }
    ExpectResponse(response, alone);
    if (problem.state.present()) {
      EXPECT_TRUE(StoreState(*session->cache(), 0).bytes == alone.state.bytes);
    }
    ASSERT_EQ(response.positions_size(), problem.sequences());
    ASSERT_EQ(response.chunk_offsets_size(), problem.sequences() + 1);
  }
}

TEST(PrefillRpc, GoldenBatchesUnaryAndStreamedEqualTheKernelBitForBit) {
  ServedWorld world({.segment_bytes = 200'000});
  for (const std::string& name : testing::GoldenBatchNames()) {
    SCOPED_TRACE(name);
    const auto batch = testing::LoadGoldenBatch(name);
    ASSERT_TRUE(batch.ok()) << batch.status();
    ExpectSameAsAlone(world, batch->problem, 1);
  }
  EXPECT_TRUE(Eventually([&] { return world.engine->staging().used() == 0; }));
}

TEST(PrefillRpc, RandomFramesOfRandomProblemsEqualTheKernelBitForBit) {
  ServedWorld world({.segment_bytes = 5'000});
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    ExpectSameAsAlone(world, testing::RandomSmallProblem(seed), seed);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(PrefillRpc, ALargeStreamInManySegmentsEqualsTheKernelBitForBit) {
  ServedWorld world(kSmallSegments);
  const std::int64_t before = world.backend.calls(engine::Operation::kRunRecurrence);
  ExpectSameAsAlone(world, LargeProblem(), 3);
  EXPECT_GT(world.backend.calls(engine::Operation::kRunRecurrence), before + 10);
  EXPECT_TRUE(Eventually([&] { return world.engine->staging().used() == 0; }));
}

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

TEST(PrefillRpc, UnknownTensorsAndThoseNotInTheHeaderAreRefused) {
  ServedWorld world(kSmallSegments);
  Problem problem = LargeProblem();
  problem.g = {};
  const auto session = world.OpenSession(GeometryOf(problem));
  for (const int tensor : {0, 4, 5, 16, 33, 99, -1}) {
    SCOPED_TRACE(tensor);
    const v1::PrefillRequest request = ToProto(problem, session->id());
    grpc::ClientContext context;
    const std::unique_ptr<Stream> stream = world.stub->PrefillStream(&context);
    ASSERT_TRUE(stream->Write(HeaderOf(request)));
    v1::PrefillFrame frame;
    frame.mutable_data()->set_tensor(static_cast<v1::TensorId>(tensor));
    frame.mutable_data()->set_payload("x");
    stream->Write(frame);
    const Streamed answer = ReadAll(*stream);
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(answer.status.error_message(), ::testing::HasSubstr("data.tensor"));
  }
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

TEST(PrefillRpc, WhatARequestTakesBesidesItsTensorsIsChargedToTheStagingMemory) {
  ServedWorld world({.staging_bytes = std::int64_t{8} << 20});
  const Problem problem = LargeProblem();
  const auto session = world.OpenSession(GeometryOf(problem));
  v1::PrefillRequest request = ToProto(problem, session->id());
  request.set_request_id(std::string(9 << 20, 'x'));
  v1::PrefillResponse response;
  grpc::ClientContext unary;
  const grpc::Status refused = world.stub->Prefill(&unary, request, &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
  EXPECT_EQ(RunStream(*world.stub, request, 1).status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);

  // What nobody knows is not kept.
  request.clear_request_id();
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(1'000, std::string(9 << 20, 'x'));
  grpc::ClientContext with_unknown;
  EXPECT_TRUE(world.stub->Prefill(&with_unknown, request, &response).ok());
  EXPECT_TRUE(RunStream(*world.stub, request, 2).status.ok());
  EXPECT_TRUE(Eventually([&] { return world.engine->staging().used() == 0; }));
}

TEST(PrefillRpc, EveryFrameRenewsTheLease) {
  ServedWorld world(kSmallSegments);
  const Problem problem = LargeProblem();
  const auto session = world.OpenSession(GeometryOf(problem));
  const v1::PrefillRequest request = ToProto(problem, session->id());
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = world.stub->PrefillStream(&context);
  ASSERT_TRUE(stream->Write(HeaderOf(request)));
  for (Upload& upload : UploadsOf(request)) {
    const absl::Time expires = session->expires_at();
    world.clock.Advance(absl::Seconds(50));
    ASSERT_TRUE(stream->Write(NextFrame(upload, 1000)));
    EXPECT_TRUE(Eventually([&] { return session->expires_at() > expires; }));
    world.catalog.ExpireSessions();
  }
  context.TryCancel();
  stream->Finish();
  EXPECT_TRUE(world.catalog.FindSession(session->id(), cache::kDefaultTenant).ok());
}

TEST(PrefillRpc, PositionMismatchesCarryTheActualPositions) {
  ServedWorld world;
  const Problem problem = LargeProblem();
  const auto session = world.OpenSession(GeometryOf(problem));
  session->cache()->slots().SetPosition(0, 0, 77);
  v1::PrefillRequest request = ToProto(problem, session->id());
  for (const std::int64_t position : {-1, 5, 0, 9}) request.add_expected_positions(position);
  grpc::ClientContext context;
  v1::PrefillResponse response;
  const grpc::Status unary = world.stub->Prefill(&context, request, &response);
  for (const grpc::Status& status : {unary, RunStream(*world.stub, request, 1).status}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    const auto mismatch = test::DetailOf<v1::PositionMismatch>(status);
    ASSERT_EQ(mismatch.slots_size(), 1);
    EXPECT_EQ(mismatch.slots(0).sequence(), 1);
    EXPECT_EQ(mismatch.slots(0).slot(), 0);
    EXPECT_EQ(mismatch.slots(0).expected(), 5);
    EXPECT_EQ(mismatch.slots(0).actual(), 77);
  }
}

TEST(PrefillRpc, UnknownEnumValuesAreRefused) {
  ServedWorld world;
  const Problem problem = LargeProblem();
  const auto session = world.OpenSession(GeometryOf(problem));
  const v1::PrefillRequest good = ToProto(problem, session->id());
  const auto expect = [&](const std::string& field, const std::function<void(v1::PrefillRequest&)>& spoil) {
    v1::PrefillRequest request = good;
    spoil(request);
    grpc::ClientContext context;
    v1::PrefillResponse response;
    const grpc::Status status = world.stub->Prefill(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(test::DetailOf<google::rpc::BadRequest>(status).field_violations(0).field(), field);
  };
  expect("k.dtype", [](auto& request) { request.mutable_k()->set_dtype(static_cast<v1::DataType>(50)); });
  expect("g.dtype", [](auto& request) { request.mutable_g()->set_dtype(static_cast<v1::DataType>(-1)); });
  expect("g_base", [](auto& request) { request.set_g_base(static_cast<v1::DecayBase>(3)); });
  expect("initial_state_source",
         [](auto& request) { request.set_initial_state_source(static_cast<v1::InitialStateSource>(9)); });
  expect("states.mode",
         [](auto& request) { request.mutable_states()->set_mode(static_cast<v1::StateSelection::Mode>(4)); });
  expect("states_dtype", [](auto& request) { request.set_states_dtype(static_cast<v1::DataType>(5)); });
  expect("precision", [](auto& request) { request.set_precision(static_cast<v1::Precision>(2)); });
  expect("request_id", [](auto& request) { request.set_request_id(std::string(129, 'x')); });
  expect("k.inline", [](auto& request) { request.mutable_k()->mutable_inline_()->pop_back(); });
  expect("u.inline", [](auto& request) { request.mutable_u()->mutable_inline_()->push_back('x'); });
}

TEST(PrefillRpc, ManyClientsCancellingAtAnyMomentLeaveNothingBehind) {
  ServedWorld world(kSmallSegments);
  const Problem problem = LargeProblem();
  const auto session = world.OpenSession(GeometryOf(problem));
  LoadState(*session->cache(), 0, problem.state);
  const v1::PrefillRequest request = ToProto(problem, session->id());
  const std::size_t before = Fingerprint(*session->cache());
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&, i] {
      std::mt19937_64 random(i);
      for (int round = 0; round < 10; ++round) {
        grpc::ClientContext context;
        const std::unique_ptr<Stream> stream = world.stub->PrefillStream(&context);
        std::vector<Upload> uploads = UploadsOf(request);
        const std::int64_t frames = static_cast<std::int64_t>(random() % 150);
        bool sent = stream->Write(HeaderOf(request));
        // Never all of it, so that none can commit.
        for (std::int64_t frame = 0; sent && frame < frames; ++frame) {
          Upload& upload = uploads[frame % uploads.size()];
          sent = stream->Write(NextFrame(upload, upload.bytes->size() / 60));
        }
        context.TryCancel();
        stream->Finish();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(Eventually([&] { return world.engine->staging().used() == 0; }));
  EXPECT_EQ(Fingerprint(*session->cache()), before);
  grpc::ClientContext context;
  v1::PrefillResponse response;
  ASSERT_TRUE(world.stub->Prefill(&context, request, &response).ok());
  ExpectResponse(response, testing::RunProblem(*world.cpu, problem));
}

TEST(PrefillRpc, TensorsOfMoreThanTwoGiBPassThroughTheStreamInLittleMemory) {
  constexpr std::int64_t kStaging = std::int64_t{128} << 20;
  ServedWorld world({.staging_bytes = kStaging});
  constexpr std::int64_t kRows = 2'150'000;
  const auto session =
      world.OpenSession({.layers = 1, .slots = 1, .heads = 1, .key_dim = 256, .value_dim = 8, .num_householder = 1});
  v1::PrefillFrame header;
  v1::PrefillRequest& request = *header.mutable_request();
  request.set_session(session->id());
  for (v1::Tensor* tensor : {request.mutable_k(), request.mutable_w(), request.mutable_u()}) {
    tensor->set_dtype(v1::DATA_TYPE_BFLOAT16);
    for (const std::int64_t size : {kRows, std::int64_t{1}, std::int64_t{256}}) tensor->add_shape(size);
  }
  request.mutable_u()->set_shape(2, 8);
  request.add_state_indices(0);
  request.set_save_new_value(true);
  request.set_chunk_size(128);
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = world.stub->PrefillStream(&context);
  std::thread writer([&] {
    ASSERT_TRUE(stream->Write(header));
    constexpr std::int64_t kStep = 2'000;
    v1::PrefillFrame frame;
    for (std::int64_t row = 0; row < kRows; row += kStep) {
      const std::int64_t rows = std::min(kStep, kRows - row);
      for (const auto& [id, width] :
           {std::pair(v1::TENSOR_ID_K, 512), std::pair(v1::TENSOR_ID_W, 512), std::pair(v1::TENSOR_ID_U, 16)}) {
        frame.mutable_data()->set_tensor(id);
        frame.mutable_data()->set_offset(row * width);
        frame.mutable_data()->mutable_payload()->resize(rows * width);
        ASSERT_TRUE(stream->Write(frame));
      }
    }
    stream->WritesDone();
  });
  v1::PrefillFrame frame;
  std::int64_t received = 0;
  std::int64_t most_used = 0;
  bool responded = false;
  while (stream->Read(&frame)) {
    if (frame.has_data()) received += static_cast<std::int64_t>(frame.data().payload().size());
    responded |= frame.has_response();
    most_used = std::max(most_used, world.engine->staging().used());
  }
  writer.join();
  const grpc::Status status = stream->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(responded);
  EXPECT_EQ(received, kRows * 16);
  EXPECT_LE(most_used, kStaging);
  EXPECT_EQ(session->cache()->slots().Position(0, 0), kRows);
}

}  // namespace
}  // namespace gdpcache::rpc
