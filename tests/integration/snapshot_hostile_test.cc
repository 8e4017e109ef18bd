// Whatever a client puts into the fields of the snapshot calls, it gets an error that names the field, and the server
// lives and keeps what it had.

#include <grpcpp/client_context.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"
#include "tests/support/control_client.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_call.h"
#include "tests/support/server_process.h"
#include "tests/support/status_details.h"

namespace gdpcache {
namespace {

using test::ControlClient;
using Stub = v1::StateCache::Stub;

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
const std::string kKey(16, 'k');

class SnapshotHostileTest : public ::testing::Test {
 protected:
  SnapshotHostileTest() {
    client_.CreateCache(ControlClient::SmallCache("model"));
    session_ = client_.OpenSession("model");
    client_.AcquireSlots(session_, 2);
    EXPECT_TRUE(Save({{0, kKey}}).ok());
  }

  void TearDown() override {
    EXPECT_EQ(test::CheckHealth(test::Connect(server_.tcp_address()), ""), 1) << "the server must live";
    v1::LookupPrefixRequest request;
    request.set_cache("model");
    request.add_keys(kKey);
    v1::LookupPrefixResponse response;
    EXPECT_TRUE(client_.Call(&Stub::LookupPrefix, request, response).ok());
    EXPECT_EQ(response.index(), 0) << "what was there is there";
    // A request goes with its call, which gRPC ends behind the answer.
    EXPECT_TRUE(test::Eventually([this] { return client_.GetServerInfo().staging_used_bytes() == 0; }));
  }

  grpc::Status Save(const std::vector<std::pair<std::int64_t, std::string>>& saves) {
    v1::SaveSnapshotsRequest request;
    request.set_session(session_);
    for (const auto& [slot, key] : saves) {
      request.add_saves()->set_slot(slot);
      request.mutable_saves()->rbegin()->set_key(key);
    }
    return client_.Call(&Stub::SaveSnapshots, request);
  }

  grpc::Status Restore(const std::string& key, const std::vector<std::int64_t>& slots) {
    v1::RestoreSnapshotsRequest request;
    request.set_session(session_);
    request.add_restores()->set_key(key);
    request.mutable_restores(0)->mutable_slots()->Add(slots.begin(), slots.end());
    return client_.Call(&Stub::RestoreSnapshots, request);
  }

  grpc::Status Lookup(const std::string& cache, const std::vector<std::string>& keys, std::int64_t lease_ms = 0) {
    v1::LookupPrefixRequest request;
    request.set_cache(cache);
    for (const std::string& key : keys) request.add_keys(key);
    request.set_lease_ms(lease_ms);
    return client_.Call(&Stub::LookupPrefix, request);
  }

  grpc::Status Pin(const std::vector<std::string>& keys, std::int64_t ttl_ms = 0) {
    v1::PinSnapshotsRequest request;
    request.set_cache("model");
    for (const std::string& key : keys) request.add_keys(key);
    request.set_ttl_ms(ttl_ms);
    return client_.Call(&Stub::PinSnapshots, request);
  }

  grpc::Status Unpin(const std::string& pin) {
    v1::UnpinSnapshotsRequest request;
    request.set_cache("model");
    request.set_pin(pin);
    return client_.Call(&Stub::UnpinSnapshots, request);
  }

  grpc::Status Delete(const std::vector<std::string>& keys) {
    v1::DeleteSnapshotsRequest request;
    request.set_cache("model");
    for (const std::string& key : keys) request.add_keys(key);
    return client_.Call(&Stub::DeleteSnapshots, request);
  }

  grpc::Status List(std::int64_t page_size, const std::string& token) {
    v1::ListSnapshotsRequest request;
    request.set_cache("model");
    request.set_page_size(page_size);
    request.set_page_token(token);
    return client_.Call(&Stub::ListSnapshots, request);
  }

