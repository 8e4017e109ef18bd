#include "server/engine/snapshot_transfer.h"

#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/copy_and_wait.h"
#include "server/cache/errors.h"
#include "server/cache/snapshots/snapshot_file.h"
#include "server/engine/slot_memory.h"

namespace gdpcache::engine {
namespace {

using cache::InvalidField;

/// A call that holds no slots. Cancel is heeded between its steps, of which each lasts no longer than a copy.
class TransferCall : public Call, public std::enable_shared_from_this<TransferCall> {
 public:
  void Cancel(absl::Status reason) final {
    const std::lock_guard lock(mutex_);
    if (!cancelled_.has_value()) cancelled_ = std::move(reason);
  }

 protected:
  TransferCall(const Environment& environment, cache::SnapshotSpace space, std::string key)
      : environment_(environment), record_{.space = std::move(space), .key = std::move(key), .position = 0} {}

  absl::Status CheckGoesOn() const {
    const std::lock_guard lock(mutex_);
    return cancelled_.value_or(absl::OkStatus());
  }

  absl::Status Copy(absl::Span<const kernels::ByteRange> to, absl::Span<const kernels::ByteRange> from,
                    kernels::Stream& stream) const {
    std::vector<kernels::ByteCopy> copies;
    AppendCopies(to, from, copies);
    return CopyAndWait(environment_.backend, copies, stream);
  }

  const Environment& environment_;
  cache::SnapshotRecord record_;

 private:
  mutable std::mutex mutex_;
  std::optional<absl::Status> cancelled_;
};

class ReadSnapshotCall final : public TransferCall {
 public:
  ReadSnapshotCall(const Environment& environment, cache::SnapshotSpace space, std::string key,
                   std::shared_ptr<cache::MemoryBudget> share, ContentsDone done)
      : TransferCall(environment, std::move(space), std::move(key)), share_(std::move(share)), done_(std::move(done)) {}

  void Start() override {
    environment_.snapshots->Fetch(record_.space, record_.key,
                                  [self = Self()](absl::StatusOr<cache::SnapshotStore::Fetched> fetched) {
                                    if (!fetched.ok()) return self->done_(fetched.status());
                                    self->Submit(*std::move(fetched));
                                  });
  }

 private:
  std::shared_ptr<ReadSnapshotCall> Self() { return std::static_pointer_cast<ReadSnapshotCall>(shared_from_this()); }

  void Submit(cache::SnapshotStore::Fetched fetched) {
    environment_.executor.Submit(Executor::kNobody,
                                 [self = Self(), fetched = std::move(fetched)](kernels::Stream& stream) mutable {
                                   absl::StatusOr<SnapshotContents> contents = self->Read(fetched, stream);
                                   fetched.copy.reset();
                                   self->done_(std::move(contents));
                                 });
  }

  absl::StatusOr<SnapshotContents> Read(const cache::SnapshotStore::Fetched& fetched, kernels::Stream& stream) const {
    if (absl::Status status = CheckGoesOn(); !status.ok()) return status;
    absl::StatusOr<std::shared_ptr<StagingBuffer>> buffer =
        StageBytes(environment_.staging, record_.space.snapshot_bytes(), share_);
    if (!buffer.ok()) return buffer.status();
    SnapshotContents contents{.position = fetched.position, .parts = {}, .owner = *buffer};
    std::byte* place = (*buffer)->data();
    for (const cache::SnapshotPart& part : fetched.copy->parts()) {
      contents.parts.push_back(
          {.state = {place, part.state.size}, .auxiliary = {place + part.state.size, part.auxiliary.size}});
      place += part.state.size + part.auxiliary.size;
    }
    absl::Status status = Copy(SnapshotRanges(contents.parts), SnapshotRanges(fetched.copy->parts()), stream);
    if (!status.ok()) return status;
    return contents;
  }

  const std::shared_ptr<cache::MemoryBudget> share_;
  ContentsDone done_;
};

class WriteSnapshotCall final : public TransferCall {
 public:
  WriteSnapshotCall(const Environment& environment, cache::SnapshotSpace space, std::string key,
                    SnapshotContents contents, OutcomeDone done)
      : TransferCall(environment, std::move(space), std::move(key)),
        contents_(std::move(contents)),
        done_(std::move(done)) {
    record_.position = contents_.position;
  }

  void Start() override {
    environment_.executor.Submit(
        Executor::kNobody,
        [self = std::static_pointer_cast<WriteSnapshotCall>(shared_from_this())](kernels::Stream& stream) {
          absl::StatusOr<cache::SnapshotOutcome> outcome = self->Write(stream);
          self->contents_ = {};
          self->done_(std::move(outcome));
        });
  }

 private:
  absl::StatusOr<cache::SnapshotOutcome> Write(kernels::Stream& stream) const {
    if (absl::Status status = CheckGoesOn(); !status.ok()) return status;
    cache::SnapshotDraft draft = environment_.snapshots->BeginWhole(record_, cache::TierKind::kHost);
    if (draft.outcome().result != cache::SnapshotResult::kPending) return draft.outcome();
    absl::Status status = Copy(SnapshotRanges(draft.parts()), SnapshotRanges(contents_.parts), stream);
    if (!status.ok()) return status;
    return environment_.snapshots->Commit(std::move(draft));
  }

  SnapshotContents contents_;
  OutcomeDone done_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<StagingBuffer>> StageBytes(StagingPool& staging, std::int64_t bytes,
                                                          std::shared_ptr<cache::MemoryBudget> share) {
  const absl::StatusOr<std::shared_ptr<StagingAccount>> account =
      staging.Open(StagingPool::BlockSize(bytes), std::move(share));
  if (!account.ok()) return account.status();
  absl::StatusOr<StagingBuffer> buffer = (*account)->Acquire(bytes);
  if (!buffer.ok()) return buffer.status();
  return std::make_shared<StagingBuffer>(*std::move(buffer));
}

absl::StatusOr<std::shared_ptr<Call>> MakeReadSnapshot(const Environment& environment, cache::SnapshotSpace space,
                                                       std::string key, std::shared_ptr<cache::MemoryBudget> share,
                                                       ContentsDone done) {
  if (environment.snapshots == nullptr) return absl::UnimplementedError("the server keeps no snapshots");
  if (absl::Status status = cache::CheckSnapshotKey("key", key); !status.ok()) return status;
  return std::make_shared<ReadSnapshotCall>(environment, std::move(space), std::move(key), std::move(share),
                                            std::move(done));
}

absl::StatusOr<std::shared_ptr<Call>> MakeWriteSnapshot(const Environment& environment, cache::SnapshotSpace space,
                                                        std::string key, SnapshotContents contents, OutcomeDone done) {
  if (environment.snapshots == nullptr) return absl::UnimplementedError("the server keeps no snapshots");
  if (absl::Status status = cache::CheckSnapshotKey("key", key); !status.ok()) return status;
  if (contents.position < 0 || contents.position > kMaxPosition) {
    return InvalidField("position", absl::StrCat("is ", contents.position, "; it must be from 0 to ", kMaxPosition));
  }
  if (absl::Status status = cache::CheckParts(space, contents.parts); !status.ok()) return status;
  return std::make_shared<WriteSnapshotCall>(environment, std::move(space), std::move(key), std::move(contents),
                                             std::move(done));
}

}  // namespace gdpcache::engine
