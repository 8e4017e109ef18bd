#include "server/rpc/snapshot_uploads.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/cache/errors.h"
#include "server/cache/snapshots/snapshot_file.h"

namespace gdpcache::rpc {
namespace {

using cache::InvalidField;

constexpr std::size_t kMaxNameBytes = 128;
constexpr absl::Duration kRetryAfter = absl::Seconds(1);

/// What a header may have before it is complete, in memory that nobody is charged for: enough for every file of the
/// space, and for those of other models, whose difference is told.
std::int64_t MostHeaderBytes(const cache::SnapshotSpace& space) {
  constexpr std::int64_t kBytesOfLayer = 256;  // at most: the text of two tensors
  constexpr std::int64_t kLayersOfOthers = 4'096;
  return cache::kMaxSnapshotMetadataBytes + kBytesOfLayer * std::max(space.layers, kLayersOfOthers);
}

absl::Status NoSuchUpload(const std::string& name) {
  return cache::ResourceError(absl::StatusCode::kNotFound, "upload", name,
                              absl::StrCat("there is no upload ", cache::Quoted(name)));
}

}  // namespace

struct SnapshotUploads::Upload {
  Upload(Name the_name, const v1::WriteSnapshotHeader& header)
      : name(std::move(the_name)), key(header.key()), size(header.size()), reader(header.size()) {}

  const cache::SnapshotSpace& space() const { return name.first; }

  const Name name;
  const std::string key;  // empty: the file's
  const std::int64_t size;

  std::mutex mutex;  // guards what follows
  cache::SnapshotFileReader reader;
  std::shared_ptr<engine::StagingBuffer> memory;  // once the header is there
  std::vector<cache::SnapshotPart> parts;
  std::uint64_t turn = 0;  // the transfer that may write
  absl::Time active;
  bool over = false;

  std::int64_t room = 0;    // counted in bytes_; guarded by SnapshotUploads::mutex_
  bool registered = false;  // guarded by it, too
};

SnapshotUploads::SnapshotUploads(const cache::Clock& clock, absl::Duration idle_timeout, std::int64_t max_bytes,
                                 cache::TenantShare share, Stage stage, absl::AnyInvocable<void(absl::Time)> expect)
    : clock_(clock),
      idle_timeout_(idle_timeout),
      max_bytes_(max_bytes),
      share_(share),
      stage_(std::move(stage)),
      expect_(std::move(expect)) {}

SnapshotUploads::~SnapshotUploads() {
  const std::lock_guard lock(mutex_);  // behind the ends of transfers, which gRPC's threads tell of
}

absl::StatusOr<SnapshotUploads::Transfer> SnapshotUploads::Begin(const cache::SnapshotSpace& space,
                                                                 const v1::WriteSnapshotHeader& header) {
  if (!header.key().empty()) {
    if (absl::Status status = cache::CheckSnapshotKey("header.key", header.key()); !status.ok()) return status;
  }
  if (header.upload().size() > kMaxNameBytes) {
    return InvalidField("header.upload",
                        absl::StrCat("has ", header.upload().size(), " bytes; it may have at most ", kMaxNameBytes));
  }
  if (header.size() < 1)
    return InvalidField("header.size", absl::StrCat("is ", header.size(), "; it must be positive"));
  if (header.offset() < 0 || header.offset() > header.size()) {
    return InvalidField("header.offset",
                        absl::StrCat("is ", header.offset(), "; it must be from 0 to the size, ", header.size()));
  }

  std::shared_ptr<Upload> upload;
  {
    const std::lock_guard lock(mutex_);
    const auto found = header.upload().empty() ? uploads_.end() : uploads_.find(Name(space, header.upload()));
    if (found != uploads_.end()) upload = found->second;
  }
  if (upload != nullptr && header.offset() > 0) {
    const std::lock_guard lock(upload->mutex);
    if (upload->over) return NoSuchUpload(header.upload());
    if (header.size() != upload->size) {
      return InvalidField("header.size", absl::StrCat("is ", header.size(), "; the upload began with ", upload->size));
    }
    if (header.key() != upload->key) return InvalidField("header.key", "is not the one that the upload began with");
    if (header.offset() != upload->reader.received()) {
      return InvalidField("header.offset", absl::StrCat("is ", header.offset(), "; the upload has ",
                                                        upload->reader.received(), " bytes"));
    }
    upload->active = clock_.Now();
    return Transfer(*this, upload, ++upload->turn);
  }
  if (header.offset() > 0) return NoSuchUpload(header.upload());

  if (upload != nullptr) Remove(upload);  // begun anew
  {
    const std::lock_guard lock(mutex_);
    if (uploads_.size() >= kMaxUploads) {
      return cache::Exhausted(absl::StrCat(uploads_.size(), " uploads are unfinished; there may be ", kMaxUploads),
                              kRetryAfter);
    }
    const std::size_t uploads = UseLocked(space.tenant).uploads;
    if (const auto most = static_cast<std::size_t>(share_.Of(kMaxUploads)); uploads >= most) {
      return cache::Exhausted(absl::StrCat(uploads, " uploads of the tenant are unfinished; there may be ", most),
                              kRetryAfter);
    }
    Name name(space, header.upload());
    // One without a name is found by nobody: no name that a client gives has so many bytes.
    if (header.upload().empty()) name.second = absl::StrCat(std::string(kMaxNameBytes, '.'), ++unnamed_);
    upload = std::make_shared<Upload>(std::move(name), header);
    upload->active = clock_.Now();
    if (!uploads_.emplace(upload->name, upload).second) {
      return absl::AbortedError("another call has just begun an upload of this name");
    }
    upload->registered = true;
    expect_(upload->active + idle_timeout_);
  }
  const std::lock_guard lock(upload->mutex);
  return Transfer(*this, upload, ++upload->turn);
}

absl::StatusOr<v1::QueryWriteStatusResponse> SnapshotUploads::Query(const cache::SnapshotSpace& space,
                                                                    const std::string& name) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return InvalidField("upload", absl::StrCat("has ", name.size(), " bytes; it must have 1 to ", kMaxNameBytes));
  }
  std::shared_ptr<Upload> upload;
  {
    const std::lock_guard lock(mutex_);
    const auto found = uploads_.find(Name(space, name));
    if (found == uploads_.end()) return NoSuchUpload(name);
    upload = found->second;
  }
  const std::lock_guard lock(upload->mutex);
  if (upload->over) return NoSuchUpload(name);
  v1::QueryWriteStatusResponse response;
  response.set_received(upload->reader.received());
  response.set_size(upload->size);
  return response;
}

