#include "server/cache/snapshots/disk_tier.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "kernels/copy_and_wait.h"
#include "server/cache/snapshots/snapshot_file.h"

namespace gdpcache::cache {
namespace {

// Small enough that a piece is still in the processor's cache when it is hashed after the reading or writing.
constexpr std::int64_t kPieceBytes = std::int64_t{512} << 10;
constexpr std::int64_t kBounceBytes = 8 * kPieceBytes;
constexpr std::size_t kMostRanges = 1'024;  // of one call: IOV_MAX

std::vector<iovec> AsPieces(const std::vector<kernels::ByteRange>& ranges) {
  std::vector<iovec> pieces;
  pieces.reserve(ranges.size());
  for (const kernels::ByteRange& range : ranges) pieces.push_back({range.data, range.size});
  return pieces;
}

/// Reads or writes all of `ranges`, in as many calls as it takes. `call` gets what is left and returns how much it has
/// done, or -errno; so does this: 0 when all is done, -EIO when a call did nothing.
std::int64_t Transfer(const std::vector<kernels::ByteRange>& ranges, std::int64_t offset,
                      absl::FunctionRef<ssize_t(absl::Span<const iovec>, off_t)> call) {
  std::vector<iovec> pieces = AsPieces(ranges);
  absl::Span<iovec> left = absl::MakeSpan(pieces);
  while (!left.empty()) {
    const ssize_t result = call(left.subspan(0, kMostRanges), offset);
    if (result <= 0) return result < 0 ? result : -EIO;
    offset += result;
    auto done = static_cast<std::size_t>(result);
    while (!left.empty() && done >= left.front().iov_len) {
      done -= left.front().iov_len;
      left.remove_prefix(1);
    }
    if (done > 0) {
      left.front().iov_base = static_cast<std::byte*>(left.front().iov_base) + done;
      left.front().iov_len -= done;
    }
  }
  return 0;
}

absl::Span<const std::byte> AsBytes(const kernels::ByteRange& range) {
  return {static_cast<const std::byte*>(range.data), range.size};
}

}  // namespace

/// A borrowed bounce buffer.
class DiskTier::Bounce {
 public:
  Bounce(DiskTier& tier, kernels::Buffer buffer) : tier_(&tier), buffer_(std::move(buffer)) {}
  Bounce(Bounce&& other) noexcept : tier_(std::exchange(other.tier_, nullptr)), buffer_(std::move(other.buffer_)) {}
  Bounce& operator=(Bounce&&) = delete;
  Bounce(const Bounce&) = delete;
  Bounce& operator=(const Bounce&) = delete;
  ~Bounce() {
    if (tier_ == nullptr || buffer_.data() == nullptr) return;
    const std::lock_guard lock(tier_->mutex_);
    tier_->idle_bounces_.push_back(std::move(buffer_));
  }

  std::byte* bytes() const { return buffer_.bytes(); }

 private:
  DiskTier* tier_;
  kernels::Buffer buffer_;
};

class DiskTier::Copy final : public TierCopy {
 public:
  Copy(DiskTier& tier, SnapshotFileId id, const SnapshotChecksum& checksum, std::int64_t file_bytes,
       std::int64_t header_bytes)
      : tier_(tier), id_(id), checksum_(checksum), file_bytes_(file_bytes), header_bytes_(header_bytes) {}

  absl::Span<const SnapshotPart> parts() const override { return {}; }

  absl::Status Load(absl::Span<const SnapshotPart> destination, kernels::Stream& stream) const override {
    {
      const std::lock_guard lock(mutex_);
      if (removed_) return absl::NotFoundError("the snapshot has been removed");
      ++readers_;
    }
    absl::Status status = Read(destination, stream);
    {
      const std::lock_guard lock(mutex_);
      --readers_;
      // Its removal while it was read is no damage, whatever the reading met.
      if (removed_ && !status.ok()) status = absl::NotFoundError("the snapshot has been removed");
      FreeIfGone();
    }
    if (absl::IsDataLoss(status)) Report(DiskIncident::Kind::kDamaged, status);
    if (absl::IsUnavailable(status) || absl::IsInternal(status)) Report(DiskIncident::Kind::kReadFailed, status);
    return status;
  }