  grpc::Status Read(const std::string& cache, const std::string& key, std::int64_t offset) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::ReadSnapshotRequest request;
    request.set_cache(cache);
    request.set_key(key);
    request.set_offset(offset);
    const auto stream = client_.stub().ReadSnapshot(&context, request);
    v1::ReadSnapshotResponse response;
    while (stream->Read(&response)) {
    }
    return stream->Finish();
  }

  grpc::Status Write(const std::vector<v1::WriteSnapshotRequest>& frames) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::WriteSnapshotResponse response;
    const auto stream = client_.stub().WriteSnapshot(&context, &response);
    for (const v1::WriteSnapshotRequest& frame : frames) stream->Write(frame);
    stream->WritesDone();
    return stream->Finish();
  }

  static v1::WriteSnapshotRequest Header(std::int64_t size, std::int64_t offset = 0, const std::string& key = "",
                                         const std::string& upload = "") {
    v1::WriteSnapshotRequest frame;
    frame.mutable_header()->set_cache("model");
    frame.mutable_header()->set_size(size);
    frame.mutable_header()->set_offset(offset);
    frame.mutable_header()->set_key(key);
    frame.mutable_header()->set_upload(upload);
    return frame;
  }

  static v1::WriteSnapshotRequest Payload(const std::string& bytes) {
    v1::WriteSnapshotRequest frame;
    frame.set_payload(bytes);
    return frame;
  }

  grpc::Status Prefill(const std::vector<v1::SnapshotDirective>& directives) {
    v1::PrefillRequest request;
    request.set_session(session_);
    for (const auto& [tensor, columns] :
         {std::pair(request.mutable_k(), 4), {request.mutable_w(), 4}, {request.mutable_u(), 3}}) {
      tensor->set_dtype(v1::DATA_TYPE_FLOAT32);
      for (const int size : {32, 2, columns}) tensor->add_shape(size);
      tensor->set_inline_(std::string(static_cast<std::size_t>(32 * 2 * columns * 4), '\0'));
    }
    request.set_chunk_size(16);
    request.add_state_indices(1);
    for (const v1::SnapshotDirective& directive : directives) *request.add_snapshots() = directive;
    return client_.Call(&Stub::Prefill, request);
  }

  static v1::SnapshotDirective Directive(std::int64_t sequence, std::int64_t boundary, const std::string& key,
                                         const std::string& auxiliary = "") {
    v1::SnapshotDirective directive;
    directive.set_sequence(sequence);
    directive.set_boundary(boundary);
    directive.set_key(key);
    directive.set_auxiliary(auxiliary);
    return directive;
  }

  static std::string FieldOf(const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    const auto details = test::DetailOf<google::rpc::BadRequest>(status);
    return details.field_violations_size() > 0 ? details.field_violations(0).field() : "";
  }

  static void SetDeadline(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  }

  test::ServerProcess server_{{"--max-pin-ttl=1h", "--snapshot-device-memory=16MiB"}};
  ControlClient client_{test::Connect(server_.tcp_address())};
  std::string session_;
};

TEST_F(SnapshotHostileTest, KeysMustHave16To64Bytes) {
  for (const std::string& key :
       {std::string(), std::string(15, 'k'), std::string(65, 'k'), std::string(1 << 20, 'k')}) {
    EXPECT_EQ(FieldOf(Save({{0, kKey}, {1, key}})), "saves[1].key");
    EXPECT_EQ(FieldOf(Restore(key, {1})), "restores[0].key");
    EXPECT_EQ(FieldOf(Lookup("model", {kKey, key})), "keys[1]");
    EXPECT_EQ(FieldOf(Pin({kKey, key})), "keys[1]");
    EXPECT_EQ(FieldOf(Delete({kKey, key})), "keys[1]");
    EXPECT_EQ(FieldOf(Read("model", key, 0)), "key");
    EXPECT_EQ(FieldOf(Prefill({Directive(0, 1, key)})), "snapshots[0].key");
    if (!key.empty()) {
      EXPECT_EQ(FieldOf(Write({Header(10, 0, key)})), "header.key");
    }
  }
  // Whatever bytes they are.
  for (const std::string& key : {std::string(16, '\0'), std::string(64, '\xff'), std::string("../../../../../etc")}) {
    EXPECT_TRUE(Save({{0, key}}).ok());
    EXPECT_TRUE(Restore(key, {1}).ok());
    EXPECT_TRUE(Delete({key}).ok());
  }
}