absl::Time SnapshotUploads::ExpireIdle() {
  std::vector<std::shared_ptr<Upload>> uploads;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, upload] : uploads_) uploads.push_back(upload);
  }
  const absl::Time now = clock_.Now();
  absl::Time next = absl::InfiniteFuture();
  for (const std::shared_ptr<Upload>& upload : uploads) {
    absl::Time due;
    {
      const std::lock_guard lock(upload->mutex);
      due = upload->active + idle_timeout_;
    }
    if (due > now) {
      next = std::min(next, due);
    } else {
      Remove(upload);
    }
  }
  return next;
}

std::size_t SnapshotUploads::count() const {
  const std::lock_guard lock(mutex_);
  return uploads_.size();
}

std::int64_t SnapshotUploads::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void SnapshotUploads::Remove(const std::shared_ptr<Upload>& upload) {
  std::shared_ptr<engine::StagingBuffer> memory;  // goes without a lock
  const std::lock_guard upload_lock(upload->mutex);
  upload->over = true;
  memory = std::move(upload->memory);
  const std::lock_guard lock(mutex_);
  if (!upload->registered) return;
  upload->registered = false;
  bytes_ -= std::exchange(upload->room, 0);
  uploads_.erase(upload->name);
}

absl::Status SnapshotUploads::TakeRoom(Upload& upload, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > max_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the snapshot has ", bytes, " bytes; uploads may take ", max_bytes_, " of the staging memory"));
  }
  if (bytes > max_bytes_ - bytes_) {
    return cache::Exhausted(absl::StrCat("the snapshot has ", bytes, " bytes; other uploads take ", bytes_, " of the ",
                                         max_bytes_, " bytes of staging memory for them"),
                            kRetryAfter);
  }
  const std::int64_t tenants_bytes = UseLocked(upload.space().tenant).bytes;
  if (const std::int64_t most = share_.Of(max_bytes_); tenants_bytes > 0 && bytes > most - tenants_bytes) {
    return cache::Exhausted(absl::StrCat("the snapshot has ", bytes, " bytes; other uploads of the tenant take ",
                                         tenants_bytes, " of the ", most, " bytes that it may use"),
                            kRetryAfter);
  }
  bytes_ += bytes;
  upload.room = bytes;
  return absl::OkStatus();
}

