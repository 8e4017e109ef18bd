// What clients do with snapshots.

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/model/player.h"
#include "tests/support/file_content.h"

namespace gdpcache::test {

std::string Player::KeyOf(std::int64_t number) { return absl::StrCat("key-of-a-prefix-", number % 8); }

std::string Player::LikelyKey(const SpaceName& name, std::int64_t choice) {
  const ModelSpace& space = world_.spaces[name];
  if (choice % 4 == 0 || space.snapshots.empty()) return KeyOf(choice / 4);
  auto present = space.snapshots.begin();
  std::advance(present, choice / 4 % static_cast<std::int64_t>(space.snapshots.size()));
  return present->first;
}

void Player::Forget(ModelSpace& space, const std::string& key) {
  const auto found = space.snapshots.find(key);
  if (found == space.snapshots.end()) return;
  ++counts_["a snapshot was deleted or evicted"];
  space.ghosts.emplace(key, found->second);
  space.snapshots.erase(found);
}

void Player::Store(ModelSpace& space, const std::string& key, SlotState state) {
  space.snapshots[key] = std::make_shared<const SlotState>(std::move(state));
}

void Player::TakeOutcome(ModelSpace& space, const std::string& key, const SnapshotOutcome& outcome,
                         const SlotState& state) {
  const auto present = space.snapshots.find(key);
  const bool may_be_gone = present != space.snapshots.end() && pressed_ && !world_.IsPinned(present->second.get());
  if (outcome.result == SnapshotResult::kNoSpace && pressed_) {
    ++counts_["a snapshot found no space"];
    return;
  }
  if (present != space.snapshots.end() && outcome.result == SnapshotResult::kPresent) {
    if (outcome.position != present->second->front().position) Fail("a present snapshot is at another position");
    return;
  }
  if (present != space.snapshots.end() && !may_be_gone) return Fail("a present snapshot was stored again");
  if (outcome.result != SnapshotResult::kStored || outcome.position != state.front().position) {
    return Fail(absl::StrCat(key, " came to outcome ", static_cast<int>(outcome.result), " at ", outcome.position, " ",
                             outcome.message, "; it must be stored at ", state.front().position));
  }
  Forget(space, key);
  Store(space, key, state);
}

void Player::Save(Choices choices) {
  ModelSession* const session = SessionAt(choices);
  if (session == nullptr) return;
  const std::int64_t first_key = choices.Next();
  std::vector<SlotSave> saves;
  std::vector<std::int64_t> slots;
  for (std::int64_t n = 0, count = 1 + choices.Below(2); n < count; ++n) {
    saves.push_back({Slot(*session, choices, n), KeyOf(first_key + n)});
    slots.push_back(saves.back().slot);
  }
  Codes errors = SlotErrors(*session, {slots[0]});
  if (slots.size() > 1) errors.merge(SlotErrors(*session, {slots[1]}));  // one slot under two keys is no error
  for (const std::int64_t slot : slots) {
    if (!errors.empty()) break;
    const SlotState& state = session->cache->slots[static_cast<std::size_t>(slot)];
    for (const LayerState& layer : state) {
      if (layer.position != state.front().position) errors = {absl::StatusCode::kFailedPrecondition};
    }
  }
  const absl::StatusOr<std::vector<SnapshotOutcome>> outcomes = session->client->SaveSnapshots(saves);
  if (!Expect(outcomes.status(), errors, "saving slots")) return;
  ModelSpace& space = world_.spaces[session->space()];
  for (std::size_t i = 0; i < saves.size() && !failed(); ++i) {
    TakeOutcome(space, saves[i].key, (*outcomes)[i], session->cache->slots[static_cast<std::size_t>(saves[i].slot)]);
  }
}

void Player::Lookup(Choices choices) {
  const std::string name = NameOf(choices.Next());
  const std::int64_t first_key = choices.Next();
  const std::int64_t count = 1 + choices.Below(5);
  const absl::Duration lease = choices.Below(3) == 1 ? absl::Minutes(30) : absl::ZeroDuration();
  const int tenant = Tenant(choices);
  std::vector<std::string> keys;
  for (std::int64_t n = 0; n < count; ++n) keys.push_back(KeyOf(first_key + n));
  const auto cache = world_.caches.find(name);
  const Codes errors = cache == world_.caches.end() ? Codes{absl::StatusCode::kNotFound} : Codes{};
  const absl::StatusOr<std::optional<PrefixMatch>> match = client(tenant).LookupPrefix(name, keys, lease);
  if (!Expect(match.status(), errors, "looking up a prefix")) return;
  const SpaceName of(cache->second->spec.fingerprint, tenant);
  ModelSpace& space = world_.spaces[of];
  const std::int64_t found = match->has_value() ? (*match)->index : -1;
  for (std::int64_t n = count - 1; n > found; --n) {
    const auto longer = space.snapshots.find(keys[static_cast<std::size_t>(n)]);
    if (longer == space.snapshots.end()) continue;
    if (!pressed_ || world_.IsPinned(longer->second.get())) return Fail(absl::StrCat(longer->first, " was not found"));
    Forget(space, longer->first);
  }
  if (found < 0) return;
  const auto present = space.snapshots.find(keys[static_cast<std::size_t>(found)]);
  if (present == space.snapshots.end()) return Fail("a snapshot was found that is not there");
  if ((*match)->snapshot.position != present->second->front().position) return Fail("it was found at another position");
  if (lease == absl::ZeroDuration()) return;
  if ((*match)->pin.empty()) return Fail("a lookup gave no lease");
  world_.pins.push_back({of, (*match)->pin, {present->second}});
}

void Player::Restore(Choices choices) {
  ModelSession* const session = SessionAt(choices);
  if (session == nullptr) return;
  const std::int64_t first_key = choices.Next();
  const std::int64_t pin_choice = choices.Next();
  std::vector<SlotRestore> restores;
  std::vector<std::int64_t> slots;
  for (std::int64_t n = 0, count = choices.Of<std::int64_t>({1, 1, 2}); n < count; ++n) {
    SlotRestore& restore = restores.emplace_back();
    restore.key = LikelyKey(session->space(), first_key + 4 * n);
    restore.slots = {Slot(*session, choices, n)};
    slots.push_back(restore.slots[0]);
  }
  Codes errors = SlotErrors(*session, slots);
  ModelSpace& space = world_.spaces[session->space()];
  bool may_be_gone = false;
  for (const SlotRestore& restore : restores) {
    const auto present = space.snapshots.find(restore.key);
    if (present == space.snapshots.end()) errors.insert(absl::StatusCode::kNotFound);
    if (present != space.snapshots.end() && pressed_ && !world_.IsPinned(present->second.get())) may_be_gone = true;
  }
  std::string pin;
  if (pin_choice % 4 == 1 && !world_.pins.empty()) {
    const ModelPin& drawn = world_.pins[static_cast<std::size_t>(pin_choice / 4) % world_.pins.size()];
    if (drawn.space == session->space()) pin = drawn.name;
  }
  const absl::StatusOr<std::vector<std::int64_t>> positions = session->client->RestoreSnapshots(restores, pin);
  const bool gone = absl::IsNotFound(positions.status()) || absl::IsResourceExhausted(positions.status());
  if (pressed_ && gone && (may_be_gone || absl::IsResourceExhausted(positions.status()))) return;
  if (!Expect(positions.status(), errors, "restoring snapshots")) return;
  for (std::size_t i = 0; i < restores.size(); ++i) {
    const SlotState& state = *space.snapshots.at(restores[i].key);
    if ((*positions)[i] != state.front().position) return Fail("a restore tells another position");
    session->cache->slots[static_cast<std::size_t>(restores[i].slots[0])] = state;
  }
  if (!pin.empty()) std::erase_if(world_.pins, [&pin](const ModelPin& held) { return held.name == pin; });
}

void Player::Pin(Choices choices) {
  const std::string name = NameOf(choices.Next());
  const std::int64_t first_key = choices.Next();
  const auto cache = world_.caches.find(name);
  const bool two = choices.Flag();
  const int tenant = Tenant(choices);
  const SpaceName of(cache == world_.caches.end() ? "" : cache->second->spec.fingerprint, tenant);
  std::vector<std::string> keys = {LikelyKey(of, first_key)};
  if (two) keys.push_back(LikelyKey(of, first_key + 4));
  Codes errors;
  bool may_be_gone = false;
  ModelPin pin;
  if (cache == world_.caches.end()) {
    errors = {absl::StatusCode::kNotFound};
  } else {
    pin.space = of;
    ModelSpace& space = world_.spaces[of];
    for (const std::string& key : keys) {
      const auto present = space.snapshots.find(key);
      if (present == space.snapshots.end()) {
        errors = {absl::StatusCode::kNotFound};
      } else {
        may_be_gone = may_be_gone || (pressed_ && !world_.IsPinned(present->second.get()));
        pin.snapshots.push_back(present->second);
      }
    }
  }
  const absl::StatusOr<SnapshotPin> pinned = client(tenant).PinSnapshots(name, keys);
  if (may_be_gone && absl::IsNotFound(pinned.status())) return;
  if (!Expect(pinned.status(), errors, "pinning snapshots")) return;
  pin.name = pinned->pin;
  world_.pins.push_back(std::move(pin));
}

void Player::Unpin(Choices choices) {
  const std::string name = NameOf(choices.Next());
  const std::int64_t drawn = choices.Next();
  const int tenant = Tenant(choices);
  const auto cache = world_.caches.find(name);
  if (world_.pins.empty()) return;
  const std::size_t index = static_cast<std::size_t>(drawn) % world_.pins.size();
  const ModelPin pin = world_.pins[index];
  Codes errors;
  if (cache == world_.caches.end() || SpaceName(cache->second->spec.fingerprint, tenant) != pin.space) {
    errors = {absl::StatusCode::kNotFound};
  }
  if (!Expect(client(tenant).UnpinSnapshots(name, pin.name), errors, "unpinning")) return;
  world_.pins.erase(world_.pins.begin() + static_cast<std::ptrdiff_t>(index));
  Expect(client(tenant).UnpinSnapshots(name, pin.name), {absl::StatusCode::kNotFound}, "unpinning again");
}

void Player::Delete(Choices choices) {
  const std::string name = NameOf(choices.Next());
  const std::int64_t first_key = choices.Next();
  std::vector<std::string> keys;
  for (std::int64_t n = 0, count = 1 + choices.Below(3); n < count; ++n) keys.push_back(KeyOf(first_key + n));
  const bool force = choices.Flag();
  const int tenant = Tenant(choices);
  const auto cache = world_.caches.find(name);
  Codes errors;
  std::int64_t most = 0;
  std::int64_t least = 0;
  if (cache == world_.caches.end()) {
    errors = {absl::StatusCode::kNotFound};
  } else {
    ModelSpace& space = world_.spaces[{cache->second->spec.fingerprint, tenant}];
    for (const std::string& key : keys) {
      const auto present = space.snapshots.find(key);
      if (present == space.snapshots.end()) continue;
      const bool pinned = world_.IsPinned(present->second.get());
      if (pinned && !force) errors = {absl::StatusCode::kFailedPrecondition};
      ++most;
      least += !pressed_ || pinned ? 1 : 0;
    }
  }
  const absl::StatusOr<std::int64_t> deleted = client(tenant).DeleteSnapshots(name, keys, force);
  if (!Expect(deleted.status(), errors, "deleting snapshots")) return;
  if (*deleted < least || *deleted > most) return Fail(absl::StrCat(*deleted, " were deleted, not ", most));
  for (const std::string& key : keys) Forget(world_.spaces[{cache->second->spec.fingerprint, tenant}], key);
}

void Player::Export(Choices choices) {
  const std::string name = NameOf(choices.Next());
  const auto cache = world_.caches.find(name);
  const std::int64_t key_choice = choices.Next();
  const int tenant = Tenant(choices);
  const SpaceName of(cache == world_.caches.end() ? "" : cache->second->spec.fingerprint, tenant);
  const std::string key = LikelyKey(of, key_choice);
  Codes errors;
  bool may_be_gone = false;
  ModelFile file;
  if (cache == world_.caches.end()) {
    errors = {absl::StatusCode::kNotFound};
  } else {
    const ModelSpace& space = world_.spaces[of];
    const auto present = space.snapshots.find(key);
    if (present == space.snapshots.end()) {
      errors = {absl::StatusCode::kNotFound};
    } else {
      may_be_gone = pressed_ && !world_.IsPinned(present->second.get());
      file = {of, key, present->second};
    }
  }
  const std::string path = absl::StrCat(directory_.path(), "/export", files_ % 3, ".safetensors");
  const absl::StatusOr<ExportedSnapshot> exported = client(tenant).ExportSnapshot(name, key, path);
  if (may_be_gone && (absl::IsNotFound(exported.status()) || absl::IsResourceExhausted(exported.status()))) return;
  if (!Expect(exported.status(), errors, "exporting a snapshot")) return;
  if (exported->position != file.snapshot->front().position) return Fail("an export tells another position");
  ++files_;
  world_.files[path] = std::move(file);
}

void Player::Import(Choices choices) {
  const std::string name = NameOf(choices.Next());
  const std::int64_t key_choice = choices.Next();
  const std::int64_t file_choice = choices.Next();
  const std::int64_t damage = choices.Next();
  const int tenant = Tenant(choices);
  if (world_.files.empty()) return;
  auto file = world_.files.begin();
  std::advance(file, file_choice % static_cast<std::int64_t>(world_.files.size()));
  const auto& [path, content] = *file;
  const std::string key = key_choice % 3 == 0 ? "" : KeyOf(key_choice / 3);
  const auto cache = world_.caches.find(name);
  Codes errors;
  if (cache == world_.caches.end()) {
    errors = {absl::StatusCode::kNotFound};
  } else if (SpaceName(cache->second->spec.fingerprint, tenant) != content.space) {
    errors = {absl::StatusCode::kFailedPrecondition};
  }
  std::string imported = path;
  if (damage % 4 == 3) {
    std::string bytes = FileContent(path);
    const std::size_t at = static_cast<std::size_t>(damage) * 7'919 % bytes.size();
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << damage % 8));
    imported = directory_.path() + "/damaged.safetensors";
    std::ofstream(imported, std::ios::binary) << bytes;
    errors.insert(
        {absl::StatusCode::kInvalidArgument, absl::StatusCode::kDataLoss, absl::StatusCode::kFailedPrecondition});
  }
  const absl::StatusOr<SnapshotOutcome> outcome = client(tenant).ImportSnapshot(name, imported, key);
  if (pressed_ && absl::IsResourceExhausted(outcome.status())) return;
  if (!Expect(outcome.status(), errors, "importing a snapshot")) return;
  ModelSpace& space = world_.spaces[{cache->second->spec.fingerprint, tenant}];
  TakeOutcome(space, key.empty() ? content.key : key, *outcome, *content.snapshot);
}

