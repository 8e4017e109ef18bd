#ifndef GDPCACHE_SNAPSHOT_H_
#define GDPCACHE_SNAPSHOT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

/// The prefix cache: states of all layers of a slot at one position, kept under a digest of the tokens that led there.
/// gdpcache/v1/snapshot.proto explains everything here.
namespace gdpcache {

class Client;

/// Keys are bytes, not text: 16 to 64 of them.
inline constexpr std::size_t kMinSnapshotKeyBytes = 16;
inline constexpr std::size_t kMaxSnapshotKeyBytes = 64;

/// Where the server keeps a copy.
enum class SnapshotTier { kUnknown, kDevice, kHost, kDisk };

/// A snapshot that exists.
struct Snapshot {
  std::string key;
  std::int64_t position = 0;        // tokens absorbed
  std::int64_t bytes = 0;           // of its states and auxiliary bytes
  std::vector<SnapshotTier> tiers;  // fastest first
  bool pinned = false;
  absl::Duration age;   // since it was stored; since the server started for those found on disk
  absl::Duration idle;  // since it was last used
};

/// A boundary of a prefill's sequence to keep. Every layer's call has to name it.
struct SnapshotDirective {
  std::int64_t sequence = 0;
  // The state after min(boundary * chunk_size, length in tokens) tokens of the sequence: 0 is where it starts,
  // ceil(length / chunk_size) where it ends. CallBoundaries in boundary_policy.h computes it from a position.
  std::int64_t boundary = 0;
  std::string key;
  std::string auxiliary = {};  // this layer's auxiliary bytes there, auxiliary_bytes of them
};

/// What became of a snapshot that was to be kept.
enum class SnapshotResult {
  kUnknown,
  kPending,  // other layers have yet to bring their parts
  kStored,   // complete: it can be found
  kPresent,  // the key was there already
  kNoSpace,  // not kept; the call itself is not affected
};

struct SnapshotOutcome {
  SnapshotResult result = SnapshotResult::kUnknown;
  std::int64_t position = 0;  // of the snapshot; with kPresent of the one that was there
  std::string message;        // with kNoSpace: which budget or quota, its size and use
};

/// A whole slot to be kept as it stands.
struct SlotSave {
  std::int64_t slot = 0;
  std::string key;
};

/// A snapshot into one or several slots.
struct SlotRestore {
  std::string key;
  std::vector<std::int64_t> slots;
};

/// The longest of several prefixes that the server has.
struct PrefixMatch {
  std::int64_t index = 0;  // of its key
  Snapshot snapshot;
  std::string pin;  // keeps it for the time asked for, or until it is restored with the pin; empty: none
};

/// Snapshots that stay.
struct SnapshotPin {
  std::string pin;
  absl::Duration ttl;
};

struct SnapshotPage {
  std::vector<Snapshot> snapshots;  // in the keys' order
  std::string next_page_token;      // empty: this was the last page
};

/// What Client::ExportSnapshot has written.
struct ExportedSnapshot {
  std::int64_t position = 0;  // tokens
  std::int64_t file_bytes = 0;
};

struct SnapshotEvent {
  enum class Type {
    kUnknown,
    kStored,   // it can be found
    kEvicted,  // for want of space, or because it was damaged
    kDeleted,
    kSynced,  // all that existed has been told
  };
  Type type = Type::kUnknown;
  std::string key;
  std::int64_t position = 0;
};

/// What happens to the snapshots of a cache's space, from Client::WatchSnapshots on. Next is for one thread at a time;
/// Cancel for any. Its end ends the watching.
class SnapshotWatch {
 public:
  SnapshotWatch(SnapshotWatch&&) noexcept;
  SnapshotWatch& operator=(SnapshotWatch&&) noexcept;
  ~SnapshotWatch();

  /// Waits for the next events, in order, at least one. An error is the end: RESOURCE_EXHAUSTED for a watcher that was
  /// too slow, UNAVAILABLE when the server stops, CANCELLED after Cancel, DEADLINE_EXCEEDED after the call's timeout.
  absl::StatusOr<std::vector<SnapshotEvent>> Next();

  /// Ends a Next that waits, and those to come.
  void Cancel();

 private:
  friend class Client;
  class Impl;
  explicit SnapshotWatch(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace gdpcache

#endif  // GDPCACHE_SNAPSHOT_H_
