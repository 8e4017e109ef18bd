// WriteSnapshot, QueryWriteStatus and ReadSnapshot through the whole rpc layer of a server in this process: uploads in
// pieces, resumed, taken over from a call that still runs, given up, two at a time. There are two files, a good one and
// one that the first byte chooses: another good one, one of another space, or the input's own, whose length follows
// in two bytes, with or without the checksum that it should have. Behind it come steps, a byte for what is to be done,
// by which call, with which file and upload.

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "client/library/connection.h"
#include "gdpcache/v1/state_cache.pb.h"
#include "server/rpc/server.h"
#include "server/rpc/snapshot_codec.h"
#include "spdlog/spdlog.h"
#include "tests/fuzz/require.h"
#include "tests/fuzz/snapshot_input.h"
#include "tests/support/sample_snapshot.h"
#include "tests/unit/engine/engine_world.h"

namespace gdpcache::rpc {
namespace {

using fuzz::Require;

constexpr absl::Duration kTimeout = absl::Seconds(60);              // of a call
constexpr absl::Duration kTransferTimeout = absl::Milliseconds(1);  // so often its thread looks at the clock, too
constexpr cache::TenantShare kShare{.percent = 13};                 // two uploads

const std::string kCache = "cache";
const std::string kNames[] = {"", "a", "b", std::string(200, 'n')};
const std::string kKeys[] = {"", std::string(16, 'k'), std::string(64, 'q'), "short"};
const std::string kLastKey(16, 'z');

/// Whether the condition comes true before a minute is over; without a pause, as it takes microseconds.
template <typename Condition>
bool Soon(Condition condition) {
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

/// What is left of an input; zeros behind its end.
class Input {
 public:
  explicit Input(absl::string_view bytes) : left_(bytes) {}

  bool empty() const { return left_.empty(); }
  std::size_t Byte() {
    if (left_.empty()) return 0;
    const auto byte = static_cast<std::uint8_t>(left_.front());
    left_.remove_prefix(1);
    return byte;
  }
  std::size_t Two() {
    const std::size_t low = Byte();
    return low + 256 * Byte();
  }
  std::string Take(std::size_t size) {
    const std::string taken(left_.substr(0, size));
    left_.remove_prefix(taken.size());
    return taken;
  }

 private:
  absl::string_view left_;
};

struct File {
  std::string bytes;
  std::optional<fuzz::SnapshotInput> read;  // if it is a snapshot of the cache's space

  std::int64_t size() const { return static_cast<std::int64_t>(bytes.size()); }
};

/// A call of WriteSnapshot in progress; given up with this.
class Upload {
 public:
  explicit Upload(const client::Connection& connection) {
    client::Connection::SetDeadline(absl::Now() + kTimeout, &context_);
    call_ = connection.raw_stub().PrepareCall(&context_, "/gdpcache.v1.StateCache/WriteSnapshot", &queue_);
    call_->StartCall(nullptr);
    Wait();
  }
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;
  ~Upload() {
    context_.TryCancel();
    if (!ended_) End();
    queue_.Shutdown();
    while (Wait()) {
    }
  }

  /// The first one is what the call began with, if that can be parsed.
  void Send(const std::string& frame) {
    if (!std::exchange(begun_, true)) {
      v1::WriteSnapshotRequest request;
      if (request.ParseFromString(frame)) header_ = request.header();
    }
    const grpc::Slice slice(frame);
    call_->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    Wait();
  }

  const v1::WriteSnapshotHeader& header() const { return header_; }

  /// Once.
  grpc::Status End() {
    ended_ = true;
    call_->WritesDone(nullptr);
    Wait();
    grpc::ByteBuffer message;
    call_->Read(&message, nullptr);
    if (Wait()) {
      grpc::ProtoBufferReader reader(&message);
      Require(response_.ParseFromZeroCopyStream(&reader), "the response is none");
    }
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Wait();
    return status;
  }

  const v1::SnapshotOutcome& outcome() const { return response_.outcome(); }

 private:
  /// For the operation just started; whether it did what it should.
  bool Wait() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  v1::WriteSnapshotHeader header_;
  v1::WriteSnapshotResponse response_;
  bool begun_ = false;
  bool ended_ = false;
};

class Target {
 public:
  Target() : world_({.staging_bytes = std::int64_t{4} << 20, .workers = 2}) {
    spdlog::set_level(spdlog::level::off);
    const cache::SnapshotSpace small = test::SmallSpace();
    const auto created =
        world_.catalog.CreateCache({.name = kCache, .geometry = small.geometry(), .fingerprint = small.fingerprint});
    Require(created.ok(), "no cache");
    space_ = SpaceOf(world_.catalog, kCache, std::string(cache::kDefaultTenant)).value();
    ServerOptions options;
    options.listen = {"127.0.0.1:0"};
    options.max_message_bytes = std::int64_t{1} << 20;
    options.tenant_share = kShare;
    options.transfer_timeout = kTransferTimeout;
    auto started = Server::Start(options, world_.backend.device_info(), world_.catalog, *world_.engine, *world_.store,
                                 world_.thread, world_.clock, metrics_);
    Require(started.ok(), "no server");
    server_ = *std::move(started);
    connection_ = client::Connection::Open(server_->addresses()[0], {}).value();
    files_[0] = Made(space_, 1);
  }

  void Run(absl::string_view bytes) {
    Input input(bytes);
    const std::size_t choice = input.Byte();
    SetSecondFile(choice, input.Take(input.Two()));
    for (int steps = 0; steps < kMaxSteps && !input.empty(); ++steps) Step(input);
    for (std::unique_ptr<Upload>& call : calls_) call = nullptr;
    Require(Soon([this] { return RunningCalls() == 0; }), "a call does not end");
    for (const std::string& name : names_) Drop(name);
    CheckThatNothingIsLeft();
    CheckWhatIsStored();
    Forget();
  }

 private:
  static constexpr int kMaxSteps = 40;
  static constexpr std::size_t kMaxOldNames = 64;
  static constexpr std::size_t kWhereItStands = 0xFFFF;  // for an offset

  File Read(std::string bytes) const {
    absl::StatusOr<fuzz::SnapshotInput> read = fuzz::ReadFile(bytes, std::max<std::size_t>(bytes.size(), 1));
    File file{.bytes = std::move(bytes), .read = {}};
    if (read.ok() && read->info.record.space == space_) file.read = *std::move(read);
    return file;
  }

  File Made(const cache::SnapshotSpace& space, std::uint64_t seed) const {
    const cache::SnapshotRecord record{space, std::string(16 + seed, 'f'), static_cast<std::int64_t>(seed)};
    return Read(test::SampleSnapshot(record, seed).File());
  }

  void SetSecondFile(std::size_t choice, std::string own) {
    cache::SnapshotSpace other = space_;
    ++other.heads;
    switch (choice % 4) {
      case 0:
        files_[1] = Made(space_, 2);
        break;
      case 1:
        files_[1] = Made(other, 3);
        break;
      case 2:
        fuzz::Seal(own);
        [[fallthrough]];
      default:
        files_[1] = Read(std::move(own));
    }
  }

  void Step(Input& input) {
    const std::size_t step = input.Byte();
    std::unique_ptr<Upload>& call = calls_[step >> 3 & 1];
    const File& file = files_[step >> 4 & 1];
    const std::string& name = kNames[step >> 5 & 3];
    switch (step & 7) {
      case 0:
        return SendRaw(call, input.Take(input.Byte()));
      case 1: {
        const std::string& key = kKeys[input.Byte() % std::size(kKeys)];
        const std::size_t offset = input.Two();
        const bool goes_on = offset == kWhereItStands;
        return Send(call, Header(file, name, key, goes_on ? Received(name) : static_cast<std::int64_t>(offset)));
      }
      case 2: {
        const std::size_t from = std::min(input.Two(), file.bytes.size());
        return Send(call, Payload(file.bytes.substr(from, input.Two())));
      }
      case 3:
        Begun(call);
        End(call);
        return;
      case 4:
        call = nullptr;
        return;
      case 5:
        Received(name);
        return;
      case 6: {
        const std::size_t number = input.Byte();
        const std::string key = number % 8 < std::size(kKeys) ? kKeys[number % 8] : KeyOf(file);
        return CheckRead(key, static_cast<std::int64_t>(input.Two()) - 1);
      }
      default:
        world_.clock.Advance(kTransferTimeout / 2);
        late_ = true;
    }
  }

  // --- what a client sends ---

  static v1::WriteSnapshotRequest Header(const File& file, const std::string& name, const std::string& key,
                                         std::int64_t offset) {
    v1::WriteSnapshotRequest frame;
    v1::WriteSnapshotHeader& header = *frame.mutable_header();
    header.set_cache(kCache);
    header.set_key(key);
    header.set_upload(name);
    header.set_size(file.size());
    header.set_offset(offset);
    return frame;
  }

  static v1::WriteSnapshotRequest Payload(const std::string& bytes) {
    v1::WriteSnapshotRequest frame;
    frame.set_payload(bytes);
    return frame;
  }

  Upload& Begun(std::unique_ptr<Upload>& call) const {
    if (call == nullptr) call = std::make_unique<Upload>(*connection_);
    return *call;
  }

  void Send(std::unique_ptr<Upload>& call, const v1::WriteSnapshotRequest& frame) {
    if (frame.has_header()) names_.insert(frame.header().upload());
    Begun(call).Send(frame.SerializeAsString());
  }

  void SendRaw(std::unique_ptr<Upload>& call, const std::string& bytes) {
    v1::WriteSnapshotRequest frame;
    if (frame.ParseFromString(bytes) && frame.has_header()) {
      names_.insert(frame.header().upload());
    } else {
      foreign_ = true;
    }
    Begun(call).Send(bytes);
  }

  /// A whole call: the header and these bytes.
  grpc::Status Transfer(const v1::WriteSnapshotRequest& header, const std::string& bytes) {
    auto call = std::make_unique<Upload>(*connection_);
    call->Send(header.SerializeAsString());
    if (!bytes.empty()) call->Send(Payload(bytes).SerializeAsString());
    return End(call);
  }

  grpc::Status End(std::unique_ptr<Upload>& open) {
    const std::unique_ptr<Upload> call = std::move(open);
    const grpc::Status status = call->End();
    CheckEnd(*call, status);
    return status;
  }

  std::int64_t RunningCalls() const {
    std::int64_t running = 0;
    for (const v1::RpcStats& method : metrics_.rpcs.Read()) running += method.active();
    return running;
  }

  static bool IsName(const std::string& upload) { return !upload.empty() && upload.size() <= 128; }

  /// 0 without such an upload.
  std::int64_t Received(const std::string& name) const {
    grpc::ClientContext context;
    client::Connection::SetDeadline(absl::Now() + kTimeout, &context);
    v1::QueryWriteStatusRequest request;
    request.set_cache(kCache);
    request.set_upload(name);
    v1::QueryWriteStatusResponse response;
    const grpc::Status status = connection_->stub().QueryWriteStatus(&context, request, &response);
    Require(IsName(name) ? status.ok() || status.error_code() == grpc::StatusCode::NOT_FOUND
                         : status.error_code() == grpc::StatusCode::INVALID_ARGUMENT,
            "a query's status is not what the contract says");
    Require(response.received() >= 0 && response.received() <= std::max(response.size(), std::int64_t{0}),
            "more has come than there is");
    return response.received();
  }

  // --- what must hold ---

  void CheckEnd(const Upload& call, const grpc::Status& status) {
    switch (status.error_code()) {
      case grpc::StatusCode::OK:
      case grpc::StatusCode::INVALID_ARGUMENT:
      case grpc::StatusCode::NOT_FOUND:
      case grpc::StatusCode::FAILED_PRECONDITION:
      case grpc::StatusCode::DATA_LOSS:
      case grpc::StatusCode::RESOURCE_EXHAUSTED:
      case grpc::StatusCode::ABORTED:
        break;
      default:
        Require(late_ && status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED,
                "an upload's status is none that the contract names");
    }
    const std::string& name = call.header().upload();
    if (status.ok() && IsName(name) && calls_[0] == nullptr && calls_[1] == nullptr) {
      Require(Received(name) == 0, "an upload is still there that is over");
    }
    std::set<std::string> keys;
    for (const cache::SnapshotSummary& snapshot : world_.store->List(space_, "", 1'000)) keys.insert(snapshot.key);
    const bool stored = status.ok() && call.outcome().result() == v1::SNAPSHOT_RESULT_STORED;
    Require(!status.ok() || stored || call.outcome().result() == v1::SNAPSHOT_RESULT_PRESENT,
            "an upload succeeded with another outcome than STORED and PRESENT");
    if (!stored) {
      Require(keys == stored_, "what was not stored can be found, or what was cannot");
      return;
    }
    for (const std::string& key : stored_) Require(keys.erase(key) == 1, "what was stored cannot be found");
    Require(keys.size() == 1, "an upload that was stored can not be found, or more than that");
    const std::string& key = *keys.begin();
    const bool is_the_files =
        std::any_of(std::begin(files_), std::end(files_), [&](const File& file) { return key == KeyOf(file); });
    Require(call.header().key().empty() ? is_the_files || foreign_ : key == call.header().key(),
            "an upload was stored under another key");
    stored_.insert(key);
  }

  /// Reads from an offset on, and compares.
  void CheckRead(const std::string& key, std::int64_t offset) const {
    grpc::ClientContext context;
    client::Connection::SetDeadline(absl::Now() + kTimeout, &context);
    v1::ReadSnapshotRequest request;
    request.set_cache(kCache);
    request.set_key(key);
    request.set_offset(offset);
    const auto stream = connection_->stub().ReadSnapshot(&context, request);
    v1::ReadSnapshotResponse response;
    std::string bytes;
    std::int64_t size = 0;
    while (stream->Read(&response)) {
      size = std::max(size, response.size());
      Require(response.offset() == static_cast<std::uint64_t>(offset) + bytes.size(), "a piece is out of place");
      bytes += response.payload();
    }
    const grpc::StatusCode code = stream->Finish().error_code();
    const bool is_key = cache::CheckSnapshotKey("key", key).ok();
    if (!is_key || offset < 0) return Require(code == grpc::StatusCode::INVALID_ARGUMENT, "a read was not refused");
    if (stored_.count(key) == 0) return Require(code == grpc::StatusCode::NOT_FOUND, "what is not stored was read");
    const auto some_file = [this](auto condition) {
      return foreign_ || std::any_of(std::begin(files_), std::end(files_),
                                     [&](const File& file) { return file.read && condition(file); });
    };
    const auto from = static_cast<std::size_t>(offset);
    if (code == grpc::StatusCode::INVALID_ARGUMENT) {
      return Require(some_file([&](const File& file) { return FileUnder(file, key).size() < from; }),
                     "a read of what is stored was refused");
    }
    Require(code == grpc::StatusCode::OK && size == offset + static_cast<std::int64_t>(bytes.size()),
            "what is stored cannot be read");
    if (offset == 0) {
      const File whole = Read(bytes);
      Require(whole.read && whole.read->info.record.key == key, "what is stored is not what a strict reader accepts");
    }
    const auto is_what_was_sent = [&](const File& file) {
      const std::string sent = FileUnder(file, key);
      return from <= sent.size() && sent.substr(from) == bytes;
    };
    Require(some_file(is_what_was_sent), "what is stored is not what was sent");
  }

  /// What the file is when it is kept under that key.
  static std::string FileUnder(const File& file, const std::string& key) {
    cache::SnapshotRecord record = file.read->info.record;
    record.key = key;
    return fuzz::FileOf(record, file.read->data);
  }

  static std::string KeyOf(const File& file) { return file.read ? file.read->info.record.key : std::string(); }

  /// Ends an upload, whoever began it.
  void Drop(const std::string& name) {
    if (!IsName(name)) return;
    v1::WriteSnapshotRequest header = Header(files_[0], name, "", 0);
    const grpc::Status status = Transfer(header, std::string(8, '\xFF'));
    Require(!status.ok(), "eight bytes are a snapshot");
  }

  /// As many uploads as there may be are begun, and one of them is finished, in two calls.
  void CheckThatNothingIsLeft() {
    const auto begin = [this](const std::string& name, const std::string& bytes) {
      grpc::StatusCode code = grpc::StatusCode::OK;
      const bool begun = Soon([&] {
        code = Transfer(Header(files_[0], name, kLastKey, 0), bytes).error_code();
        if (code != grpc::StatusCode::RESOURCE_EXHAUSTED) return true;
        // The server may have seen a call that was given up only now.
        for (const std::set<std::string>* names : {&names_, &old_names_}) {
          for (const std::string& old : *names) Drop(old);
        }
        return false;
      });
      Require(begun, "uploads are leaked");
      Require(code == grpc::StatusCode::INVALID_ARGUMENT, "half an upload is not told to be half");
    };
    begin("first", "");
    const std::size_t half = files_[0].bytes.size() / 2;
    begin("second", files_[0].bytes.substr(0, half));
    const std::int64_t received = Received("second");
    Require(received == static_cast<std::int64_t>(half), "an upload does not stand where its call ended");
    const grpc::Status status = Transfer(Header(files_[0], "second", kLastKey, received), files_[0].bytes.substr(half));
    Require(status.ok() && stored_.count(kLastKey) == 1, "a good file was refused");
    Drop("first");
  }

  void CheckWhatIsStored() {
    grpc::ClientContext context;
    client::Connection::SetDeadline(absl::Now() + kTimeout, &context);
    v1::LookupPrefixRequest request;
    request.set_cache(kCache);
    std::int64_t index = -1;
    for (const std::string& key : {kKeys[1], kKeys[2], KeyOf(files_[0]), KeyOf(files_[1])}) {
      if (key.empty()) continue;
      if (stored_.count(key) == 1) index = request.keys_size();
      request.add_keys(key);
    }
    v1::LookupPrefixResponse response;
    Require(connection_->stub().LookupPrefix(&context, request, &response).ok(), "a lookup failed");
    Require(response.index() == index, "a lookup finds what was not stored, or not what was");
    for (const std::string& key : stored_) CheckRead(key, 0);
  }

  void Forget() {
    const std::vector<absl::string_view> keys(stored_.begin(), stored_.end());
    const absl::StatusOr<std::int64_t> deleted = world_.store->Delete(space_, keys, /*force=*/false);
    Require(deleted.ok() && *deleted == std::ssize(keys), "what was stored cannot be deleted");
    Require(Soon([this] { return world_.engine->staging().used() == 0; }), "staging memory is leaked");
    Require(Soon([this] { return world_.store->tiers()[0].used == 0; }), "memory of snapshots is leaked");
    stored_.clear();
    if (old_names_.size() > kMaxOldNames) old_names_.clear();
    old_names_.merge(names_);
    names_.clear();
    late_ = false;
    foreign_ = false;
  }

  engine::World world_;
  ServerMetrics metrics_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<const client::Connection> connection_;
  cache::SnapshotSpace space_;

  File files_[2];
  std::unique_ptr<Upload> calls_[2];
  std::set<std::string> names_;      // of uploads that may be there
  std::set<std::string> old_names_;  // of earlier inputs
  std::set<std::string> stored_;     // keys
  bool late_ = false;                // the clock has moved
  bool foreign_ = false;             // maybe something else than files_ has been sent
};

}  // namespace
}  // namespace gdpcache::rpc

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static auto& target = *new gdpcache::rpc::Target();
  target.Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
