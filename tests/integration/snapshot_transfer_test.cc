// Snapshots of many megabytes on their way out and in: resumed, cancelled, stalled, drained, and with clients that die.

#include <grpcpp/client_context.h>
#include <signal.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "gdpcache/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/control_client.h"
#include "tests/support/eventually.h"
#include "tests/support/file_content.h"
#include "tests/support/server_process.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::test {
namespace {

const std::string kKey(16, 'k');
constexpr std::int64_t kLayers = 6;
constexpr std::int64_t kHeads = 64;
constexpr std::int64_t kDim = 128;

/// A server with one cache "model" and one snapshot of 24 MiB.
class SnapshotTransferTest : public ::testing::Test {
 protected:
  void Start(const std::vector<std::string>& flags = {}) {
    server_ = std::make_unique<ServerProcess>(flags);
    control_ = std::make_unique<ControlClient>(Connect(server_->tcp_address()));
    client_.emplace(Client::Connect(server_->unix_address()).value());
    CacheSpec spec;
    spec.name = "model";
    spec.geometry = {.layers = kLayers, .slots = 2, .heads = kHeads, .key_dim = kDim, .value_dim = kDim};
    ASSERT_TRUE(client_->CreateCache(spec).ok());
    session_.emplace(client_->OpenSession("model").value());
    const std::vector<std::int64_t> slots = session_->AcquireSlots(1).value();
    std::vector<float> state(static_cast<std::size_t>(kLayers * kHeads * kDim * kDim));
    for (std::size_t i = 0; i < state.size(); ++i) state[i] = static_cast<float>(i);
    SlotUpdate update;
    update.slots = slots;
    update.state = {DataType::kFloat32, {1, kLayers, kHeads, kDim, kDim}, state.data()};
    ASSERT_TRUE(session_->WriteSlots(update).ok());
    ASSERT_TRUE(session_->SaveSnapshots({{slots[0], kKey}}).ok());
    ASSERT_TRUE(client_->ExportSnapshot("model", kKey, file()).ok());
    whole_ = FileContent(file());
  }

  std::string file() const { return directory_.path() + "/exported.safetensors"; }
  std::int64_t size() const { return static_cast<std::int64_t>(whole_.size()); }

  static void SetDeadline(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  }

  bool StagingIsFree() {
    return Eventually([this] { return control_->GetServerInfo().staging_used_bytes() == 0; });
  }

  /// The snapshot is whole, and nobody holds on to it.
  void ExpectUntouched() {
    const std::string again = directory_.path() + "/again.safetensors";
    ASSERT_TRUE(client_->ExportSnapshot("model", kKey, again).ok());
    EXPECT_TRUE(whole_ == FileContent(again));
  }

  struct Read {
    grpc::Status status;
    std::string bytes;
    std::int64_t size = 0;
  };
  Read ReadFrom(std::int64_t offset) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::ReadSnapshotRequest request;
    request.set_cache("model");
    request.set_key(kKey);
    request.set_offset(offset);
    const auto stream = control_->stub().ReadSnapshot(&context, request);
    Read read;
    v1::ReadSnapshotResponse response;
    while (stream->Read(&response)) {
      if (response.size() > 0) read.size = response.size();
      EXPECT_EQ(response.offset(), static_cast<std::uint64_t>(offset) + read.bytes.size());
      read.bytes += response.payload();
    }
    read.status = stream->Finish();
    return read;
  }

  /// A transfer in by hand.
  struct Write {
    Write(SnapshotTransferTest& test, const std::string& upload, std::int64_t offset = 0) {
      SetDeadline(context);
      stream = test.control_->stub().WriteSnapshot(&context, &response);
      v1::WriteSnapshotRequest frame;
      frame.mutable_header()->set_cache("model");
      frame.mutable_header()->set_key(std::string(16, 'w'));
      frame.mutable_header()->set_upload(upload);
      frame.mutable_header()->set_size(test.size());
      frame.mutable_header()->set_offset(offset);
      stream->Write(frame);
    }

    void Send(const std::string& bytes) {
      v1::WriteSnapshotRequest frame;
      for (std::size_t n = 0; n < bytes.size(); n += 1 << 20) {
        frame.set_payload(bytes.substr(n, 1 << 20));
        if (!stream->Write(frame)) return;
      }
    }

    grpc::Status Finish() {
      stream->WritesDone();
      return stream->Finish();
    }

