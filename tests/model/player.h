#ifndef GDPCACHE_TESTS_MODEL_PLAYER_H_
#define GDPCACHE_TESTS_MODEL_PLAYER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gdpcache/client.h"
#include "kernels/backend.h"
#include "tests/model/operation.h"
#include "tests/model/prefill_case.h"
#include "tests/model/world.h"
#include "tests/support/server_process.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::test {

/// Plays operations on a gdpcached of its own, through the client library, and on the model; and compares: every status
/// and every result, then all slots, positions, sessions and lists of snapshots, bit for bit, after each step.
class Player {
 public:
  Player();
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;
  ~Player();

  /// Nothing, or where the server and the model differ first. Once.
  std::optional<std::string> Play(absl::Span<const Operation> operations);

  /// How often which kind of call came to which status.
  using Counts = std::map<std::string, std::int64_t>;
  const Counts& counts() const { return counts_; }

 private:
  using Codes = std::set<absl::StatusCode>;

  // What is to be found out about each operation is told by Fail; the first time counts.
  void Fail(std::string difference);
  bool failed() const { return failure_.has_value(); }
  /// Whether the call succeeded; it must when `errors` is empty, and must end with one of them otherwise.
  bool Expect(const absl::Status& status, const Codes& errors, const std::string& what);

  void SetUp(Choices choices);
  void AddTenants();
  void PlayOne(const Operation& operation);
  void CheckEverything();
  void CheckSlots();
  void CheckSnapshotLists();
  /// Restores every snapshot there is into a cache of its own and looks at it.
  void CheckSnapshotContents();
  /// What is found of snapshots whose versions the model does not know for sure after a kill.
  void CheckAfterKill(const std::set<const SlotState*>& on_disk);
  void CheckSpaceAfterKill(const SpaceName& name, const CacheSpec& spec, const std::set<const SlotState*>& on_disk);

  /// Of the space, whose view must come to the same as `page`, the list of its snapshots, soon.
  void CheckWatches(const SpaceName& space, const std::string& cache, const SnapshotPage& page);

  // Caches and sessions.
  void StartServer();
  Client& client(int tenant = 0) { return clients_[static_cast<std::size_t>(tenant)]; }
  /// One of the tenants there are.
  int Tenant(Choices& choices) const { return static_cast<int>(choices.Below(tenants_)); }
  /// Calls `visit(space, cache)` for every space that a cache of now belongs to, with one such cache.
  void ForEachSpace(const std::function<void(const SpaceName&, const std::string&)>& visit);
  CacheSpec Spec(std::int64_t number) const;
  std::string NameOf(std::int64_t number) const;
  ModelSession* SessionAt(Choices& choices);
  void EndModelSession(int place);
  void CreateCache(Choices choices);
  void DeleteCache(Choices choices);
  void OpenSession(Choices choices);
  void CloseSession(Choices choices);
  void ExpireSession(Choices choices);
  void Restart(Choices choices);
  void Kill(Choices choices);
  void ForgetServer();

  // Slots.
  std::vector<std::int64_t> Held(const ModelSession& session) const;
  /// Mostly a slot that the session holds: the `nth` one from the choice on.
  std::int64_t Slot(const ModelSession& session, Choices& choices, std::int64_t nth, bool padding = false);
  std::vector<std::int64_t> OneOrTwo(const ModelSession& session, Choices& choices);
  /// What the server may say about these slots; empty when it must take them.
  Codes SlotErrors(const ModelSession& session, absl::Span<const std::int64_t> slots, bool padding = false) const;
  std::vector<std::int64_t> Layers(Choices& choices) const;
  void Acquire(Choices choices);
  void AcquireFor(ModelSession& session, int place, std::int64_t count);
  void Release(Choices choices);
  void Reset(Choices choices);
  void Copy(Choices choices);
  void Read(Choices choices);
  void Write(Choices choices);

  // The recurrence.
  std::unique_ptr<PrefillCase> DrawPrefill(ModelSession& session, Choices& choices, std::int64_t layer);
  void Prefill(Choices choices);
  void Storm(Choices choices);
  void Hasty(Choices choices);
  void RunHasty(ModelSession& session, const Operation& drawn, absl::Duration timeout);
  /// Directives in the order in which the server takes them; false when the call must fail.
  bool BeginDirectives(ModelSession& session, PrefillCase& prefill);
  void Settle(ModelSession& session, PrefillCase& prefill, const absl::StatusOr<PrefillResult>& result);
  void CheckGuards(const PrefillCase& prefill);
  /// Puts the tensors and results that `choice` draws into memory shared with the server; 0: none of them.
  void Share(ModelSession& session, PrefillCase& prefill, std::int64_t choice);
  void CheckOutcomes(ModelSession& session, PrefillCase& prefill, absl::Span<const SnapshotOutcome> outcomes);
  void SplitPrefill(ModelSession& session, PrefillCase& prefill, std::int64_t tokens);

  // Snapshots.
  static std::string KeyOf(std::int64_t number);
  /// Mostly a key that there is.
  std::string LikelyKey(const SpaceName& space, std::int64_t choice);
  void Forget(ModelSpace& space, const std::string& key);
  void Store(ModelSpace& space, const std::string& key, SlotState state);
  /// Compares with the model what a save came to, and takes it over.
  void TakeOutcome(ModelSpace& space, const std::string& key, const SnapshotOutcome& outcome, const SlotState& state);
  void Save(Choices choices);
  void Lookup(Choices choices);
  void Restore(Choices choices);
  void Pin(Choices choices);
  void Unpin(Choices choices);
  void Delete(Choices choices);
  void Export(Choices choices);
  void Import(Choices choices);
  void Watch(Choices choices);

  TemporaryDirectory directory_;
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<kernels::Stream> stream_;
  std::vector<std::string> flags_;
  CacheGeometry geometry_;
  bool has_disk_ = false;
  bool write_through_ = true;
  bool pressed_ = false;  // snapshots may be evicted
  int tenants_ = 1;
  std::unique_ptr<ServerProcess> server_;
  std::vector<Client> clients_;  // by tenant
  World world_;
  std::int64_t files_ = 0;
  std::optional<std::string> failure_;
  Counts counts_;
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_MODEL_PLAYER_H_