TEST_F(SnapshotHostileTest, SlotsMustBeHeldAndNamedOnce) {
  for (const std::int64_t slot : {kMin, std::int64_t{-2}, std::int64_t{-1}, std::int64_t{8}, kMax}) {
    EXPECT_EQ(FieldOf(Save({{0, kKey}, {slot, std::string(16, 'x')}})), "saves[1].slot");
    EXPECT_EQ(FieldOf(Restore(kKey, {1, slot})), "restores[0].slots[1]");
  }
  EXPECT_EQ(Save({{5, std::string(16, 'x')}}).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Restore(kKey, {5}).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(FieldOf(Restore(kKey, {1, 1})), "restores[0].slots[1]");
  EXPECT_EQ(FieldOf(Save({{0, std::string(16, 'x')}, {1, std::string(16, 'x')}})), "saves[1].key");
}

TEST_F(SnapshotHostileTest, UnknownThingsAreNotFound) {
  EXPECT_EQ(Lookup("another", {kKey}).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Lookup(std::string("a\0b", 3), {kKey}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Read("another", kKey, 0).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Read("model", std::string(16, 'x'), 0).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Restore(std::string(16, 'x'), {1}).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Pin({kKey, std::string(16, 'x')}).error_code(), grpc::StatusCode::NOT_FOUND);
  for (const std::string& pin : {std::string(), std::string("x"), std::string(1 << 20, 'x'), std::string("a\0b", 3)}) {
    EXPECT_EQ(Unpin(pin).error_code(), grpc::StatusCode::NOT_FOUND);
  }
  session_ = "nobody's";
  EXPECT_EQ(Save({{0, kKey}}).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Restore(kKey, {1}).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(SnapshotHostileTest, NumbersOutOfRangeAreNamed) {
  for (const std::int64_t value : {kMin, std::int64_t{-1}, std::int64_t{3'600'001}, kMax}) {
    EXPECT_EQ(FieldOf(Lookup("model", {kKey}, value)), "lease_ms");
    EXPECT_EQ(FieldOf(Pin({kKey}, value)), "ttl_ms");
  }
  for (const std::int64_t value : {kMin, std::int64_t{-1}, std::int64_t{10'001}, kMax}) {
    EXPECT_EQ(FieldOf(List(value, "")), "page_size");
  }
  for (const std::string& token : {std::string("x"), std::string("0011"), std::string(32, 'g'), std::string(33, '0'),
                                   std::string(130, '0'), std::string(1 << 20, '0')}) {
    EXPECT_EQ(FieldOf(List(0, token)), "page_token");
  }
  for (const std::int64_t value : {kMin, std::int64_t{-1}, kMax}) {
    EXPECT_EQ(FieldOf(Read("model", kKey, value)), "offset");
  }
  EXPECT_EQ(FieldOf(Pin({})), "keys");
  EXPECT_TRUE(Delete({}).ok());
  EXPECT_TRUE(Lookup("model", {}).ok());
}

TEST_F(SnapshotHostileTest, TooManyKeysAreRefused) {
  const std::vector<std::string> keys(65'537, kKey);
  EXPECT_EQ(FieldOf(Lookup("model", keys)), "keys");
  EXPECT_EQ(FieldOf(Pin(keys)), "keys");
  EXPECT_EQ(FieldOf(Delete(keys)), "keys");
  EXPECT_TRUE(Lookup("model", std::vector<std::string>(65'536, std::string(16, 'x'))).ok());
}

TEST_F(SnapshotHostileTest, DirectivesOutOfRangeAreNamedAndTheCallChangesNothing) {
  for (const std::int64_t value : {kMin, std::int64_t{-1}, std::int64_t{1}, kMax}) {
    EXPECT_EQ(FieldOf(Prefill({Directive(0, 1, kKey), Directive(value, 0, std::string(16, 'x'))})),
              "snapshots[1].sequence");
  }
  for (const std::int64_t value : {kMin, std::int64_t{-1}, std::int64_t{3}, kMax}) {
    EXPECT_EQ(FieldOf(Prefill({Directive(0, value, std::string(16, 'x'))})), "snapshots[0].boundary");
  }
  EXPECT_EQ(FieldOf(Prefill({Directive(0, 1, std::string(16, 'x'), "aux")})), "snapshots[0].auxiliary");
  EXPECT_EQ(Prefill({Directive(0, 1, std::string(16, 'x')), Directive(0, 2, std::string(16, 'x'))}).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(FieldOf(Prefill(std::vector<v1::SnapshotDirective>(65'537, Directive(0, 1, std::string(16, 'x'))))),
            "snapshots");
  v1::ListSlotsResponse slots = client_.ListSlots("model");
  EXPECT_EQ(slots.slots(1).max_position(), 0);
}

TEST_F(SnapshotHostileTest, UploadsThatMakeNoSenseAreRefused) {
  for (const std::int64_t size : {kMin, std::int64_t{-1}, std::int64_t{0}}) {
    EXPECT_EQ(FieldOf(Write({Header(size)})), "header.size");
  }
  for (const std::int64_t offset : {kMin, std::int64_t{-1}, std::int64_t{11}, kMax}) {
    EXPECT_EQ(FieldOf(Write({Header(10, offset)})), "header.offset");
  }
  EXPECT_EQ(FieldOf(Write({Header(10, 0, "", std::string(129, 'u'))})), "header.upload");
  EXPECT_EQ(Write({Header(10, 5, "", "unknown")}).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Write({}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Write({Payload("x")}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Write({v1::WriteSnapshotRequest()}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Write({Header(10), Header(10)}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Write({Header(10), Payload("12345")}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_FALSE(Write({Header(kMax), Payload(std::string(8, '\xff'))}).ok());
  EXPECT_FALSE(Write({Header(kMax), Payload(std::string("\xff\xff\xff\x00\x00\x00\x00\x00{", 9))}).ok());
  v1::WriteSnapshotRequest header = Header(10);
  header.mutable_header()->set_cache("another");
  EXPECT_EQ(Write({header}).error_code(), grpc::StatusCode::NOT_FOUND);

  v1::QueryWriteStatusRequest query;
  query.set_cache("model");
  EXPECT_EQ(FieldOf(client_.Call(&Stub::QueryWriteStatus, query)), "upload");
  query.set_upload("unknown");
  EXPECT_EQ(client_.Call(&Stub::QueryWriteStatus, query).error_code(), grpc::StatusCode::NOT_FOUND);
  query.set_cache("another");
  EXPECT_EQ(client_.Call(&Stub::QueryWriteStatus, query).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(SnapshotHostileTest, FilesOfNoiseAreRefused) {
  std::mt19937 random(7);
  for (int n = 0; n < 50; ++n) {
    std::string bytes(1 + random() % 3'000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (n % 2 == 0 && bytes.size() > 8) bytes.replace(0, 8, std::string("\x20\0\0\0\0\0\0\0", 8));
    EXPECT_FALSE(Write({Header(static_cast<std::int64_t>(bytes.size())), Payload(bytes)}).ok());
  }
}

TEST_F(SnapshotHostileTest, AWatchOfAnUnknownCacheEnds) {
  for (const std::string& cache : {std::string("another"), std::string(), std::string("a\nb")}) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::WatchSnapshotsRequest request;
    request.set_cache(cache);
    const auto stream = client_.stub().WatchSnapshots(&context, request);
    v1::WatchSnapshotsResponse response;
    EXPECT_FALSE(stream->Read(&response));
    EXPECT_FALSE(stream->Finish().ok());
  }
}

}  // namespace
}  // namespace gdpcache