    grpc::ClientContext context;
    v1::WriteSnapshotResponse response;
    std::unique_ptr<grpc::ClientWriter<v1::WriteSnapshotRequest>> stream;
  };

  /// What the server has of an upload; -1 when it knows none.
  std::int64_t Received(const std::string& upload) {
    v1::QueryWriteStatusRequest request;
    request.set_cache("model");
    request.set_upload(upload);
    v1::QueryWriteStatusResponse answer;
    const grpc::Status status = control_->Call(&v1::StateCache::Stub::QueryWriteStatus, request, answer);
    if (status.error_code() == grpc::StatusCode::NOT_FOUND) return -1;
    EXPECT_TRUE(status.ok()) << status.error_message();
    return answer.received();
  }

  TemporaryDirectory directory_;
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<ControlClient> control_;
  std::optional<Client> client_;
  std::optional<Session> session_;
  std::string whole_;
};

TEST_F(SnapshotTransferTest, ItCanBeReadFromAnyOffset) {
  Start();
  for (const std::int64_t offset : {std::int64_t{0}, std::int64_t{1}, std::int64_t{700}, std::int64_t{1} << 20,
                                    size() / 2 + 1, size() - 1, size()}) {
    const Read read = ReadFrom(offset);
    EXPECT_TRUE(read.status.ok()) << read.status.error_message();
    EXPECT_EQ(read.size, size());
    EXPECT_TRUE(read.bytes == whole_.substr(static_cast<std::size_t>(offset))) << offset;
  }
  for (const std::int64_t offset : {std::int64_t{-1}, size() + 1}) {
    EXPECT_EQ(ReadFrom(offset).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << offset;
  }
  EXPECT_TRUE(StagingIsFree());
}

TEST_F(SnapshotTransferTest, ACancelledReadLetsGoOfEverything) {
  Start();
  for (int round = 0; round < 5; ++round) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::ReadSnapshotRequest request;
    request.set_cache("model");
    request.set_key(kKey);
    const auto stream = control_->stub().ReadSnapshot(&context, request);
    v1::ReadSnapshotResponse response;
    ASSERT_TRUE(stream->Read(&response));
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
    EXPECT_TRUE(StagingIsFree());
  }
  ExpectUntouched();
  EXPECT_EQ(client_->DeleteSnapshots("model", {kKey}).value(), 1);
}