void Player::Watch(Choices choices) {
  const std::string name = NameOf(choices.Next());
  const std::int64_t drawn = choices.Next();
  const bool existing = choices.Flag() || pressed_;  // the model does not know what has been evicted in this moment
  const int tenant = Tenant(choices);
  constexpr std::size_t kMostWatches = 4;
  if (drawn % 4 == 3 || world_.watches.size() == kMostWatches) {
    if (world_.watches.empty()) return;
    const std::size_t index = static_cast<std::size_t>(drawn / 4) % world_.watches.size();
    world_.watches.erase(world_.watches.begin() + static_cast<std::ptrdiff_t>(index));
    return;
  }
  SnapshotWatch watch = client(tenant).WatchSnapshots(name, existing, {.timeout = absl::InfiniteDuration()});
  const auto cache = world_.caches.find(name);
  if (cache == world_.caches.end()) {
    Expect(watch.Next().status(), {absl::StatusCode::kNotFound}, "watching");
    return;
  }
  const SpaceName of(cache->second->spec.fingerprint, tenant);
  SnapshotView present;
  for (const auto& [key, state] : world_.spaces[of].snapshots) {
    if (!existing) present[key] = state->front().position;
  }
  world_.watches.push_back({of, std::make_unique<Watcher>(std::move(watch), std::move(present))});
}

}  // namespace gdpcache::test
