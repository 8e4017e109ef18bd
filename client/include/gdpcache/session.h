#ifndef GDPCACHE_SESSION_H_
#define GDPCACHE_SESSION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gdpcache/cache.h"
#include "gdpcache/options.h"
#include "gdpcache/prefill.h"
#include "gdpcache/shared_memory.h"
#include "gdpcache/snapshot.h"
#include "gdpcache/tensor.h"

namespace gdpcache {

/// Of one session.
struct SessionOptions {
  absl::Duration ttl = absl::Seconds(60);  // the server frees the slots when it has heard nothing for so long
  std::string client_name = {};            // for people who look at the server; at most 128 bytes
  bool keep_alive = true;                  // renew from a background thread for as long as the object lives
};

/// One fork: `source` onto every destination, all layers, positions and auxiliary bytes.
struct SlotCopy {
  std::int64_t source = 0;
  std::vector<std::int64_t> destinations;
};

/// The contents of slots, all of one moment.
struct SlotContents {
  std::vector<std::int64_t> slots;
  std::vector<std::int64_t> layers;
  std::vector<std::int64_t> positions;  // [slots, layers] tokens absorbed
  OwnedTensor state;                    // [slots, layers, H, K, V]; empty when placed in caller memory
  OwnedTensor auxiliary;                // [slots, layers, auxiliary_bytes]; as state; empty also where there are none
};

/// Where ReadSlots puts bytes; what is left out is allocated by the library.
struct SlotOutputs {
  std::optional<Tensor> state = {};
  std::optional<Tensor> auxiliary = {};
};

/// What WriteSlots stores, in caller memory.
struct SlotUpdate {
  absl::Span<const std::int64_t> slots;
  absl::Span<const std::int64_t> layers = {};     // empty: all
  absl::Span<const std::int64_t> positions = {};  // [slots, layers]; empty: all zero
  ConstTensor state;                              // [slots, layers, H, K, V] in the cache's state dtype
  std::optional<ConstTensor> auxiliary = {};      // [slots, layers, auxiliary_bytes]; absent: left as it is
};

/// A lease on slots of one cache, opened by Client::OpenSession. Ending it (Close, or destruction) frees its slots.
///
/// Safe for use by several threads at once, except for moving, Close and destruction. Errors are the server's:
/// gdpcache/v1/state_cache.proto lists them, error_details.h reads their details; INTERNAL also when the server's
/// answer breaks the protocol, which never writes outside the outputs.
///
/// A call returns only when nothing reads or writes the caller's memory any more. After a deadline this can be later
/// than the deadline by the time the operating system needs to give up a write to a peer that has stopped reading: 20
/// seconds over TCP; over a Unix socket until the peer reads on or ends.
class Session {
 public:
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  /// Whoever knows the id may use the session's slots.
  const std::string& id() const;
  const std::string& cache() const;
  const CacheGeometry& geometry() const;
  absl::Duration ttl() const;  // as granted by the server

  /// OK, or why the background renewal has given up: NOT_FOUND when the session has expired or was ended.
  absl::Status status() const;

  /// Renews the session by hand and returns the time to its expiry.
  absl::StatusOr<absl::Duration> KeepAlive(const CallOptions& options = {});

  /// Slots at position 0 with zero in every layer: `count` of them, or an error and none.
  absl::StatusOr<std::vector<std::int64_t>> AcquireSlots(std::int64_t count, const CallOptions& options = {});
  absl::Status ReleaseSlots(absl::Span<const std::int64_t> slots, const CallOptions& options = {});

  /// Back to zero and position 0 in every layer, all in one step.
  absl::Status ResetSlots(absl::Span<const std::int64_t> slots, const CallOptions& options = {});

  /// Copies in the order given; other calls see all of them or none.
  absl::Status CopySlots(absl::Span<const SlotCopy> copies, const CallOptions& options = {});

  /// Empty `layers` means all.
  absl::StatusOr<SlotContents> ReadSlots(absl::Span<const std::int64_t> slots,
                                         absl::Span<const std::int64_t> layers = {}, const SlotOutputs& outputs = {},
                                         const CallOptions& options = {});
  absl::Status WriteSlots(const SlotUpdate& update, const CallOptions& options = {});

  /// Runs the recurrence. Nothing changes in the cache unless the call succeeds, with one exception: when the answer is
  /// lost (UNAVAILABLE, DEADLINE_EXCEEDED) it may have been applied; see PrefillCall::expected_positions.
  absl::StatusOr<PrefillResult> Prefill(const PrefillCall& call, const CallOptions& options = {});

  /// `size` bytes of memory that Prefill's tensors may lie in, see SharedMemory. The server must be on this host.
  /// UNIMPLEMENTED where it does not share memory, RESOURCE_EXHAUSTED beyond its limits or the system's memory.
  absl::StatusOr<SharedMemory> ShareMemory(std::int64_t size, const CallOptions& options = {});

  /// Keeps whole slots as they stand, all at one moment; one outcome for each. FAILED_PRECONDITION when the layers of a
  /// slot are at different positions.
  absl::StatusOr<std::vector<SnapshotOutcome>> SaveSnapshots(absl::Span<const SlotSave> saves,
                                                             const CallOptions& options = {});

  /// All layers, positions and auxiliary bytes of all slots in one step; the position of each restore. `pin`, of a
  /// PrefixMatch, is released when it has succeeded. NOT_FOUND when a snapshot is gone, DATA_LOSS when it is damaged.
  absl::StatusOr<std::vector<std::int64_t>> RestoreSnapshots(absl::Span<const SlotRestore> restores,
                                                             const std::string& pin = "",
                                                             const CallOptions& options = {});

  /// Ends the session; other calls on it fail from here on. The destructor does the same and drops the error.
  absl::Status Close(const CallOptions& options = {});

 private:
  friend class Client;
  friend class SharedMemory;
  class Impl;
  explicit Session(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace gdpcache

#endif  // GDPCACHE_SESSION_H_