TEST_F(SnapshotTransferTest, ABrokenWriteGoesOnWhereItStood) {
  Start();
  {
    Write broken(*this, "upload");
    broken.Send(whole_.substr(0, whole_.size() / 2));
    EXPECT_TRUE(Eventually([this] { return Received("upload") == size() / 2; }));
    broken.context.TryCancel();
    EXPECT_EQ(broken.stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_GT(control_->GetServerInfo().staging_used_bytes(), size() - 10'000) << "it is kept for the rest";
  Write rest(*this, "upload", size() / 2);
  rest.Send(whole_.substr(whole_.size() / 2));
  const grpc::Status status = rest.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(rest.response.outcome().result(), v1::SNAPSHOT_RESULT_STORED);
  EXPECT_EQ(Received("upload"), -1);
  EXPECT_TRUE(StagingIsFree());
  const std::string again = directory_.path() + "/again.safetensors";
  EXPECT_TRUE(client_->ExportSnapshot("model", std::string(16, 'w'), again).ok());
  const std::string bytes = FileContent(again);
  EXPECT_TRUE(bytes.substr(bytes.size() - 1'000) == whole_.substr(whole_.size() - 1'000));
}

TEST_F(SnapshotTransferTest, ACancelledWriteWithoutANameLeavesNothing) {
  Start();
  {
    Write write(*this, "");
    write.Send(whole_.substr(0, whole_.size() / 2));
    EXPECT_TRUE(Eventually([this] { return control_->GetServerInfo().staging_used_bytes() > 0; }));
    write.context.TryCancel();
    EXPECT_EQ(write.stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(StagingIsFree());
  EXPECT_FALSE(client_->LookupPrefix("model", {std::string(16, 'w')}).value().has_value());
}

TEST_F(SnapshotTransferTest, AnUploadThatNobodyGoesOnWithIsDropped) {
  Start({"--snapshot-pending-timeout=300ms"});
  {
    Write broken(*this, "upload");
    broken.Send(whole_.substr(0, whole_.size() / 2));
    EXPECT_TRUE(Eventually([this] { return control_->GetServerInfo().staging_used_bytes() > 0; }));
    broken.context.TryCancel();
    broken.stream->Finish();
  }
  EXPECT_TRUE(StagingIsFree());
  EXPECT_EQ(Received("upload"), -1);
}

TEST_F(SnapshotTransferTest, ClientsThatDoNotReadOrSendAreGivenUp) {
  Start({"--snapshot-pending-timeout=300ms"});
  grpc::ClientContext context;
  SetDeadline(context);
  v1::ReadSnapshotRequest request;
  request.set_cache("model");
  request.set_key(kKey);
  const auto reader = control_->stub().ReadSnapshot(&context, request);
  v1::ReadSnapshotResponse response;
  ASSERT_TRUE(reader->Read(&response));
  Write writer(*this, "upload");
  writer.Send(whole_.substr(0, 1 << 20));
  // Both hang here.
  EXPECT_TRUE(StagingIsFree());
  EXPECT_EQ(writer.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  while (reader->Read(&response)) {
  }
  EXPECT_FALSE(reader->Finish().ok());
  ExpectUntouched();
}

TEST_F(SnapshotTransferTest, ClientsThatAreKilledLeaveNothing) {
  Start();
  for (const std::string mode : {"read", "write", "watch"}) {
    Process killed(GDPCACHE_HANGING_CLIENT, {mode, server_->unix_address(), kKey, file()});
    ASSERT_EQ(killed.ReadLine(), "half") << mode;
    killed.Signal(SIGKILL);
    EXPECT_EQ(killed.Wait(), -SIGKILL);
    EXPECT_TRUE(StagingIsFree()) << mode;
  }
  ExpectUntouched();
  server_->process().Signal(SIGTERM);
  EXPECT_EQ(server_->process().Wait(absl::Seconds(20)), 0) << "it waits for none of them";
}

TEST_F(SnapshotTransferTest, ADrainLetsTransfersFinishEndsWatchesAndRefusesNewOnes) {
  Start({"--drain-timeout=60s"});
  session_.reset();
  SnapshotWatch watch = client_->WatchSnapshots("model", false);
  Write write(*this, "upload");
  write.Send(whole_.substr(0, whole_.size() / 2));
  EXPECT_TRUE(Eventually([this] { return Received("upload") == size() / 2; }));
  server_->process().Signal(SIGTERM);
  EXPECT_EQ(watch.Next().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReadFrom(0).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Write(*this, "another").Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(client_->WatchSnapshots("model", false).Next().status().code(), absl::StatusCode::kUnavailable);
  write.Send(whole_.substr(whole_.size() / 2));
  const grpc::Status status = write.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(server_->process().Wait(), 0);
}

TEST_F(SnapshotTransferTest, ADrainDoesNotWaitForeverForATransfer) {
  Start({"--drain-timeout=100ms"});
  session_.reset();
  Write write(*this, "upload");
  write.Send(whole_.substr(0, whole_.size() / 2));
  EXPECT_TRUE(Eventually([this] { return Received("upload") == size() / 2; }));
  server_->process().Signal(SIGTERM);
  EXPECT_EQ(server_->process().Wait(), 0);
  EXPECT_FALSE(write.Finish().ok());
}

TEST_F(SnapshotTransferTest, UnfinishedUploadsAreBoundedInNumberAndBytes) {
  Start({"--staging-memory=100MiB"});  // half of it for uploads: two of these
  std::vector<std::unique_ptr<Write>> writes;
  for (const char* name : {"a", "b"}) {
    writes.push_back(std::make_unique<Write>(*this, name));
    writes.back()->Send(whole_.substr(0, 1 << 20));
    EXPECT_TRUE(Eventually([&] { return Received(name) > 0; }));
  }
  Write third(*this, "c");
  third.Send(whole_.substr(0, 1 << 20));
  EXPECT_EQ(third.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  // Without data they take no memory yet.
  for (int n = 0; n < 14; ++n) {
    writes.push_back(std::make_unique<Write>(*this, "empty" + std::to_string(n)));
    EXPECT_TRUE(Eventually([&] { return Received("empty" + std::to_string(n)) == 0; }));
  }
  EXPECT_EQ(Write(*this, "one too many").Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  for (const std::unique_ptr<Write>& write : writes) write->context.TryCancel();
}

}  // namespace
}  // namespace gdpcache::test
