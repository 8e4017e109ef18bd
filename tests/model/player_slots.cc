// What clients do with slots.

#include <algorithm>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/model/player.h"
#include "tests/reference/numbers.h"

namespace gdpcache::test {

std::vector<std::int64_t> Player::Held(const ModelSession& session) const {
  std::vector<std::int64_t> held;
  for (std::size_t slot = 0; slot < session.cache->holders.size(); ++slot) {
    const int place = session.cache->holders[slot];
    if (place == kFree) continue;
    const auto holder = world_.sessions.find(place);
    if (holder != world_.sessions.end() && &holder->second == &session) held.push_back(static_cast<std::int64_t>(slot));
  }
  return held;
}

std::int64_t Player::Slot(const ModelSession& session, Choices& choices, std::int64_t nth, bool padding) {
  const std::int64_t choice = choices.Next();
  const std::vector<std::int64_t> held = Held(session);
  if (choice % 20 == 19) return choice / 20 % (session.cache->spec.geometry.slots + 3) - 1;
  if (padding && choice % 20 == 18) return -1;
  if (held.empty()) return 0;
  return held[static_cast<std::size_t>(choice / 20 + nth) % held.size()];
}

std::vector<std::int64_t> Player::OneOrTwo(const ModelSession& session, Choices& choices) {
  std::vector<std::int64_t> slots = {Slot(session, choices, 0)};
  if (choices.Flag()) slots.push_back(Slot(session, choices, 1));
  return slots;
}

Player::Codes Player::SlotErrors(const ModelSession& session, absl::Span<const std::int64_t> slots,
                                 bool padding) const {
  if (!session.open) return {absl::StatusCode::kNotFound};
  Codes errors;
  const std::vector<std::int64_t> held = Held(session);
  std::set<std::int64_t> named;
  for (const std::int64_t slot : slots) {
    if (slot == -1 && padding) continue;
    if (!named.insert(slot).second || slot < 0 || slot >= session.cache->spec.geometry.slots) {
      errors.insert(absl::StatusCode::kInvalidArgument);
    } else if (std::find(held.begin(), held.end(), slot) == held.end()) {
      errors.insert(absl::StatusCode::kPermissionDenied);
    }
  }
  return errors;
}

std::vector<std::int64_t> Player::Layers(Choices& choices) const {
  std::vector<std::int64_t> layers;
  const std::int64_t choice = choices.Next();
  if (choice % 3 == 0) return layers;
  for (std::int64_t n = 0; n <= choice / 3 % geometry_.layers; ++n) layers.push_back((choice + n) % geometry_.layers);
  return layers;
}

void Player::Acquire(Choices choices) {
  ModelSession* const session = SessionAt(choices);
  if (session == nullptr) return;
  int place = 0;
  for (const auto& [number, candidate] : world_.sessions) place = &candidate == session ? number : place;
  AcquireFor(*session, place, choices.Of<std::int64_t>({1, 2, 3, 1, 2, 4, 0, 7}));
}

void Player::AcquireFor(ModelSession& session, int place, std::int64_t count) {
  Codes errors;
  if (!session.open) errors = {absl::StatusCode::kNotFound};
  if (count < 1) errors.insert(absl::StatusCode::kInvalidArgument);
  if (errors.empty() && count > session.cache->free_slots()) errors = {absl::StatusCode::kResourceExhausted};
  const absl::StatusOr<std::vector<std::int64_t>> slots = session.client->AcquireSlots(count);
  if (!Expect(slots.status(), errors, "acquiring slots")) return;
  if (!std::is_sorted(slots->begin(), slots->end())) Fail("acquired slots are not ascending");
  for (const std::int64_t slot : *slots) {
    if (slot < 0 || slot >= session.cache->spec.geometry.slots ||
        session.cache->holders[static_cast<std::size_t>(slot)] != kFree) {
      return Fail(absl::StrCat("slot ", slot, " was given, which is not free"));
    }
    session.cache->holders[static_cast<std::size_t>(slot)] = place;
    LayerState zero;
    const auto elements = static_cast<std::size_t>(geometry_.heads * geometry_.key_dim * geometry_.value_dim);
    zero.state.assign(elements * static_cast<std::size_t>(ElementSize(geometry_.state_dtype)), '\0');
    zero.auxiliary.assign(static_cast<std::size_t>(geometry_.auxiliary_bytes), '\0');
    session.cache->slots[static_cast<std::size_t>(slot)].assign(static_cast<std::size_t>(geometry_.layers), zero);
  }
}

void Player::Release(Choices choices) {
  ModelSession* const session = SessionAt(choices);
  if (session == nullptr) return;
  const std::vector<std::int64_t> slots = OneOrTwo(*session, choices);
  const Codes errors = SlotErrors(*session, slots);
  if (!Expect(session->client->ReleaseSlots(slots), errors, "releasing slots")) return;
  for (const std::int64_t slot : slots) session->cache->holders[static_cast<std::size_t>(slot)] = -1;
}

void Player::Reset(Choices choices) {
  ModelSession* const session = SessionAt(choices);
  if (session == nullptr) return;
  const std::vector<std::int64_t> slots = OneOrTwo(*session, choices);
  const Codes errors = SlotErrors(*session, slots);
  if (!Expect(session->client->ResetSlots(slots), errors, "resetting slots")) return;
  for (const std::int64_t slot : slots) {
    for (LayerState& layer : session->cache->slots[static_cast<std::size_t>(slot)]) {
      std::fill(layer.state.begin(), layer.state.end(), '\0');
      std::fill(layer.auxiliary.begin(), layer.auxiliary.end(), '\0');
      layer.position = 0;
    }
  }
}

void Player::Copy(Choices choices) {
  ModelSession* const session = SessionAt(choices);
  if (session == nullptr) return;
  std::vector<SlotCopy> copies(static_cast<std::size_t>(1 + choices.Below(3)));
  const bool rotate = choices.Below(4) == 3;
  std::vector<std::int64_t> all_destinations;
  Codes errors;
  std::int64_t nth = 1;
  for (SlotCopy& copy : copies) {
    copy.source = Slot(*session, choices, nth);
    copy.destinations = {Slot(*session, choices, nth++)};
    if (choices.Flag()) copy.destinations.push_back(Slot(*session, choices, nth++));
    all_destinations.insert(all_destinations.end(), copy.destinations.begin(), copy.destinations.end());
    errors.merge(SlotErrors(*session, {copy.source}));
  }
  if (const std::vector<std::int64_t> held = Held(*session); rotate && held.size() > 2 && session->open) {
    // The first two change places over the third: each is read and overwritten.
    copies = {{held[1], {held[2]}}, {held[0], {held[1]}}, {held[2], {held[0]}}};
    all_destinations.clear();
    errors.clear();
  }
  errors.merge(SlotErrors(*session, all_destinations));
  if (!Expect(session->client->CopySlots(copies), errors, "copying slots")) return;
  for (const SlotCopy& copy : copies) {
    for (const std::int64_t destination : copy.destinations) {
      session->cache->slots[static_cast<std::size_t>(destination)] =
          SlotState(session->cache->slots[static_cast<std::size_t>(copy.source)]);
    }
  }
}

void Player::Read(Choices choices) {
  ModelSession* const session = SessionAt(choices);
  if (session == nullptr) return;
  const std::vector<std::int64_t> slots = OneOrTwo(*session, choices);
  const std::vector<std::int64_t> layers = Layers(choices);
  const absl::StatusOr<SlotContents> contents = session->client->ReadSlots(slots, layers);
  if (!Expect(contents.status(), SlotErrors(*session, slots), "reading slots")) return;
  std::string state;
  std::string auxiliary;
  std::vector<std::int64_t> positions;
  for (const std::int64_t slot : slots) {
    for (const std::int64_t layer : contents->layers) {
      const LayerState& of = session->cache->slots[static_cast<std::size_t>(slot)][static_cast<std::size_t>(layer)];
      state += of.state;
      auxiliary += of.auxiliary;
      positions.push_back(of.position);
    }
  }
  if (BytesOf(contents->state) != state || BytesOf(contents->auxiliary) != auxiliary ||
      contents->positions != positions) {
    Fail("what was read differs");
  }
}

void Player::Write(Choices choices) {
  ModelSession* const session = SessionAt(choices);
  if (session == nullptr) return;
  const std::vector<std::int64_t> slots = OneOrTwo(*session, choices);
  std::vector<std::int64_t> layers = Layers(choices);
  const bool with_auxiliary = choices.Flag() && geometry_.auxiliary_bytes > 0;
  std::mt19937_64 random(static_cast<std::uint64_t>(choices.Next()));
  SlotUpdate update;
  update.slots = slots;
  update.layers = layers;
  if (layers.empty()) {
    layers.resize(static_cast<std::size_t>(geometry_.layers));
    std::iota(layers.begin(), layers.end(), 0);
  }
  const auto count = static_cast<std::int64_t>(slots.size() * layers.size());
  std::vector<double> values(
      static_cast<std::size_t>(count * geometry_.heads * geometry_.key_dim * geometry_.value_dim));
  for (double& value : values) value = static_cast<double>(random() % 2'001) / 1'000 - 1;
  const testing::HostTensor state = testing::Encode(
      KernelType(geometry_.state_dtype), {count, geometry_.heads, geometry_.key_dim, geometry_.value_dim}, values);
  std::string auxiliary(static_cast<std::size_t>(count * geometry_.auxiliary_bytes), '\0');
  for (char& byte : auxiliary) byte = static_cast<char>(random());
  std::vector<std::int64_t> positions;
  const std::int64_t position = static_cast<std::int64_t>(random() % 4) * 16;
  if (random() % 3 != 0) positions.assign(static_cast<std::size_t>(count), position);
  update.positions = positions;
  const auto layer_count = static_cast<std::int64_t>(layers.size());
  const auto slot_count = static_cast<std::int64_t>(slots.size());
  update.state = {geometry_.state_dtype,
                  {slot_count, layer_count, geometry_.heads, geometry_.key_dim, geometry_.value_dim},
                  state.bytes.data()};
  if (with_auxiliary) {
    update.auxiliary =
        ConstTensor{DataType::kUInt8, {slot_count, layer_count, geometry_.auxiliary_bytes}, auxiliary.data()};
  }
  if (!Expect(session->client->WriteSlots(update), SlotErrors(*session, slots), "writing slots")) return;
  const std::string bytes = BytesOf(state);
  const std::size_t state_bytes = bytes.size() / static_cast<std::size_t>(count);
  const auto auxiliary_bytes = static_cast<std::size_t>(geometry_.auxiliary_bytes);
  std::size_t index = 0;
  for (const std::int64_t slot : slots) {
    for (const std::int64_t layer : layers) {
      LayerState& of = session->cache->slots[static_cast<std::size_t>(slot)][static_cast<std::size_t>(layer)];
      of.state = bytes.substr(index * state_bytes, state_bytes);
      if (with_auxiliary) of.auxiliary = auxiliary.substr(index * auxiliary_bytes, auxiliary_bytes);
      of.position = positions.empty() ? 0 : position;
      ++index;
    }
  }
}

}  // namespace gdpcache::test
