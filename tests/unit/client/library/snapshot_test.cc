#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "gdpcache/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/file_content.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/client/library/fake_server.h"

namespace gdpcache::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const grpc::Status kBroken(grpc::StatusCode::UNAVAILABLE, "the connection broke");

/// Three frames' worth, no two frames alike.
std::string FileBytes() {
  std::string bytes((std::size_t{5} << 19) + 7, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 + i / 1000);
  return bytes;
}

class SnapshotTest : public ::testing::Test {
 protected:
  Client Connected() {
    absl::StatusOr<Client> client = Client::Connect(server_.address());
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  std::string Path(const std::string& name) const { return directory_.path() + "/" + name; }

  std::size_t FilesInDirectory() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(directory_.path()), std::filesystem::directory_iterator()));
  }

  /// Sends `bytes` from the request's offset on in pieces of 100,000, and breaks when `most` have left.
  static grpc::Status Send(const v1::ReadSnapshotRequest& request, const std::string& bytes, std::size_t most,
                           grpc::ServerWriter<v1::ReadSnapshotResponse>* writer) {
    auto offset = static_cast<std::size_t>(request.offset());
    const std::size_t end = std::min(bytes.size(), offset + most);
    bool first = true;
    while (offset < end || first) {
      v1::ReadSnapshotResponse response;
      if (first) {
        response.set_size(static_cast<std::int64_t>(bytes.size()));
        response.set_position(128);
      }
      first = false;
      response.set_offset(offset);
      response.set_payload(bytes.substr(offset, std::min<std::size_t>(100'000, end - offset)));
      offset += response.payload().size();
      writer->Write(response);
    }
    return offset == bytes.size() ? grpc::Status::OK : kBroken;
  }

  const std::string bytes_ = FileBytes();  // outlives handlers that go on when their client has given up
  FakeServer server_;
  TemporaryDirectory directory_;
};

TEST_F(SnapshotTest, AMissIsNoMatch) {
  server_.lookup_prefix = [](const v1::LookupPrefixRequest& request, v1::LookupPrefixResponse* response) {
    EXPECT_EQ(request.lease_ms(), 0);
    response->set_index(-1);
    return grpc::Status::OK;
  };
  const absl::StatusOr<std::optional<PrefixMatch>> match = Connected().LookupPrefix("model", {std::string(16, 'k')});
  ASSERT_TRUE(match.ok()) << match.status();
  EXPECT_FALSE(match->has_value());
}

TEST_F(SnapshotTest, AMatchTellsEverything) {
  server_.lookup_prefix = [](const v1::LookupPrefixRequest& request, v1::LookupPrefixResponse* response) {
    EXPECT_EQ(request.cache(), "model");
    EXPECT_EQ(request.lease_ms(), 1'500);
    response->set_index(1);
    response->set_pin("pin");
    v1::Snapshot& snapshot = *response->mutable_snapshot();
    snapshot.set_key(request.keys(1));
    snapshot.set_position(128);
    snapshot.set_bytes(4'096);
    snapshot.add_tiers(v1::SNAPSHOT_TIER_HOST);
    snapshot.add_tiers(v1::SNAPSHOT_TIER_DISK);
    snapshot.add_tiers(static_cast<v1::SnapshotTier>(77));
    snapshot.set_pinned(true);
    snapshot.set_age_ms(2'000);
    snapshot.set_idle_ms(1'000);
    return grpc::Status::OK;
  };
  const std::vector<std::string> keys = {std::string(16, 'a'), std::string(16, '\0'), std::string(16, 'c')};
  const absl::StatusOr<std::optional<PrefixMatch>> match =
      Connected().LookupPrefix("model", keys, absl::Milliseconds(1'500));
  ASSERT_TRUE(match.ok() && match->has_value()) << match.status();
  EXPECT_EQ((*match)->index, 1);
  EXPECT_EQ((*match)->pin, "pin");
  const Snapshot& snapshot = (*match)->snapshot;
  EXPECT_EQ(snapshot.key, keys[1]);
  EXPECT_EQ(snapshot.position, 128);
  EXPECT_EQ(snapshot.bytes, 4'096);
  EXPECT_THAT(snapshot.tiers, ElementsAre(SnapshotTier::kHost, SnapshotTier::kDisk, SnapshotTier::kUnknown));
  EXPECT_TRUE(snapshot.pinned);
  EXPECT_EQ(snapshot.age, absl::Seconds(2));
  EXPECT_EQ(snapshot.idle, absl::Seconds(1));
}

TEST_F(SnapshotTest, AMatchOfNoKeyBreaksTheProtocol) {
  server_.lookup_prefix = [](const v1::LookupPrefixRequest&, v1::LookupPrefixResponse* response) {
    response->set_index(1);
    response->mutable_snapshot();
    return grpc::Status::OK;
  };
  EXPECT_EQ(Connected().LookupPrefix("model", {std::string(16, 'k')}).status().code(), absl::StatusCode::kInternal);
}

TEST_F(SnapshotTest, AnExportGoesOnWhereItBroke) {
  std::vector<std::int64_t> offsets;
  server_.read_snapshot = [&](const v1::ReadSnapshotRequest& request,
                              grpc::ServerWriter<v1::ReadSnapshotResponse>* writer) {
    offsets.push_back(request.offset());
    return Send(request, bytes_, 1'000'000, writer);
  };
  const absl::StatusOr<ExportedSnapshot> exported =
      Connected().ExportSnapshot("model", std::string(16, 'k'), Path("out"));
  server_.Change([] {});  // the handlers have ended
  ASSERT_TRUE(exported.ok()) << exported.status();
  EXPECT_EQ(exported->position, 128);
  EXPECT_EQ(exported->file_bytes, static_cast<std::int64_t>(bytes_.size()));
  EXPECT_TRUE(FileContent(Path("out")) == bytes_);
  EXPECT_THAT(offsets, ElementsAre(0, 1'000'000, 2'000'000));
  EXPECT_EQ(FilesInDirectory(), 1);
}

TEST_F(SnapshotTest, AFailedExportLeavesTheOldFileAndNoOther) {
  std::ofstream(Path("out")) << "old";
  server_.read_snapshot = [](const v1::ReadSnapshotRequest&, grpc::ServerWriter<v1::ReadSnapshotResponse>*) {
    return grpc::Status(grpc::StatusCode::DATA_LOSS, "damaged");
  };
  EXPECT_EQ(Connected().ExportSnapshot("model", std::string(16, 'k'), Path("out")).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(FileContent(Path("out")), "old");
  EXPECT_EQ(FilesInDirectory(), 1);
  EXPECT_EQ(Connected().ExportSnapshot("model", std::string(16, 'k'), Path("absent/out")).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Connected().ExportSnapshot("model", std::string(16, 'k'), "/dev/null").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(SnapshotTest, AnExportThatBreaksTheProtocolFails) {
  server_.read_snapshot = [](const v1::ReadSnapshotRequest& request,
                             grpc::ServerWriter<v1::ReadSnapshotResponse>* writer) {
    v1::ReadSnapshotResponse response;
    response.set_size(100);
    response.set_offset(request.key()[0] == 'a' ? 1 : ~std::uint64_t{0});
    response.set_payload("x");
    writer->Write(response);
    return grpc::Status::OK;
  };
  for (const char key : {'a', 'b'}) {
    EXPECT_EQ(Connected().ExportSnapshot("model", std::string(16, key), Path("out")).status().code(),
              absl::StatusCode::kInternal);
  }
}

TEST_F(SnapshotTest, AnExportWhoseSizeChangesFails) {
  server_.read_snapshot = [this](const v1::ReadSnapshotRequest& request,
                                 grpc::ServerWriter<v1::ReadSnapshotResponse>* writer) {
    return Send(request, request.offset() == 0 ? bytes_ : bytes_ + "x", 1'000'000, writer);
  };
  EXPECT_EQ(Connected().ExportSnapshot("model", std::string(16, 'k'), Path("out")).status().code(),
            absl::StatusCode::kInternal);
}

TEST_F(SnapshotTest, AnImportGoesOnWhereTheServerSays) {
  std::ofstream(Path("in"), std::ios::binary) << bytes_;
  std::string received;
  std::vector<std::string> uploads;
  server_.write_snapshot = [&](grpc::ServerReader<v1::WriteSnapshotRequest>* reader,
                               v1::WriteSnapshotResponse* response) {
    v1::WriteSnapshotRequest frame;
    if (!reader->Read(&frame)) return kBroken;
    uploads.push_back(frame.header().upload());
    EXPECT_EQ(frame.header().size(), static_cast<std::int64_t>(bytes_.size()));
    EXPECT_EQ(frame.header().offset(), static_cast<std::int64_t>(received.size()));
    EXPECT_EQ(frame.header().key(), std::string(16, 'k'));
    if (reader->Read(&frame)) received += frame.payload();
    if (received.size() < bytes_.size()) return kBroken;
    response->mutable_outcome()->set_result(v1::SNAPSHOT_RESULT_STORED);
    response->mutable_outcome()->set_position(128);
    return grpc::Status::OK;
  };
  server_.query_write_status = [&](const v1::QueryWriteStatusRequest& request, v1::QueryWriteStatusResponse* response) {
    EXPECT_EQ(request.upload(), uploads.front());
    response->set_received(static_cast<std::int64_t>(received.size()));
    response->set_size(static_cast<std::int64_t>(bytes_.size()));
    return grpc::Status::OK;
  };
  const absl::StatusOr<SnapshotOutcome> outcome = Connected().ImportSnapshot("model", Path("in"), std::string(16, 'k'));
  server_.Change([] {});  // the handlers have ended
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->result, SnapshotResult::kStored);
  EXPECT_EQ(outcome->position, 128);
  EXPECT_TRUE(received == bytes_);
  EXPECT_EQ(uploads.size(), 3);
  EXPECT_EQ(uploads[2], uploads[0]);
}

TEST_F(SnapshotTest, AnImportStartsAnewWhereTheServerHasForgottenIt) {
  std::ofstream(Path("in")) << "snapshot";
  std::vector<std::int64_t> offsets;
  server_.write_snapshot = [&](grpc::ServerReader<v1::WriteSnapshotRequest>* reader,
                               v1::WriteSnapshotResponse* response) {
    v1::WriteSnapshotRequest frame;
    reader->Read(&frame);
    offsets.push_back(frame.header().offset());
    while (reader->Read(&frame)) {
    }
    if (offsets.size() == 1) return kBroken;
    response->mutable_outcome()->set_result(v1::SNAPSHOT_RESULT_PRESENT);
    return grpc::Status::OK;
  };
  server_.query_write_status = [](const v1::QueryWriteStatusRequest&, v1::QueryWriteStatusResponse*) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such upload");
  };
  const absl::StatusOr<SnapshotOutcome> outcome = Connected().ImportSnapshot("model", Path("in"));
  server_.Change([] {});  // the handlers have ended
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->result, SnapshotResult::kPresent);
  EXPECT_THAT(offsets, ElementsAre(0, 0));
}

TEST_F(SnapshotTest, FilesThatCannotBeImportedAreNamed) {
  const absl::Status absent = Connected().ImportSnapshot("model", Path("absent")).status();
  EXPECT_EQ(absent.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(absent.message()), HasSubstr(Path("absent")));
  EXPECT_EQ(Connected().ImportSnapshot("model", directory_.path()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SnapshotTest, TransfersGiveUpAtTheirTimeout) {
  server_.read_snapshot = [](const v1::ReadSnapshotRequest&, grpc::ServerWriter<v1::ReadSnapshotResponse>*) {
    return kBroken;
  };
  const absl::Status status =
      Connected()
          .ExportSnapshot("model", std::string(16, 'k'), Path("out"), {.timeout = absl::Milliseconds(300)})
          .status();
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) << status;
}

TEST_F(SnapshotTest, AWatchDeliversEventsUntilItIsCancelled) {
  server_.watch_snapshots = [](const v1::WatchSnapshotsRequest& request, grpc::ServerContext* context,
                               grpc::ServerWriter<v1::WatchSnapshotsResponse>* writer) {
    EXPECT_TRUE(request.existing());
    v1::WatchSnapshotsResponse response;
    writer->Write(response);  // without an event
    v1::SnapshotEvent& stored = *response.add_events();
    stored.set_type(v1::SnapshotEvent::TYPE_STORED);
    stored.set_key(std::string(16, 'k'));
    stored.set_position(64);
    response.add_events()->set_type(v1::SnapshotEvent::TYPE_SYNCED);
    writer->Write(response);
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  };
  SnapshotWatch watch = Connected().WatchSnapshots("model", true);
  const absl::StatusOr<std::vector<SnapshotEvent>> events = watch.Next();
  ASSERT_TRUE(events.ok()) << events.status();
  ASSERT_EQ(events->size(), 2);
  EXPECT_EQ((*events)[0].type, SnapshotEvent::Type::kStored);
  EXPECT_EQ((*events)[0].position, 64);
  EXPECT_EQ((*events)[1].type, SnapshotEvent::Type::kSynced);
  std::thread canceller([&watch] { watch.Cancel(); });
  EXPECT_EQ(watch.Next().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(watch.Next().status().code(), absl::StatusCode::kCancelled);
  canceller.join();
}

TEST_F(SnapshotTest, AWatchTellsWhyItEnds) {
  server_.watch_snapshots = [](const v1::WatchSnapshotsRequest&, grpc::ServerContext*,
                               grpc::ServerWriter<v1::WatchSnapshotsResponse>*) {
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too slow");
  };
  SnapshotWatch watch = Connected().WatchSnapshots("model", false);
  EXPECT_EQ(watch.Next().status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(SnapshotTest, AWatchThatNobodyReadsEndsWithItsObject) {
  server_.watch_snapshots = [](const v1::WatchSnapshotsRequest&, grpc::ServerContext* context,
                               grpc::ServerWriter<v1::WatchSnapshotsResponse>* writer) {
    writer->SendInitialMetadata();
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  };
  const SnapshotWatch watch = Connected().WatchSnapshots("model", false);
}

}  // namespace
}  // namespace gdpcache::test
