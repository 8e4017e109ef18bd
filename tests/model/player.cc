#include "tests/model/player.h"

#include <signal.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/certificates.h"
#include "tests/support/eventually.h"

namespace gdpcache::test {
namespace {

constexpr std::int64_t kPlaces = 4;  // of sessions
constexpr char kVerifier[] = "verifier";

std::string TokenOf(int tenant) { return absl::StrCat("token-of-tenant-", tenant, "-0123456789abcdef"); }

/// Whether the one slot that was read, in all its layers, is in this state.
bool Holds(const SlotContents& slot, const SlotState& state) {
  std::string states;
  std::string auxiliary;
  for (const LayerState& layer : state) {
    states += layer.state;
    auxiliary += layer.auxiliary;
  }
  return BytesOf(slot.state) == states && BytesOf(slot.auxiliary) == auxiliary &&
         slot.positions.front() == state.front().position;
}

}  // namespace

Player::Player()
    : backend_(kernels::CreateBackend({.choice = kernels::BackendChoice::kCpu, .cpu_threads = 1}).value()) {
  stream_ = backend_->CreateStream().value();
}

Player::~Player() { ForgetServer(); }

std::optional<std::string> Player::Play(absl::Span<const Operation> operations) {
  std::size_t first = 0;
  if (!operations.empty() && operations[0].kind == OperationKind::kServer) first = 1;
  SetUp(Choices(first == 1 ? operations[0] : Operation()));
  for (std::size_t i = first; i < operations.size() && !failed(); ++i) {
    PlayOne(operations[i]);
    if (!failed()) CheckEverything();
    if (failed()) failure_ = absl::StrCat("operation ", i, " (", ToText({&operations[i], 1}), "): ", *failure_);
  }
  if (!failed()) {
    CheckSnapshotContents();
    if (failed()) failure_ = absl::StrCat("at the end: ", *failure_);
  }
  if (failed() && server_ != nullptr) absl::StrAppend(&*failure_, "\nthe server's log:\n", server_->process().Errors());
  return failure_;
}

void Player::Fail(std::string difference) {
  if (!failed()) failure_ = std::move(difference);
}

bool Player::Expect(const absl::Status& status, const Codes& errors, const std::string& what) {
  ++counts_[absl::StrCat(what, ": ", absl::StatusCodeToString(status.code()))];
  if (errors.empty()) {
    if (!status.ok()) Fail(absl::StrCat(what, " failed: ", status.ToString()));
    return status.ok();
  }
  if (!errors.contains(status.code())) {
    const std::string expected = absl::StrJoin(errors, " or ", [](std::string* out, absl::StatusCode code) {
      absl::StrAppend(out, absl::StatusCodeToString(code));
    });
    Fail(absl::StrCat(what, " came to ", status.ToString(), "; it must come to ", expected));
  }
  return false;
}

void Player::SetUp(Choices choices) {
  geometry_.layers = 1 + choices.Below(3);
  geometry_.slots = 6;
  geometry_.heads = 1 + choices.Below(2);
  geometry_.key_dim = choices.Of<std::int64_t>({8, 5, 16, 32});
  geometry_.value_dim = choices.Of<std::int64_t>({8, 7, 12, 16});
  geometry_.num_householder = 1 + choices.Below(3);
  geometry_.state_dtype = choices.Of<DataType>(
      {DataType::kFloat32, DataType::kFloat32, DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16});
  geometry_.auxiliary_bytes = choices.Of<std::int64_t>({0, 5});
  const std::int64_t disk = choices.Below(4);  // none, written through, written back, small
  pressed_ = choices.Below(3) == 2;
  has_disk_ = disk > 0;
  write_through_ = disk != 2;
  const bool small_disk = pressed_ && disk == 3;  // the smallest holds six
  if (small_disk) geometry_.auxiliary_bytes = 160'000 / geometry_.layers;
  const std::int64_t element = geometry_.state_dtype == DataType::kFloat32 ? 4 : 2;
  const std::int64_t part =
      geometry_.heads * geometry_.key_dim * geometry_.value_dim * element + geometry_.auxiliary_bytes + 512;
  const std::int64_t snapshot = geometry_.layers * part;
  flags_ = {"--threads=2", "--log-level=warning",
            absl::StrCat("--snapshot-device-memory=", pressed_ ? 3 * snapshot : std::int64_t{64} << 20)};
  if (pressed_) flags_.push_back("--snapshot-pin-budget=1GiB");
  if (pressed_ && choices.Flag()) flags_.push_back(absl::StrCat("--snapshot-host-memory=", 3 * snapshot));
  if (has_disk_) {
    flags_.push_back("--snapshot-directory=" + directory_.path() + "/snapshots");
    flags_.push_back(absl::StrCat("--snapshot-write=", write_through_ ? "through" : "back"));
    if (small_disk) flags_.push_back("--snapshot-disk-size=1MiB");
  }
  if (choices.Below(3) == 2) AddTenants();
  StartServer();
}

void Player::AddTenants() {
  tenants_ = 2;
  std::string identities;
  std::string tokens;
  for (int tenant = 0; tenant < tenants_; ++tenant) {
    absl::StrAppend(&identities, "identities { name: 'caller", tenant, "' tenant: 'tenant", tenant,
                    "' permissions: [READ, DATA, ADMIN] }\n");
    absl::StrAppend(&tokens, TokenOf(tenant), " caller", tenant, "\n");
  }
  const std::string config = directory_.path() + "/config";
  const std::string token_file = directory_.path() + "/tokens";
  std::ofstream(config) << identities;
  WriteSecret(token_file, tokens);
  flags_.push_back("--config=" + config);
  flags_.push_back("--token-file=" + token_file);
}

void Player::StartServer() {
  server_ = std::make_unique<ServerProcess>(flags_);
  for (int tenant = 0; tenant < tenants_; ++tenant) {
    ClientOptions options{.timeout = absl::Seconds(60)};
    if (tenants_ > 1) options.token = TokenOf(tenant);
    absl::StatusOr<Client> client = Client::Connect(server_->unix_address(), options);
    if (!client.ok()) return Fail(absl::StrCat("the server cannot be reached: ", client.status().ToString()));
    clients_.push_back(*std::move(client));
  }
}

void Player::ForEachSpace(const std::function<void(const SpaceName&, const std::string&)>& visit) {
  std::set<std::string> seen;
  for (const auto& [name, cache] : std::map(world_.caches)) {
    if (!seen.insert(cache->spec.fingerprint).second) continue;
    for (int tenant = 0; tenant < tenants_ && !failed(); ++tenant) visit({cache->spec.fingerprint, tenant}, name);
  }
}

void Player::ForgetServer() {
  world_.watches.clear();
  world_.sessions.clear();
  world_.caches.clear();
  world_.pins.clear();
  clients_.clear();
  server_.reset();
}

void Player::PlayOne(const Operation& operation) {
  const Choices choices(operation);
  switch (operation.kind) {
    case OperationKind::kServer:
      return;
    case OperationKind::kCreateCache:
      return CreateCache(choices);
    case OperationKind::kDeleteCache:
      return DeleteCache(choices);
    case OperationKind::kOpenSession:
      return OpenSession(choices);
    case OperationKind::kCloseSession:
      return CloseSession(choices);
    case OperationKind::kExpireSession:
      return ExpireSession(choices);
    case OperationKind::kAcquire:
      return Acquire(choices);
    case OperationKind::kRelease:
      return Release(choices);
    case OperationKind::kReset:
      return Reset(choices);
    case OperationKind::kCopy:
      return Copy(choices);
    case OperationKind::kRead:
      return Read(choices);
    case OperationKind::kWrite:
      return Write(choices);
    case OperationKind::kPrefill:
      return Prefill(choices);
    case OperationKind::kStorm:
      return Storm(choices);
    case OperationKind::kHasty:
      return Hasty(choices);
    case OperationKind::kSave:
      return Save(choices);
    case OperationKind::kLookup:
      return Lookup(choices);
    case OperationKind::kRestore:
      return Restore(choices);
    case OperationKind::kPin:
      return Pin(choices);
    case OperationKind::kUnpin:
      return Unpin(choices);
    case OperationKind::kDelete:
      return Delete(choices);
    case OperationKind::kExport:
      return Export(choices);
    case OperationKind::kImport:
      return Import(choices);
    case OperationKind::kWatch:
      return Watch(choices);
    case OperationKind::kRestart:
      return Restart(choices);
    case OperationKind::kKill:
      return Kill(choices);
  }
}

// What must hold at any time.

void Player::CheckEverything() {
  CheckSlots();
  CheckSnapshotLists();
}

void Player::CheckSlots() {
  for (auto& [place, session] : world_.sessions) {
    if (!session.open) continue;
    const std::vector<std::int64_t> held = Held(session);
    const absl::StatusOr<SlotContents> contents = session.client->ReadSlots(held);
    if (!Expect(contents.status(), {}, "reading the slots that a session holds")) return;
    const std::string state = BytesOf(contents->state);
    const std::string auxiliary = BytesOf(contents->auxiliary);
    std::size_t index = 0;
    for (const std::int64_t slot : held) {
      for (std::int64_t layer = 0; layer < geometry_.layers; ++layer, ++index) {
        const LayerState& expected =
            session.cache->slots[static_cast<std::size_t>(slot)][static_cast<std::size_t>(layer)];
        const std::string where =
            absl::StrCat("slot ", slot, ", layer ", layer, " of ", session.cache->spec.name, ": ");
        if (contents->positions[index] != expected.position) {
          return Fail(absl::StrCat(where, "position ", contents->positions[index], ", not ", expected.position));
        }
        if (state.compare(index * expected.state.size(), expected.state.size(), expected.state) != 0) {
          return Fail(where + "the state differs");
        }
        if (auxiliary.compare(index * expected.auxiliary.size(), expected.auxiliary.size(), expected.auxiliary) != 0) {
          return Fail(where + "the auxiliary bytes differ");
        }
      }
    }
  }
  const absl::StatusOr<std::vector<CacheInfo>> caches = client().ListCaches();
  if (!Expect(caches.status(), {}, "listing caches")) return;
  if (caches->size() != world_.caches.size()) {
    return Fail(absl::StrCat("there are ", caches->size(), " caches, not ", world_.caches.size()));
  }
  for (const CacheInfo& info : *caches) {
    const auto found = world_.caches.find(info.name);
    if (found == world_.caches.end()) return Fail("there is a cache " + info.name);
    const ModelCache& cache = *found->second;
    if (info.free_slots != cache.free_slots() || info.held_slots + info.free_slots != cache.spec.geometry.slots ||
        info.sessions != cache.sessions) {
      return Fail(absl::StrCat(info.name, " has ", info.free_slots, " free slots, ", info.held_slots, " held ones and ",
                               info.sessions, " sessions, not ", cache.free_slots(), " free ones and ", cache.sessions,
                               " sessions"));
    }
  }
}

void Player::CheckSnapshotLists() {
  ForEachSpace([this](const SpaceName& of, const std::string& name) {
    ModelSpace& space = world_.spaces[of];
    const absl::StatusOr<SnapshotPage> page = client(of.second).ListSnapshots(name, 1'000);
    if (!Expect(page.status(), {}, "listing snapshots")) return;
    std::set<std::string> listed;
    for (const Snapshot& snapshot : page->snapshots) {
      listed.insert(snapshot.key);
      const auto found = space.snapshots.find(snapshot.key);
      if (found == space.snapshots.end()) {
        return Fail(absl::StrCat("there is a snapshot ", absl::CHexEscape(snapshot.key), " of ", name));
      }
      if (snapshot.position != found->second->front().position) {
        return Fail(absl::StrCat("snapshot ", snapshot.key, " is at ", snapshot.position, ", not ",
                                 found->second->front().position));
      }
      if (snapshot.pinned != world_.IsPinned(found->second.get())) {
        return Fail(absl::StrCat("snapshot ", snapshot.key, snapshot.pinned ? " is pinned" : " is not pinned"));
      }
    }
    std::vector<std::string> missing;
    for (const auto& [key, state] : space.snapshots) {
      if (!listed.contains(key)) missing.push_back(key);
    }
    for (const std::string& key : missing) {
      if (!pressed_ || world_.IsPinned(space.snapshots.at(key).get())) {
        return Fail(absl::StrCat("snapshot ", key, " of ", name, " is gone"));
      }
      Forget(space, key);
    }
    CheckWatches(of, name, *page);
  });
}

void Player::CheckWatches(const SpaceName& space, const std::string& cache, const SnapshotPage& page) {
  SnapshotPage last = page;
  for (const ModelWatch& watch : world_.watches) {
    if (watch.space != space) continue;
    const auto agree = [&] {
      if (watch.watcher->end().has_value()) return true;
      SnapshotView listed;
      for (const Snapshot& snapshot : last.snapshots) listed[snapshot.key] = snapshot.position;
      if (watch.watcher->view() == listed) return true;
      // More may have been evicted meanwhile.
      if (absl::StatusOr<SnapshotPage> again = client(space.second).ListSnapshots(cache, 1'000); again.ok()) {
        last = *std::move(again);
      }
      return false;
    };
    if (!Eventually(agree)) return Fail("what a watch tells comes to something else than what there is");
    if (const std::optional<absl::Status> end = watch.watcher->end(); end.has_value()) {
      return Fail("a watch has ended: " + end->ToString());
    }
    ++counts_["a watch told what there is"];
  }
}

void Player::CheckSnapshotContents() {
  for (auto& [name, space] : world_.spaces) {
    if (space.snapshots.empty()) continue;
    CacheSpec spec = Spec(0);
    spec.name = kVerifier;
    spec.fingerprint = name.first;
    spec.geometry.slots = 1;
    spec.ephemeral = true;
    if (!Expect(client().CreateCache(spec).status(), {}, "creating the verifier")) return;
    absl::StatusOr<Session> session = client(name.second).OpenSession(kVerifier);
    if (!Expect(session.status(), {}, "opening the verifier")) return;
    if (!Expect(session->AcquireSlots(1).status(), {}, "acquiring the verifier's slot")) return;
    for (const auto& [key, state] : std::map(space.snapshots)) {
      const absl::StatusOr<std::vector<std::int64_t>> restored = session->RestoreSnapshots({{key, {0}}});
      const bool may_be_gone = pressed_ && !world_.IsPinned(state.get());
      if (may_be_gone && (absl::IsNotFound(restored.status()) || absl::IsResourceExhausted(restored.status())))
        continue;
      if (!Expect(restored.status(), {}, "restoring a snapshot to look at it")) return;
      const absl::StatusOr<SlotContents> contents = session->ReadSlots({0});
      if (!Expect(contents.status(), {}, "reading the verifier's slot")) return;
      if (!Holds(*contents, *state)) return Fail(absl::StrCat("snapshot ", key, " holds something else"));
    }
    if (!Expect(session->Close(), {}, "closing the verifier")) return;
  }
}

// Caches and sessions.

std::string Player::NameOf(std::int64_t number) const {
  return std::vector<std::string>{"a", "b", "c", "e"}[static_cast<std::size_t>(number % 4)];
}

CacheSpec Player::Spec(std::int64_t number) const {
  CacheSpec spec;
  spec.name = NameOf(number);
  spec.geometry = geometry_;
  if (spec.name == "b") spec.geometry.slots = 3;
  spec.fingerprint = spec.name == "c" ? "another@1" : "model@1";
  spec.ephemeral = spec.name == "e";
  return spec;
}

ModelSession* Player::SessionAt(Choices& choices) {
  const std::int64_t wanted = choices.Below(kPlaces);
  // The place itself, or the next one that is taken.
  for (std::int64_t n = 0; n < kPlaces; ++n) {
    const auto found = world_.sessions.find(static_cast<int>((wanted + n) % kPlaces));
    if (found != world_.sessions.end()) return &found->second;
  }
  return nullptr;
}

void Player::CreateCache(Choices choices) {
  CacheSpec spec = Spec(choices.Next());
  const std::int64_t twist = choices.Below(8);
  if (twist == 7) ++spec.geometry.heads;
  if (twist == 6) spec.geometry.slots = 0;
  const auto existing = world_.caches.find(spec.name);
  Codes errors;
  if (twist == 6) errors = {absl::StatusCode::kInvalidArgument};
  if (twist == 7 && existing != world_.caches.end()) errors = {absl::StatusCode::kAlreadyExists};
  if (twist == 7 && errors.empty()) return;  // all caches of a run have one geometry
  const absl::StatusOr<CreatedCache> created = client().CreateCache(spec);
  if (!Expect(created.status(), errors, "creating a cache")) return;
  if (created->created != (existing == world_.caches.end())) {
    return Fail(created->created ? "the cache was created anew" : "the cache was there already");
  }
  if (!created->created) return;
  auto cache = std::make_shared<ModelCache>();
  cache->spec = spec;
  cache->slots.resize(static_cast<std::size_t>(spec.geometry.slots));
  cache->holders.assign(static_cast<std::size_t>(spec.geometry.slots), kFree);
  world_.caches.emplace(spec.name, std::move(cache));
}

void Player::DeleteCache(Choices choices) {
  const std::string name = NameOf(choices.Next());
  const bool force = choices.Flag();
  const auto found = world_.caches.find(name);
  Codes errors;
  if (found == world_.caches.end()) errors = {absl::StatusCode::kNotFound};
  if (errors.empty() && found->second->sessions > 0 && !force) errors = {absl::StatusCode::kFailedPrecondition};
  if (!Expect(client().DeleteCache(name, force), errors, "dropping a cache")) return;
  for (auto& [place, session] : world_.sessions) {
    if (session.cache != found->second) continue;
    session.open = false;
    session.pending.clear();
  }
  world_.caches.erase(found);
}

void Player::OpenSession(Choices choices) {
  const int place = static_cast<int>(choices.Below(kPlaces));
  const std::string name = NameOf(choices.Next());
  const int tenant = Tenant(choices);
  if (world_.sessions.contains(place)) return;
  const auto found = world_.caches.find(name);
  const Codes errors = found == world_.caches.end() ? Codes{absl::StatusCode::kNotFound} : Codes{};
  absl::StatusOr<Session> session =
      client(tenant).OpenSession(name, {.ttl = absl::Hours(1), .client_name = "model", .keep_alive = false});
  if (!Expect(session.status(), errors, "opening a session")) return;
  ++found->second->sessions;
  ModelSession& opened = world_.sessions[place];
  opened.client.emplace(*std::move(session));
  opened.cache = found->second;
  opened.tenant = tenant;
}

void Player::EndModelSession(int place) {
  const std::shared_ptr<ModelCache> cache = world_.sessions.at(place).cache;
  world_.sessions.erase(place);
  for (int& holder : cache->holders) holder = holder == place ? kFree : holder;
  const auto found = world_.caches.find(cache->spec.name);
  if (found == world_.caches.end() || found->second != cache) return;
  if (--cache->sessions == 0 && cache->spec.ephemeral) world_.caches.erase(found);
}

void Player::CloseSession(Choices choices) {
  const int place = static_cast<int>(choices.Below(kPlaces));
  const auto found = world_.sessions.find(place);
  if (found == world_.sessions.end()) return;
  const Codes errors = found->second.open ? Codes{} : Codes{absl::StatusCode::kNotFound};
  Expect(found->second.client->Close(), errors, "closing a session");
  EndModelSession(place);
}

void Player::ExpireSession(Choices choices) {
  const std::string name = NameOf(choices.Next());
  const std::int64_t count = 1 + choices.Below(2);
  const auto found = world_.caches.find(name);
  if (found == world_.caches.end() || found->second->free_slots() < count) return;
  if (found->second->spec.ephemeral && found->second->sessions == 0) return;  // would go with it
  absl::StatusOr<Session> session =
      client().OpenSession(name, {.ttl = absl::Milliseconds(100), .client_name = "short", .keep_alive = false});
  if (!Expect(session.status(), {}, "opening a short session")) return;
  const absl::Status acquired = session->AcquireSlots(count).status();
  if (!acquired.ok() && !absl::IsNotFound(acquired)) {  // on a busy machine it may have expired already
    return Fail(absl::StrCat("acquiring slots for a short session failed: ", acquired.ToString()));
  }
  const std::int64_t sessions = found->second->sessions;
  const bool expired = Eventually([&] {
    const absl::StatusOr<std::vector<CacheInfo>> caches = client().ListCaches();
    if (!caches.ok()) return false;
    for (const CacheInfo& info : *caches) {
      if (info.name == name) return info.sessions == sessions && info.free_slots == found->second->free_slots();
    }
    return false;
  });
  if (!expired) return Fail("a session does not expire");
  Expect(session->AcquireSlots(1).status(), {absl::StatusCode::kNotFound}, "using an expired session");
}

void Player::Restart(Choices choices) {
  // After everybody has gone, or with sessions and watches open, which takes longer.
  if (choices.Below(4) != 3) {
    world_.watches.clear();
    world_.sessions.clear();
    clients_.clear();
  }
  server_->process().Signal(SIGTERM);
  const std::optional<int> ended = server_->process().Wait();
  if (ended != 0) return Fail(absl::StrCat("the server ended with ", ended.value_or(-1)));
  for (const ModelWatch& watch : world_.watches) {
    if (!Eventually([&watch] { return watch.watcher->end().has_value(); })) return Fail("a watch outlives the server");
    Expect(*watch.watcher->end(), {absl::StatusCode::kUnavailable}, "a watch at the server's end");
  }
  ForgetServer();
  for (auto& [name, space] : world_.spaces) {
    space.ghosts.clear();
    if (!has_disk_) space.snapshots.clear();
  }
  StartServer();
  if (failed() || !has_disk_) return;
  for (const std::int64_t number : {0, 2}) {  // of each fingerprint one, to see what is left
    CreateCache(Choices({OperationKind::kCreateCache, {static_cast<std::uint32_t>(number)}}));
  }
  if (!failed()) CheckSnapshotLists();
  if (!failed()) CheckSnapshotContents();
}

void Player::Kill(Choices choices) {
  const bool wait = choices.Flag() && has_disk_ && write_through_ && !pressed_;
  // What is on disk, as far as it can be seen.
  std::set<const SlotState*> on_disk;
  const auto look = [&] {
    on_disk.clear();
    bool all = true;
    ForEachSpace([&](const SpaceName& of, const std::string& cache) {
      const absl::StatusOr<SnapshotPage> page = client(of.second).ListSnapshots(cache, 1'000);
      all = all && page.ok();
      if (!page.ok()) return;
      ModelSpace& space = world_.spaces[of];
      for (const Snapshot& snapshot : page->snapshots) {
        const bool there =
            std::find(snapshot.tiers.begin(), snapshot.tiers.end(), SnapshotTier::kDisk) != snapshot.tiers.end();
        all = all && there;
        if (there && space.snapshots.contains(snapshot.key)) on_disk.insert(space.snapshots.at(snapshot.key).get());
      }
    });
    return all;
  };
  if (wait) {
    if (!Eventually(look)) return Fail("not everything is written through");
  } else {
    look();
  }
  server_->process().Signal(SIGKILL);
  server_->process().Wait();
  // In a small store what was on disk may have left it before the kill.
  if (pressed_) {
    std::erase_if(on_disk, [this](const SlotState* state) { return !world_.IsPinned(state); });
  }
  ForgetServer();
  StartServer();
  if (!failed()) CheckAfterKill(on_disk);
}

void Player::CheckAfterKill(const std::set<const SlotState*>& on_disk) {
  for (const std::int64_t number : {0, 2}) {
    CreateCache(Choices({OperationKind::kCreateCache, {static_cast<std::uint32_t>(number)}}));
    const CacheSpec spec = Spec(number);
    for (int tenant = 0; tenant < tenants_ && !failed(); ++tenant) {
      CheckSpaceAfterKill({spec.fingerprint, tenant}, spec, on_disk);
    }
  }
}

void Player::CheckSpaceAfterKill(const SpaceName& name, const CacheSpec& spec,
                                 const std::set<const SlotState*>& on_disk) {
  ModelSpace& space = world_.spaces[name];
  const ModelSpace before = std::exchange(space, {});
  const absl::StatusOr<SnapshotPage> page = client(name.second).ListSnapshots(spec.name, 1'000);
  if (!Expect(page.status(), {}, "listing snapshots after a kill")) return;
  if (!has_disk_ && !page->snapshots.empty()) return Fail("there are snapshots after a kill, without a disk");
  absl::StatusOr<Session> session = client(name.second).OpenSession(spec.name);
  if (!Expect(session.status(), {}, "opening a session after a kill")) return;
  if (!Expect(session->AcquireSlots(1).status(), {}, "acquiring a slot after a kill")) return;
  for (const Snapshot& snapshot : page->snapshots) {
    std::vector<std::shared_ptr<const SlotState>> versions;
    const auto [first, last] = before.ghosts.equal_range(snapshot.key);
    for (auto ghost = first; ghost != last; ++ghost) versions.push_back(ghost->second);
    if (before.snapshots.contains(snapshot.key)) {
      const std::shared_ptr<const SlotState>& present = before.snapshots.at(snapshot.key);
      if (on_disk.contains(present.get())) versions.clear();
      versions.push_back(present);
    }
    const absl::Status restored = session->RestoreSnapshots({{snapshot.key, {0}}}).status();
    if (pressed_ && (absl::IsNotFound(restored) || absl::IsResourceExhausted(restored))) continue;
    if (!Expect(restored, {}, "restoring a snapshot after a kill")) return;
    const absl::StatusOr<SlotContents> contents = session->ReadSlots({0});
    if (!Expect(contents.status(), {}, "reading a slot after a kill")) return;
    for (const std::shared_ptr<const SlotState>& version : versions) {
      if (Holds(*contents, *version)) space.snapshots[snapshot.key] = version;
    }
    if (!space.snapshots.contains(snapshot.key)) {
      return Fail(absl::StrCat("snapshot ", snapshot.key, " holds after a kill what was never kept under it"));
    }
  }
  for (const auto& [key, state] : before.snapshots) {
    if (on_disk.contains(state.get()) && !space.snapshots.contains(key)) {
      return Fail(absl::StrCat("snapshot ", key, " was on disk and is gone after a kill"));
    }
  }
  Expect(session->Close(), {}, "closing the session after a kill");
}

}  // namespace gdpcache::test