SnapshotUploads::Use SnapshotUploads::UseLocked(const std::string& tenant) const {
  Use use;
  for (const auto& [name, upload] : uploads_) {
    if (upload->space().tenant != tenant) continue;
    ++use.uploads;
    use.bytes += upload->room;
  }
  return use;
}

SnapshotUploads::Transfer& SnapshotUploads::Transfer::operator=(Transfer&& other) noexcept {
  if (this != &other) {
    End();
    uploads_ = other.uploads_;
    upload_ = std::move(other.upload_);
    turn_ = other.turn_;
  }
  return *this;
}

absl::Status SnapshotUploads::Transfer::Take(absl::Span<const std::byte> bytes) {
  absl::Status status;
  {
    Upload& upload = *upload_;
    const std::lock_guard lock(upload.mutex);
    if (upload.turn != turn_) return absl::AbortedError("another call goes on with the upload");
    if (upload.over) return absl::AbortedError("the upload was given up");
    upload.active = uploads_->clock_.Now();
    const auto take = [&]() -> absl::Status {
      if (!upload.reader.has_header()) {
        if (absl::Status read = upload.reader.ReadHeader(bytes); !read.ok()) return read;
        const cache::SnapshotSpace& space = upload.space();
        if (!upload.reader.has_header()) {
          const std::int64_t most = MostHeaderBytes(space);
          if (upload.reader.received() <= most) return absl::OkStatus();
          return absl::FailedPreconditionError(
              absl::StrCat("the file's header has more than ", most, " bytes, which no snapshot of this cache has"));
        }
        if (absl::Status same = cache::CheckSameSpace(upload.reader.info().record.space, space); !same.ok())
          return same;
        if (absl::Status room = uploads_->TakeRoom(upload, space.snapshot_bytes()); !room.ok()) return room;
        absl::StatusOr<std::shared_ptr<engine::StagingBuffer>> memory =
            uploads_->stage_(space.snapshot_bytes(), space.tenant);
        if (!memory.ok()) return memory.status();
        upload.memory = *std::move(memory);
        upload.parts = cache::PartsIn(space, upload.memory->data());
      }
      std::vector<kernels::ByteCopy> copies;
      if (absl::Status read = upload.reader.ReadData(bytes, upload.parts, copies); !read.ok()) return read;
      for (const kernels::ByteCopy& copy : copies) std::memcpy(copy.destination, copy.source, copy.size);
      return absl::OkStatus();
    };
    status = take();
  }
  if (!status.ok()) uploads_->Remove(upload_);
  return status;
}

absl::StatusOr<SnapshotUploads::Transfer::Complete> SnapshotUploads::Transfer::Finish() {
  Complete complete;
  {
    Upload& upload = *upload_;
    const std::lock_guard lock(upload.mutex);
    if (upload.turn != turn_) return absl::AbortedError("another call goes on with the upload");
    if (upload.over) return absl::AbortedError("the upload was given up");
    if (upload.reader.received() < upload.size) {
      return absl::InvalidArgumentError(
          absl::StrCat("the stream ended after ", upload.reader.received(), " of the file's ", upload.size, " bytes"));
    }
    upload.over = true;
    if (absl::Status status = upload.reader.Finish(); !status.ok()) return status;
    const cache::SnapshotRecord& record = upload.reader.info().record;
    complete.key = upload.key.empty() ? record.key : upload.key;
    complete.contents = {.position = record.position, .parts = std::move(upload.parts), .owner = upload.memory};
  }
  uploads_->Remove(upload_);
  return complete;
}

void SnapshotUploads::Transfer::End() {
  const std::shared_ptr<Upload> upload = std::exchange(upload_, nullptr);
  if (upload == nullptr) return;
  bool keep = false;
  {
    const std::lock_guard lock(upload->mutex);
    if (upload->turn != turn_) return;
    keep = !upload->over && upload->name.second.size() <= kMaxNameBytes;
    upload->active = uploads_->clock_.Now();
  }
  if (!keep) uploads_->Remove(upload);
}

}  // namespace gdpcache::rpc