  void Remove() noexcept override {
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(removed_, true)) return;
    }
    const absl::Status status = tier_.directory_->Remove(id_);
    if (!status.ok()) {
      tier_.removal_failed_ = true;
      Report(DiskIncident::Kind::kRemoveFailed, status);
    }
    const std::lock_guard lock(mutex_);
    unlinked_ = status.ok();
    FreeIfGone();
  }

 private:
  void Report(DiskIncident::Kind kind, const absl::Status& status) const {
    tier_.Report({kind, tier_.directory_->Path(id_), 1, status});
  }

  /// The file takes no more space when it has neither a name nor a reader.
  void FreeIfGone() const {
    if (unlinked_ && readers_ == 0) tier_.used_ -= std::exchange(counted_, 0);
  }

  absl::Status Failure(std::int64_t error) const {
    absl::Status status = SnapshotDirectory::ReadFailure(error, "reading");
    // What the medium does not give back is lost.
    return error == -EIO ? absl::DataLossError(status.message()) : status;
  }

  static absl::Status Damaged(const absl::Status& status) { return absl::DataLossError(status.message()); }

  absl::Status Read(absl::Span<const SnapshotPart> destination, kernels::Stream& stream) const {
    const absl::StatusOr<OpenFile> file = tier_.directory_->OpenForReading(id_);
    if (!file.ok()) return file.status();
    FileSystem& file_system = tier_.directory_->file_system();
    const auto read = [&](const std::vector<kernels::ByteRange>& ranges, std::int64_t offset) {
      return Transfer(ranges, offset, [&](absl::Span<const iovec> pieces, off_t at) {
        return file_system.Read(file->get(), pieces, at);
      });
    };
    SnapshotFileReader reader(file_bytes_);
    std::string header(static_cast<std::size_t>(header_bytes_), '\0');
    if (const std::int64_t error = read({{header.data(), header.size()}}, 0); error < 0) return Failure(error);
    absl::Span<const std::byte> header_bytes(reinterpret_cast<const std::byte*>(header.data()), header.size());
    if (absl::Status status = reader.ReadHeader(header_bytes); !status.ok()) return Damaged(status);
    if (!reader.has_header() || reader.info().checksum != checksum_) {
      return Damaged(absl::DataLossError("this is another file than was there before"));
    }
    if (absl::Status status = CheckParts(reader.info().record.space, destination); !status.ok()) return status;

    absl::StatusOr<Bounce> bounce = tier_.TakeBounce();
    if (!bounce.ok()) return bounce.status();
    absl::Status status = ReadData(reader, destination, *bounce, stream, read);
    // Also after an error: nothing may be under way between the buffers when they are given back.
    const absl::Status synchronized = tier_.backend_.Synchronize(stream);
    if (status.ok()) status = synchronized;
    if (!status.ok()) return status;
    if (status = reader.Finish(); !status.ok()) return Damaged(status);
    file_system.Touch(file->get());  // for the order of the next start; one that fails changes only that
    return absl::OkStatus();
  }

  absl::Status ReadData(
      SnapshotFileReader& reader, absl::Span<const SnapshotPart> destination, const Bounce& bounce,
      kernels::Stream& stream,
      absl::FunctionRef<std::int64_t(const std::vector<kernels::ByteRange>&, std::int64_t)> read) const {
    std::vector<kernels::ByteRange> ranges;
    std::vector<kernels::ByteCopy> copies;
    std::int64_t slot = 0;
    while (reader.received() < file_bytes_) {
      const std::int64_t offset = reader.received();
      const std::int64_t size = std::min(kPieceBytes, file_bytes_ - offset);
      ranges.clear();
      if (tier_.direct_) {
        AppendDataRanges(destination, offset - header_bytes_, size, ranges);
      } else {
        if (slot == kBounceBytes) {
          if (absl::Status status = tier_.backend_.Synchronize(stream); !status.ok()) return status;
          slot = 0;
        }
        ranges.push_back({bounce.bytes() + slot, static_cast<std::size_t>(size)});
        slot += kPieceBytes;
      }
      if (const std::int64_t error = read(ranges, offset); error < 0) return Failure(error);
      if (tier_.direct_) {
        for (const kernels::ByteRange& range : ranges) {
          if (absl::Status status = reader.AddData(AsBytes(range)); !status.ok()) return Damaged(status);
        }
        continue;
      }
      copies.clear();
      if (absl::Status status = reader.ReadData(AsBytes(ranges.front()), destination, copies); !status.ok()) {
        return Damaged(status);
      }
      if (absl::Status status = tier_.backend_.CopyBytes(copies, stream); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  DiskTier& tier_;
  const SnapshotFileId id_;
  const SnapshotChecksum checksum_;
  const std::int64_t file_bytes_;
  const std::int64_t header_bytes_;
  mutable std::mutex mutex_;
  mutable std::int64_t counted_ = file_bytes_;  // in the tier's used()
  mutable int readers_ = 0;
  bool removed_ = false;
  bool unlinked_ = false;
};

DiskTier::DiskTier(Options options, kernels::Backend& backend, std::unique_ptr<SnapshotDirectory> directory)
    : backend_(backend),
      direct_(backend.device_info().unified_memory),
      capacity_(options.capacity),
      report_(std::move(options.report)),
      directory_(std::move(directory)) {}

absl::StatusOr<std::unique_ptr<DiskTier>> DiskTier::Open(Options options, kernels::Backend& backend,
                                                         const RecoveredCallback& recovered) {
  absl::StatusOr<std::unique_ptr<SnapshotDirectory>> directory =
      SnapshotDirectory::Open(options.directory, *options.file_system);
  if (!directory.ok()) return directory.status();
  std::unique_ptr<DiskTier> tier(new DiskTier(std::move(options), backend, *std::move(directory)));
  SnapshotDirectory::ScanResult scan = tier->directory_->Scan();
  for (const DiskIncident& incident : scan.incidents) tier->Report(incident);
  for (SnapshotDirectory::Found& file : scan.files) {
    tier->used_ += file.file_bytes;
    auto copy = std::make_shared<Copy>(*tier, file.id, file.info.checksum, file.file_bytes, file.info.header_bytes);
    recovered(std::move(file.info.record), std::move(copy));
  }
  return tier;
}

absl::StatusOr<std::shared_ptr<TierCopy>> DiskTier::Store(const SnapshotRecord& record,
                                                          absl::Span<const SnapshotPart> source,
                                                          kernels::Stream& stream) {
  absl::StatusOr<SnapshotFileWriter> writer = SnapshotFileWriter::Create(record);
  if (!writer.ok()) return writer.status();
  const std::int64_t file_bytes = writer->file_bytes();
  const std::int64_t header_bytes = writer->header_bytes();
  if (absl::Status status = Reserve(file_bytes); !status.ok()) return status;
  const absl::StatusOr<SnapshotFileId> id = StoreFile(*writer, record.space, source, stream);
  if (!id.ok()) {
    used_ -= file_bytes;
    return id.status();
  }
  return std::make_shared<Copy>(*this, *id, writer->checksum(), file_bytes, header_bytes);
}

absl::Status DiskTier::SyncRemovals() {
  absl::Status status = directory_->SyncRemovals();
  if (!status.ok()) Report({DiskIncident::Kind::kRemoveFailed, directory_->path(), 1, status});
  if (removal_failed_.exchange(false)) status.Update(absl::UnavailableError("a file could not be removed"));
  return status;
}

absl::Status DiskTier::Reserve(std::int64_t bytes) {
  std::int64_t used = used_;
  do {
    if (bytes > capacity_ - used) {
      return absl::ResourceExhaustedError(absl::StrCat("the disk tier has ", used, " of ", capacity_,
                                                       " bytes in use; the snapshot's file has ", bytes));
    }
  } while (!used_.compare_exchange_weak(used, used + bytes));
  return absl::OkStatus();
}

absl::StatusOr<SnapshotFileId> DiskTier::StoreFile(SnapshotFileWriter& writer, const SnapshotSpace& space,
                                                   absl::Span<const SnapshotPart> source, kernels::Stream& stream) {
  if (absl::Status status = CheckParts(space, source); !status.ok()) return status;
  const auto failed = [&](const absl::Status& status, const std::string& path) {
    const bool full = absl::IsResourceExhausted(status);
    Report({full ? DiskIncident::Kind::kFull : DiskIncident::Kind::kWriteFailed, path, 1, status});
    return status;
  };
  if (const absl::Status status = directory_->CheckFree(writer.file_bytes()); !status.ok())
    return failed(status, directory_->path());
  absl::StatusOr<SnapshotDirectory::NewFile> file = directory_->Create();
  if (!file.ok()) return failed(file.status(), directory_->path());
  absl::Status status = Write(*file, writer, source, stream);
  if (status.ok()) status = file->Publish();
  if (!status.ok()) return failed(status, directory_->Path(file->id()));
  return file->id();
}

absl::Status DiskTier::Write(const SnapshotDirectory::NewFile& file, SnapshotFileWriter& writer,
                             absl::Span<const SnapshotPart> source, kernels::Stream& stream) {
  FileSystem& file_system = directory_->file_system();
  const auto write = [&](const std::vector<kernels::ByteRange>& ranges, std::int64_t offset) {
    const std::int64_t error = Transfer(ranges, offset, [&](absl::Span<const iovec> pieces, off_t at) {
      return file_system.Write(file.fd(), pieces, at);
    });
    return error < 0 ? SnapshotDirectory::Failure(error, "writing", directory_->Path(file.id())) : absl::OkStatus();
  };
  const absl::StatusOr<Bounce> bounce = TakeBounce();
  if (!bounce.ok()) return bounce.status();
  const std::int64_t data_bytes = writer.file_bytes() - writer.header_bytes();
  const std::int64_t most = direct_ ? kPieceBytes : kBounceBytes;
  std::vector<kernels::ByteRange> ranges;
  for (std::int64_t offset = 0; offset < data_bytes; offset += most) {
    const std::int64_t size = std::min(most, data_bytes - offset);
    ranges.clear();
    AppendDataRanges(source, offset, size, ranges);
    if (!direct_) {
      std::vector<kernels::ByteCopy> copies;
      std::byte* to = bounce->bytes();
      for (const kernels::ByteRange& range : ranges) {
        copies.push_back({to, range.data, range.size});
        to += range.size;
      }
      if (absl::Status status = kernels::CopyAndWait(backend_, copies, stream); !status.ok()) return status;
      ranges = {{bounce->bytes(), static_cast<std::size_t>(size)}};
    }
    if (absl::Status status = write(ranges, writer.header_bytes() + offset); !status.ok()) return status;
    for (const kernels::ByteRange& range : ranges) writer.AddData(AsBytes(range));
  }
  std::string header = writer.header();
  return write({{header.data(), header.size()}}, 0);
}

absl::StatusOr<DiskTier::Bounce> DiskTier::TakeBounce() {
  if (direct_) return Bounce(*this, kernels::Buffer());
  {
    const std::lock_guard lock(mutex_);
    if (!idle_bounces_.empty()) {
      Bounce bounce(*this, std::move(idle_bounces_.back()));
      idle_bounces_.pop_back();
      return bounce;
    }
  }
  absl::StatusOr<kernels::Buffer> buffer = backend_.Allocate(kBounceBytes, kernels::MemoryKind::kHost);
  // Not RESOURCE_EXHAUSTED: that would say that the disk is full.
  if (!buffer.ok())
    return absl::UnavailableError(absl::StrCat("no memory to copy through: ", buffer.status().message()));
  return Bounce(*this, *std::move(buffer));
}

}  // namespace gdpcache::cache
