#ifndef GDPCACHE_SERVER_RPC_SNAPSHOT_UPLOADS_H_
#define GDPCACHE_SERVER_RPC_SNAPSHOT_UPLOADS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gdpcache/v1/snapshot.pb.h"
#include "server/cache/clock.h"
#include "server/cache/snapshots/snapshot.h"
#include "server/cache/tenant_share.h"
#include "server/engine/snapshot_transfer.h"
#include "server/engine/staging_pool.h"

namespace gdpcache::rpc {

/// Snapshots on their way in, whose transfers may break and go on. Takes their files apart into staging memory and
/// checks them; knows nothing of gRPC. Thread-safe.
class SnapshotUploads {
  struct Upload;

 public:
  /// Unfinished uploads at a time, and what their snapshots may take together of the staging memory.
  static constexpr std::size_t kMaxUploads = 16;
  static constexpr std::int64_t kStagingShare = 2;

  /// Of the staging memory, for a tenant.
  using Stage = std::function<absl::StatusOr<std::shared_ptr<engine::StagingBuffer>>(std::int64_t bytes,
                                                                                     const std::string& tenant)>;

  /// One call's hold on an upload, until the call ends or another one goes on with the upload. Movable.
  class Transfer {
   public:
    Transfer() = default;
    Transfer(Transfer&& other) noexcept = default;
    Transfer& operator=(Transfer&& other) noexcept;
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;
    /// An upload with a name waits for the next call then, unless its bytes turned out to be wrong.
    ~Transfer() { End(); }

    /// The next bytes of the file. DATA_LOSS, INVALID_ARGUMENT and FAILED_PRECONDITION (another space) end the upload;
    /// ABORTED: another call goes on with it; RESOURCE_EXHAUSTED: no room for the snapshot now.
    absl::Status Take(absl::Span<const std::byte> bytes);

    /// The whole file has come and its checksum is right; the upload is over. INVALID_ARGUMENT when it has not come
    /// whole, DATA_LOSS when it is damaged.
    struct Complete {
      std::string key;
      engine::SnapshotContents contents;
    };
    absl::StatusOr<Complete> Finish();

   private:
    friend class SnapshotUploads;
    Transfer(SnapshotUploads& uploads, std::shared_ptr<Upload> upload, std::uint64_t turn)
        : uploads_(&uploads), upload_(std::move(upload)), turn_(turn) {}
    void End();

    SnapshotUploads* uploads_ = nullptr;
    std::shared_ptr<Upload> upload_;
    std::uint64_t turn_ = 0;
  };

  /// Uploads are forgotten when nothing has come for `idle_timeout`; `expect` is told when that may be. `max_bytes`:
  /// see kStagingShare. One tenant may have its `share` of either, or one upload of any size. Transfers must end before
  /// this.
  SnapshotUploads(const cache::Clock& clock, absl::Duration idle_timeout, std::int64_t max_bytes,
                  cache::TenantShare share, Stage stage, absl::AnyInvocable<void(absl::Time)> expect);
  SnapshotUploads(const SnapshotUploads&) = delete;
  SnapshotUploads& operator=(const SnapshotUploads&) = delete;
  ~SnapshotUploads();

  /// Begins an upload into `space`, or goes on with it where header.offset says. INVALID_ARGUMENT names the field;
  /// NOT_FOUND for an offset into an upload that does not exist; RESOURCE_EXHAUSTED beyond the limits.
  absl::StatusOr<Transfer> Begin(const cache::SnapshotSpace& space, const v1::WriteSnapshotHeader& header);

  /// What has come of an upload. NOT_FOUND.
  absl::StatusOr<v1::QueryWriteStatusResponse> Query(const cache::SnapshotSpace& space, const std::string& name);

  /// Forgets uploads that nothing comes of. Returns when the next may be due.
  absl::Time ExpireIdle();

  /// How many are unfinished, and the memory of their snapshots.
  std::size_t count() const;
  std::int64_t bytes() const;

 private:
  using Name = std::pair<cache::SnapshotSpace, std::string>;

  void Remove(const std::shared_ptr<Upload>& upload);
  struct Use {
    std::size_t uploads = 0;
    std::int64_t bytes = 0;
  };
  Use UseLocked(const std::string& tenant) const;
  absl::Status TakeRoom(Upload& upload, std::int64_t bytes);

  const cache::Clock& clock_;
  const absl::Duration idle_timeout_;
  const std::int64_t max_bytes_;
  const cache::TenantShare share_;
  const Stage stage_;

  mutable std::mutex mutex_;  // guards what follows; taken behind an upload's
  absl::AnyInvocable<void(absl::Time)> expect_;
  absl::flat_hash_map<Name, std::shared_ptr<Upload>> uploads_;
  std::uint64_t unnamed_ = 0;  // so many have been made
  std::int64_t bytes_ = 0;
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_SNAPSHOT_UPLOADS_H_
