// Snapshots to and from files, over connections that may break.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <random>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/library/connection.h"
#include "client/library/frame_encoding.h"
#include "client/library/incoming_tensors.h"
#include "client/library/raw_call.h"
#include "client/library/snapshots.h"
#include "client/library/status_conversion.h"
#include "gdpcache/client.h"

namespace gdpcache {
namespace {

using client::Connection;
using client::ProtocolError;
using Stub = v1::StateCache::StubInterface;

constexpr char kReadMethod[] = "/gdpcache.v1.StateCache/ReadSnapshot";
constexpr char kWriteMethod[] = "/gdpcache.v1.StateCache/WriteSnapshot";

/// A transfer that broke goes on after a pause, which doubles; after so many breaks without a byte in between it has
/// failed.
constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(2);
constexpr int kMaxFruitlessAttempts = 10;

absl::Status FileError(absl::string_view what, const std::string& path, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat(what, " ", path));
}

/// Owns a descriptor.
class File {
 public:
  static absl::StatusOr<File> Open(const std::string& path, int flags) {
    const int descriptor = open(path.c_str(), flags | O_CLOEXEC, 0666);
    if (descriptor < 0) return FileError("cannot open", path, errno);
    return File(path, descriptor);
  }
  File(File&& other) noexcept : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}
  File& operator=(File&&) = delete;
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }

  absl::StatusOr<std::int64_t> Size() const {
    struct stat status = {};
    if (fstat(descriptor_, &status) != 0) return FileError("cannot look at", path_, errno);
    if (!S_ISREG(status.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path_, " is not a regular file"));
    return static_cast<std::int64_t>(status.st_size);
  }

  absl::Status ReadAt(std::int64_t offset, std::string* bytes) const {
    std::size_t done = 0;
    while (done < bytes->size()) {
      const ssize_t got = pread(descriptor_, bytes->data() + done, bytes->size() - done,
                                static_cast<off_t>(offset + static_cast<std::int64_t>(done)));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return FileError("cannot read", path_, errno);
      if (got == 0) return absl::DataLossError(absl::StrCat(path_, " became shorter meanwhile"));
      done += static_cast<std::size_t>(got);
    }
    return absl::OkStatus();
  }

  absl::Status WriteAt(std::int64_t offset, absl::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t put = pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return FileError("cannot write", path_, errno);
      offset += put;
      bytes.remove_prefix(static_cast<std::size_t>(put));
    }
    return absl::OkStatus();
  }

  absl::Status Sync() const {
    return fsync(descriptor_) == 0 ? absl::OkStatus() : FileError("cannot write", path_, errno);
  }

 private:
  File(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_;
};

std::string RandomName() {
  std::random_device random;
  std::string name;
  for (int n = 0; n < 4; ++n) absl::StrAppend(&name, absl::Hex(random(), absl::kZeroPad8));
  return name;
}

/// A file that takes its name when it is whole, and is not there otherwise.
class NewFile {
 public:
  static absl::StatusOr<NewFile> Create(const std::string& path) {
    struct stat status = {};
    if (stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat(path, " exists and is not a regular file"));
    }
    std::string temporary = absl::StrCat(path, ".", RandomName());
    absl::StatusOr<File> file = File::Open(temporary, O_WRONLY | O_CREAT | O_EXCL);
    if (!file.ok()) return file.status();
    return NewFile(path, std::move(temporary), *std::move(file));
  }
  NewFile(NewFile&& other) noexcept
      : path_(std::move(other.path_)), temporary_(std::exchange(other.temporary_, "")), file_(std::move(other.file_)) {}
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile() {
    if (!temporary_.empty()) unlink(temporary_.c_str());
  }

  const File& file() const { return file_; }

  absl::Status Finish() {
    if (absl::Status status = file_.Sync(); !status.ok()) return status;
    if (rename(temporary_.c_str(), path_.c_str()) != 0) return FileError("cannot make", path_, errno);
    temporary_.clear();
    return absl::OkStatus();
  }

 private:
  NewFile(std::string path, std::string temporary, File file)
      : path_(std::move(path)), temporary_(std::move(temporary)), file_(std::move(file)) {}

  std::string path_;
  std::string temporary_;
  File file_;
};

/// Runs `attempt` until it does not end as a broken connection does, or that makes no sense any more. `progress` is
/// what it counts.
absl::Status RunWithResume(absl::Time deadline, const std::int64_t& progress,
                           absl::FunctionRef<absl::Status()> attempt) {
  absl::Duration pause = kFirstPause;
  int fruitless = 0;
  while (true) {
    const std::int64_t before = progress;
    const absl::Status status = attempt();
    if (!absl::IsUnavailable(status)) return status;
    if (progress != before) {
      fruitless = 0;
      pause = kFirstPause;
    }
    if (++fruitless >= kMaxFruitlessAttempts || absl::Now() + pause >= deadline) return status;
    absl::SleepFor(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

/// One attempt at the rest of a snapshot, from `received` on.
absl::Status ReadRest(const Connection& connection, v1::ReadSnapshotRequest request, absl::Time deadline,
                      const File& file, std::int64_t* size, std::int64_t* position, std::int64_t* received) {
  request.set_offset(*received);
  bool sent = false;
  const auto next = [&](grpc::ByteBuffer* message) {
    if (sent) return false;
    *message = client::EncodeMessage(request);
    sent = true;
    return true;
  };
  bool first = true;
  const auto receive = [&](grpc::ByteBuffer& buffer) -> absl::Status {
    v1::ReadSnapshotResponse response;
    if (absl::Status status = client::ParseMessage(buffer, &response); !status.ok()) return status;
    if (first) {
      if (response.size() < 1 || (*size >= 0 && response.size() != *size)) {
        return ProtocolError(absl::StrCat("a snapshot of ", response.size(), " bytes"));
      }
      *size = response.size();
      *position = response.position();
      first = false;
    }
    if (response.payload().empty()) return absl::OkStatus();
    const auto bytes = static_cast<std::int64_t>(response.payload().size());
    if (response.offset() != static_cast<std::uint64_t>(*received) || bytes > *size - *received) {
      return ProtocolError(absl::StrCat("bytes ", response.offset(), " to ",
                                        response.offset() + response.payload().size(), " of ", *size, " when ",
                                        *received, " had been received"));
    }
    if (absl::Status status = file.WriteAt(*received, response.payload()); !status.ok()) return status;
    *received += bytes;
    return absl::OkStatus();
  };
  const absl::Status status = client::RunStream(connection, kReadMethod, deadline, next, receive);
  if (status.ok() && (first || *received != *size)) return ProtocolError("the stream ended before the snapshot did");
  return status;
}

/// One attempt at the rest of a file, from the header's offset on.
absl::Status WriteRest(const Connection& connection, const v1::WriteSnapshotHeader& header, absl::Time deadline,
                       const File& file, v1::WriteSnapshotResponse* response) {
  std::int64_t sent = header.offset();
  bool header_sent = false;
  absl::Status read;
  const auto next = [&](grpc::ByteBuffer* message) {
    v1::WriteSnapshotRequest frame;
    if (!header_sent) {
      *frame.mutable_header() = header;
      header_sent = true;
    } else {
      if (sent == header.size()) return false;
      std::string* payload = frame.mutable_payload();
      payload->resize(static_cast<std::size_t>(std::min(header.size() - sent, client::kMaxPayloadBytes)));
      read = file.ReadAt(sent, payload);
      if (!read.ok()) return false;  // the server takes the early end for a broken transfer
      sent += static_cast<std::int64_t>(payload->size());
    }
    *message = client::EncodeMessage(frame);
    return true;
  };
  bool answered = false;
  const auto receive = [&](grpc::ByteBuffer& buffer) {
    answered = true;
    return client::ParseMessage(buffer, response);
  };
  const absl::Status status = client::RunStream(connection, kWriteMethod, deadline, next, receive);
  if (!read.ok()) return read;
  if (status.ok() && !answered) return ProtocolError("the call ended without a response");
  return status;
}

}  // namespace

absl::StatusOr<ExportedSnapshot> Client::ExportSnapshot(const std::string& cache, const std::string& key,
                                                        const std::string& path, const CallOptions& options) const {
  absl::StatusOr<NewFile> file = NewFile::Create(path);
  if (!file.ok()) return file.status();
  v1::ReadSnapshotRequest request;
  request.set_cache(cache);
  request.set_key(key);
  const absl::Time deadline = connection_->Deadline(options);
  ExportedSnapshot exported{.position = 0, .file_bytes = -1};
  std::int64_t received = 0;
  absl::Status status = RunWithResume(deadline, received, [&] {
    return ReadRest(*connection_, request, deadline, file->file(), &exported.file_bytes, &exported.position, &received);
  });
  if (status.ok()) status = file->Finish();
  if (!status.ok()) return status;
  return exported;
}

absl::StatusOr<SnapshotOutcome> Client::ImportSnapshot(const std::string& cache, const std::string& path,
                                                       const std::string& key, const CallOptions& options) const {
  const absl::StatusOr<File> file = File::Open(path, O_RDONLY);
  if (!file.ok()) return file.status();
  const absl::StatusOr<std::int64_t> size = file->Size();
  if (!size.ok()) return size.status();
  v1::WriteSnapshotHeader header;
  header.set_cache(cache);
  header.set_key(key);
  header.set_upload(RandomName());
  header.set_size(*size);
  const absl::Time deadline = connection_->Deadline(options);
  v1::WriteSnapshotResponse response;
  std::int64_t received = 0;
  bool begun = false;
  const absl::Status status = RunWithResume(deadline, received, [&] {
    if (begun) {
      v1::QueryWriteStatusRequest query;
      query.set_cache(cache);
      query.set_upload(header.upload());
      v1::QueryWriteStatusResponse answer;
      const absl::Status found =
          connection_->Call(&Stub::QueryWriteStatus, {.timeout = deadline - absl::Now()}, query, &answer);
      // A server that was started anew knows nothing of it; nor does one that has stored it and could not say so.
      if (!found.ok() && !absl::IsNotFound(found)) return found;
      received = found.ok() ? answer.received() : 0;
      if (received < 0 || received > *size) return ProtocolError(absl::StrCat("it has ", received, " of ", *size));
    }
    begun = true;
    header.set_offset(received);
    return WriteRest(*connection_, header, deadline, *file, &response);
  });
  if (!status.ok()) return status;
  return client::FromProto(response.outcome());
}

}  // namespace gdpcache
