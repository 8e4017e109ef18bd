// What clients do with the recurrence.

#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/model/player.h"
#include "tests/reference/numbers.h"
#include "tests/reference/problem_edit.h"
#include "tests/reference/random_problem.h"

namespace gdpcache::test {
namespace {

using testing::HostTensor;

constexpr std::byte kGuard{0xA7};  // between tensors in shared memory

/// `rows` rows of NaN behind the tensor's.
void AppendPoison(HostTensor& tensor, std::int64_t rows) {
  std::vector<std::int64_t> shape = tensor.shape;
  shape[0] = rows;
  HostTensor poison = testing::ZeroTensor(tensor.dtype, shape);
  const std::vector<double> values(static_cast<std::size_t>(poison.elements()),
                                   std::numeric_limits<double>::quiet_NaN());
  tensor = testing::Concatenate(tensor, testing::Encode(tensor.dtype, shape, values));
}

/// The slots' layer before a call, by sequence.
std::vector<const LayerState*> Before(const ModelSession& session, const PrefillCase& prefill) {
  std::vector<const LayerState*> before;
  for (std::int64_t n = 0; n < prefill.sequences(); ++n) {
    const std::int64_t slot = prefill.slots.empty() ? -1 : prefill.slots[static_cast<std::size_t>(n)];
    const bool real = slot >= 0 && slot < session.cache->spec.geometry.slots &&
                      !session.cache->slots[static_cast<std::size_t>(slot)].empty();
    before.push_back(
        real ? &session.cache->slots[static_cast<std::size_t>(slot)][static_cast<std::size_t>(prefill.call.layer)]
             : nullptr);
  }
  return before;
}

}  // namespace

std::unique_ptr<PrefillCase> Player::DrawPrefill(ModelSession& session, Choices& choices, std::int64_t layer) {
  auto prefill = std::make_unique<PrefillCase>();
  PrefillCall& call = prefill->call;
  call.layer = layer;
  const std::int64_t sequences = 1 + choices.Below(3);
  testing::ProblemSpec spec;
  for (std::int64_t n = 0; n < sequences; ++n) {
    prefill->slots.push_back(Slot(session, choices, n, /*padding=*/true));
    spec.lengths.push_back(choices.Of<std::int64_t>({1, 16, 17, 5, 32, 33, 64, 48, 0, 70}));
  }
  spec.shape.heads = geometry_.heads;
  spec.shape.key_dim = geometry_.key_dim;
  spec.shape.value_dim = geometry_.value_dim;
  spec.shape.num_householder = choices.Of<std::int64_t>({0, 0, 0, 1, 2});
  call.num_householder = spec.shape.num_householder;
  if (spec.shape.num_householder == 0) spec.shape.num_householder = geometry_.num_householder;
  spec.shape.chunk_size = choices.Of<std::int64_t>({16, 32, 64, 16, 128});
  call.chunk_size = spec.shape.chunk_size;
  spec.shape.input_dtype = choices.Of<kernels::DataType>(
      {kernels::DataType::kFloat32, kernels::DataType::kBFloat16, kernels::DataType::kFloat16});
  const std::int64_t decay = choices.Below(3);  // none, log2, natural
  spec.decay = decay != 0;
  const auto source = static_cast<InitialState>(choices.Of<int>({0, 0, 0, 0, 1, 2}));
  call.initial_state_source = source;
  spec.initial = source == InitialState::kTensor ? testing::InitialState::kTensor : testing::InitialState::kSlot;
  spec.state_indices.assign(static_cast<std::size_t>(sequences), -1);
  const auto seed = static_cast<std::uint64_t>(choices.Next() * 16 + layer);
  prefill->problem = testing::RandomProblem(spec, seed);
  testing::Problem& problem = prefill->problem;
  if (decay == 2) {
    prefill->sent_g = problem.g;  // what is sent as natural is this much in log2
    auto* const g = reinterpret_cast<float*>(problem.g.bytes.data());
    for (std::int64_t i = 0; i < problem.g.elements(); ++i) g[i] *= 1.44269504088896340736F;
    call.g_base = DecayBase::kNatural;
  } else if (decay == 1) {
    prefill->sent_g = problem.g;
  }

  const std::int64_t results = choices.Next();
  call.save_new_value = results % 2 == 1;
  call.output_final_state = results / 2 % 3 == 1;
  call.states = static_cast<States>(results / 6 % 3);
  if (results / 18 % 2 == 1) call.states_dtype = DataType::kFloat32;
  prefill->chunk_offsets.push_back(0);
  for (std::int64_t n = 0; n < sequences; ++n) {
    const std::int64_t count = problem.BoundaryCount(n);
    prefill->chunk_offsets.push_back(prefill->chunk_offsets.back() + count);
    for (std::int64_t boundary = 0; boundary < count && call.states == States::kSelected; ++boundary) {
      if ((results >> (boundary % 4)) % 2 == 0) prefill->selected.push_back({n, boundary});
    }
  }
  call.selected = prefill->selected;

  const std::int64_t transport = choices.Below(4);
  call.transport = transport < 2 ? static_cast<Transport>(transport + 1) : Transport::kAuto;
  const bool dense = std::all_of(spec.lengths.begin(), spec.lengths.end(),
                                 [&](std::int64_t length) { return length == spec.lengths[0]; }) &&
                     choices.Flag();
  if (!dense && choices.Below(4) == 1) prefill->unused_rows = 3;
  const std::int64_t expected = choices.Below(8);  // right ones, a wrong one, or none
  prefill->has_auxiliary = geometry_.auxiliary_bytes > 0 && choices.Flag();
  if (prefill->has_auxiliary) {
    for (std::int64_t i = 0; i < sequences * geometry_.auxiliary_bytes; ++i) {
      prefill->auxiliary.push_back(static_cast<char>(seed * 31 + static_cast<std::uint64_t>(i)));
    }
  }
  const bool poisoned = choices.Below(16) == 15;

  // What the server may refuse.
  prefill->errors = SlotErrors(session, prefill->slots, /*padding=*/true);
  const std::vector<const LayerState*> before = Before(session, *prefill);
  if (expected % 4 == 1) {
    for (const LayerState* const slot : before) {
      prefill->expected_positions.push_back(slot == nullptr ? -1 : slot->position);
    }
    if (expected / 4 == 1 && before[0] != nullptr) {
      ++prefill->expected_positions[0];
      prefill->errors.insert(absl::StatusCode::kFailedPrecondition);
    }
  }
  RunModel(*backend_, *stream_, geometry_, before, *prefill);
  if (prefill->errors.empty() && seed % 8 == 0) {
    if (const std::optional<std::string> far = CompareWithExact(geometry_, before, *prefill)) Fail(*far);
  }
  if (poisoned && problem.tokens() > 0) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    testing::Encode(problem.w.dtype, nan, problem.w.bytes.data());
    call.check_finite = true;
    prefill->errors.insert(absl::StatusCode::kInvalidArgument);
  }
  if (prefill->unused_rows > 0) {
    for (HostTensor* const tensor : {&problem.k, &problem.w, &problem.u}) AppendPoison(*tensor, prefill->unused_rows);
    if (prefill->sent_g) AppendPoison(*prefill->sent_g, prefill->unused_rows);
  }

  call.k = ViewOf(problem.k);
  call.w = ViewOf(problem.w);
  call.u = ViewOf(problem.u);
  if (prefill->sent_g) call.g = ViewOf(*prefill->sent_g);
  if (source == InitialState::kTensor) call.initial_state = ViewOf(problem.initial_state);
  if (dense) {
    call.batch = sequences;
  } else {
    call.cu_seqlens = problem.cu_seqlens;
  }
  call.state_indices = prefill->slots;
  call.expected_positions = prefill->expected_positions;
  if (prefill->has_auxiliary) {
    call.auxiliary_state =
        ConstTensor{DataType::kUInt8, {sequences, geometry_.auxiliary_bytes}, prefill->auxiliary.data()};
  }
  return prefill;
}

bool Player::BeginDirectives(ModelSession& session, PrefillCase& prefill) {
  ModelSpace& space = world_.spaces[session.space()];
  for (const SnapshotDirective& directive : prefill.directives) {
    const auto present = space.snapshots.find(directive.key);
    if (present != space.snapshots.end()) {
      if (!pressed_) session.pending.erase(directive.key);
      continue;
    }
    const auto pending = session.pending.find(directive.key);
    if (pending == session.pending.end()) continue;
    if (pending->second.position != prefill.BoundaryPosition(directive.sequence, directive.boundary)) return false;
  }
  return true;
}

void Player::CheckOutcomes(ModelSession& session, PrefillCase& prefill, absl::Span<const SnapshotOutcome> outcomes) {
  ModelSpace& space = world_.spaces[session.space()];
  for (std::size_t i = 0; i < prefill.directives.size(); ++i) {
    const SnapshotDirective& directive = prefill.directives[i];
    const SnapshotOutcome& outcome = outcomes[i];
    const std::string what = absl::StrCat("directive ", i, " (", directive.key, ") ");
    if (outcome.result == SnapshotResult::kNoSpace && pressed_) {
      ++counts_["a snapshot found no space"];
      session.pending.erase(directive.key);
      continue;
    }
    const auto present = space.snapshots.find(directive.key);
    if (present != space.snapshots.end() && outcome.result != SnapshotResult::kPresent && pressed_ &&
        !world_.IsPinned(present->second.get())) {
      Forget(space, directive.key);  // evicted
    } else if (present != space.snapshots.end()) {
      if (outcome.result != SnapshotResult::kPresent || outcome.position != present->second->front().position) {
        return Fail(what + "was there, and that is not what the outcome says");
      }
      session.pending.erase(directive.key);
      continue;
    }
    LayerState part;
    part.position = prefill.BoundaryPosition(directive.sequence, directive.boundary);
    part.state = prefill.BoundaryState(directive.sequence, directive.boundary, geometry_.state_dtype);
    part.auxiliary = directive.auxiliary;
    PendingParts& pending = session.pending[directive.key];
    pending.position = part.position;
    pending.layers.try_emplace(prefill.call.layer, part);  // the first one counts
    const bool whole = static_cast<std::int64_t>(pending.layers.size()) == geometry_.layers;
    if (outcome.result != (whole ? SnapshotResult::kStored : SnapshotResult::kPending)) {
      return Fail(absl::StrCat(what, "has outcome ", static_cast<int>(outcome.result), " ", outcome.message,
                               whole ? "; it is whole" : "; layers are missing"));
    }
    if (outcome.position != part.position) return Fail(what + "has another position");
    if (!whole) continue;
    SlotState state;
    for (auto& [layer, delivered] : pending.layers) state.push_back(std::move(delivered));
    session.pending.erase(directive.key);
    ++counts_["a snapshot was completed by prefills"];
    Store(space, directive.key, std::move(state));
  }
}

void Player::CheckGuards(const PrefillCase& prefill) {
  const auto is_guard = [](std::byte byte) { return byte == kGuard; };
  const std::byte* begin = prefill.shared.data();
  for (const absl::Span<const std::byte> place : prefill.shared_places) {
    if (!std::all_of(begin, place.data(), is_guard)) return Fail("memory beside a shared tensor was written");
    begin = place.data() + place.size();
  }
  if (!std::all_of(begin, prefill.shared.data() + prefill.shared.size(), is_guard)) {
    Fail("memory behind the shared tensors was written");
  }
}

void Player::Settle(ModelSession& session, PrefillCase& prefill, const absl::StatusOr<PrefillResult>& result) {
  CheckGuards(prefill);
  if (!Expect(result.status(), prefill.errors, absl::StrCat("the prefill of layer ", prefill.call.layer))) return;
  if (const std::optional<std::string> difference = CompareResults(prefill, *result)) {
    return Fail(absl::StrCat("the prefill of layer ", prefill.call.layer, ": ", *difference));
  }
  CheckOutcomes(session, prefill, result->snapshots);
  for (std::size_t n = 0; n < prefill.after.size(); ++n) {
    if (prefill.slots[n] < 0) continue;
    session.cache->slots[static_cast<std::size_t>(prefill.slots[n])][static_cast<std::size_t>(prefill.call.layer)] =
        prefill.after[n];
  }
}

void Player::Prefill(Choices choices) {
  ModelSession* const session = SessionAt(choices);
  if (session == nullptr) return;
  const std::int64_t wanted = choices.Below(geometry_.layers + 2) - 1;  // or all of them
  const std::int64_t directives = choices.Of<std::int64_t>({0, 1, 2, 0, 3});
  const std::int64_t first_key = choices.Next();
  const std::int64_t split = choices.Next();
  const std::int64_t shared = choices.Next();
  for (std::int64_t layer = 0; layer < geometry_.layers && !failed(); ++layer) {
    if (wanted >= 0 && wanted < geometry_.layers && layer != wanted) continue;
    Choices same = choices;
    const std::unique_ptr<PrefillCase> prefill = DrawPrefill(*session, same, layer);
    if (failed()) return;
    // When a call fails for what is in its tensors, snapshots may have been begun before, or not.
    for (std::int64_t i = 0; i < directives && !prefill->call.check_finite; ++i) {
      SnapshotDirective directive;
      directive.sequence = i % prefill->sequences();
      directive.boundary = (first_key / 8 + i) % (prefill->problem.BoundaryCount(directive.sequence) + 1);
      directive.key = KeyOf(first_key + i);
      for (std::int64_t byte = 0; byte < geometry_.auxiliary_bytes; ++byte) {
        directive.auxiliary.push_back(static_cast<char>(first_key * 7 + i * 3 + layer * 11 + byte));
      }
      prefill->directives.push_back(directive);
    }
    prefill->call.snapshots = prefill->directives;
    if (prefill->errors.empty() && !BeginDirectives(*session, *prefill)) {
      if (pressed_) return;  // whether it fails depends on what has been evicted
      prefill->errors.insert(absl::StatusCode::kFailedPrecondition);
    }
    const bool slots = std::all_of(prefill->slots.begin(), prefill->slots.end(), [](auto slot) { return slot >= 0; });
    if (split % 3 == 1 && prefill->errors.empty() && directives == 0 && slots &&
        geometry_.state_dtype == DataType::kFloat32 && prefill->call.states != States::kSelected &&
        prefill->unused_rows == 0) {
      SplitPrefill(*session, *prefill, (1 + split / 3 % 3) * prefill->problem.shape.chunk_size);
    } else {
      if (prefill->call.transport == Transport::kAuto) Share(*session, *prefill, shared);
      if (!failed()) Settle(*session, *prefill, session->client->Prefill(prefill->call));
    }
  }
}

void Player::Share(ModelSession& session, PrefillCase& prefill, std::int64_t choice) {
  if (choice % 3 == 0 || !session.open) return;
  constexpr std::int64_t kBytes = std::int64_t{4} << 20;
  if (!session.memory.has_value()) {
    absl::StatusOr<SharedMemory> memory = session.client->ShareMemory(kBytes);
    if (!Expect(memory.status(), {}, "sharing memory")) return;
    session.memory.emplace(*std::move(memory));
  }
  constexpr std::size_t kAlignment = 64;
  std::byte* const begin = session.memory->data();
  std::fill(begin, begin + kBytes, kGuard);
  prefill.shared = absl::MakeConstSpan(begin, kBytes);
  std::byte* next = begin + kAlignment;
  const auto take = [&](std::size_t size) {
    std::byte* const place = next;
    next += (size / kAlignment + 2) * kAlignment;
    if (next > begin + kBytes) Fail("the model's shared memory is too small");
    prefill.shared_places.push_back(absl::MakeConstSpan(place, size));
    return place;
  };
  PrefillCall& call = prefill.call;
  std::int64_t chosen = choice / 3 % 4 == 0 ? -1 : choice;  // all, or some of them
  const bool all = chosen == -1;
  const auto is_chosen = [&] {
    const bool is = all || chosen % 2 == 1;
    if (!all) chosen /= 2;
    return is;
  };
  const auto share_input = [&](ConstTensor& tensor) {
    const std::size_t size = static_cast<std::size_t>(ByteSize(tensor.dtype, tensor.shape).value_or(0));
    if (!is_chosen() || size == 0 || failed()) return;
    std::byte* const place = take(size);
    if (failed()) return;
    std::memcpy(place, tensor.data, size);
    tensor.data = place;
  };
  share_input(call.k);
  share_input(call.w);
  share_input(call.u);
  if (call.g) share_input(*call.g);
  if (call.initial_state) share_input(*call.initial_state);
  if (call.auxiliary_state) share_input(*call.auxiliary_state);
  const auto share_result = [&](bool wanted, DataType dtype, std::size_t bytes, std::vector<std::int64_t> shape,
                                std::optional<Tensor>& output, std::optional<absl::Span<const std::byte>>& placed) {
    if (!is_chosen() || !wanted || bytes == 0 || failed()) return;
    std::byte* const place = take(bytes);
    if (failed()) return;
    output = Tensor{dtype, std::move(shape), place};
    placed = absl::MakeConstSpan(place, bytes);
  };
  const DataType states_dtype = call.states_dtype.value_or(call.k.dtype);
  const auto state = [this](std::int64_t count) {
    return std::vector<std::int64_t>{count, geometry_.heads, geometry_.key_dim, geometry_.value_dim};
  };
  const std::int64_t boundaries = call.states == States::kSelected ? static_cast<std::int64_t>(prefill.selected.size())
                                                                   : prefill.chunk_offsets.back();
  const auto bytes_of = [](DataType dtype, const std::vector<std::int64_t>& shape) {
    return static_cast<std::size_t>(ByteSize(dtype, shape).value_or(0));
  };
  share_result(call.states != States::kNone, states_dtype, bytes_of(states_dtype, state(boundaries)), state(boundaries),
               call.outputs.h, prefill.placed_h);
  share_result(call.save_new_value, call.u.dtype, bytes_of(call.u.dtype, call.u.shape), call.u.shape,
               call.outputs.v_new, prefill.placed_v_new);
  share_result(call.output_final_state, DataType::kFloat32, bytes_of(DataType::kFloat32, state(prefill.sequences())),
               state(prefill.sequences()), call.outputs.final_state, prefill.placed_final_state);
  ++counts_["a prefill was shared, in part or all of it"];
}

void Player::SplitPrefill(ModelSession& session, PrefillCase& prefill, std::int64_t tokens) {
  const testing::Problem& whole = prefill.problem;
  const std::int64_t householder = whole.shape.num_householder;
  std::vector<std::string> h(static_cast<std::size_t>(prefill.sequences()));
  std::vector<std::string> v_new(h.size());
  std::string final_state;
  std::vector<std::int64_t> positions;
  for (const bool second : {false, true}) {
    testing::Problem part = whole;
    HostTensor sent_g;
    std::vector<std::int64_t> expected_positions;
    part.cu_seqlens = {0};
    part.k = part.w = part.u = {};
    for (std::int64_t n = 0; n < prefill.sequences(); ++n) {
      const std::int64_t length = prefill.Tokens(n) * householder;
      const std::int64_t first = std::min(length, second ? tokens * householder : 0);
      const std::int64_t count = second ? length - first : std::min(length, tokens * householder);
      const std::int64_t row = whole.cu_seqlens[static_cast<std::size_t>(n)] + first;
      part.cu_seqlens.push_back(part.cu_seqlens.back() + count);
      part.k = testing::Concatenate(part.k, testing::Rows(whole.k, row, count));
      part.w = testing::Concatenate(part.w, testing::Rows(whole.w, row, count));
      part.u = testing::Concatenate(part.u, testing::Rows(whole.u, row, count));
      if (prefill.sent_g) sent_g = testing::Concatenate(sent_g, testing::Rows(*prefill.sent_g, row, count));
      expected_positions.push_back(second ? positions[static_cast<std::size_t>(n)] : -1);
    }
    PrefillCall call = prefill.call;
    call.k = ViewOf(part.k);
    call.w = ViewOf(part.w);
    call.u = ViewOf(part.u);
    if (prefill.sent_g) call.g = ViewOf(sent_g);
    call.batch = 0;
    call.cu_seqlens = part.cu_seqlens;
    if (second) {
      call.initial_state_source = InitialState::kSlot;
      call.initial_state.reset();
      call.expected_positions = expected_positions;
    } else {
      call.output_final_state = false;
    }
    const absl::StatusOr<PrefillResult> result = session.client->Prefill(call);
    if (!Expect(result.status(), {}, second ? "the second part of a prefill" : "the first part of a prefill")) return;
    positions = result->positions;
    final_state = BytesOf(result->final_state);
    // Back to the order of the whole call.
    const std::string part_h = BytesOf(result->h);
    const std::string part_v_new = BytesOf(result->v_new);
    const auto states = static_cast<std::size_t>(result->chunk_offsets.back());
    const std::size_t state_bytes = states == 0 ? 0 : part_h.size() / states;
    const std::size_t row_bytes = part.tokens() == 0 ? 0 : part_v_new.size() / static_cast<std::size_t>(part.tokens());
    for (std::size_t n = 0; n < h.size(); ++n) {
      const auto begin = static_cast<std::size_t>(result->chunk_offsets[n]);
      const auto end = static_cast<std::size_t>(result->chunk_offsets[n + 1]);
      h[n] += part_h.substr(begin * state_bytes, (end - begin) * state_bytes);
      const auto row = static_cast<std::size_t>(part.cu_seqlens[n]);
      const auto rows = static_cast<std::size_t>(part.cu_seqlens[n + 1]) - row;
      v_new[n] += part_v_new.substr(row * row_bytes, rows * row_bytes);
    }
  }
  std::string all_h;
  std::string all_v_new;
  for (std::size_t n = 0; n < h.size(); ++n) {
    all_h += h[n];
    all_v_new += v_new[n];
  }
  const std::string what = absl::StrCat("a prefill split after ", tokens, " tokens: ");
  if (all_h != prefill.ExpectedH()) return Fail(what + "h differs");
  if (all_v_new != prefill.ExpectedVNew()) return Fail(what + "v_new differs");
  if (final_state != prefill.ExpectedFinalState()) return Fail(what + "final_state differs");
  if (positions != prefill.positions) return Fail(what + "positions differ");
  for (std::size_t n = 0; n < prefill.after.size(); ++n) {
    session.cache->slots[static_cast<std::size_t>(prefill.slots[n])][static_cast<std::size_t>(prefill.call.layer)] =
        prefill.after[n];
  }
}

void Player::Storm(Choices choices) {
  // Slots of all sessions, each a call of its own, at once.
  struct Call {
    ModelSession* session;
    std::unique_ptr<PrefillCase> prefill;
    absl::StatusOr<PrefillResult> result;
  };
  const std::int64_t layer = choices.Below(geometry_.layers);
  const std::int64_t chunk = choices.Of<std::int64_t>({16, 64});
  const std::int64_t seed = choices.Next();
  std::vector<Call> calls;
  for (auto& [place, session] : world_.sessions) {
    if (!session.open) continue;
    const std::vector<std::int64_t> held = Held(session);
    for (std::size_t n = 0; n < held.size(); ++n) {
      // A whole prefill's choices: one sequence, this slot, and lengths of its own.
      const auto slot_choice = static_cast<std::uint32_t>(20 * n);
      const auto length = static_cast<std::uint32_t>((seed + static_cast<std::int64_t>(n)) % 10);
      const auto transport = static_cast<std::uint32_t>((seed / 10 + static_cast<std::int64_t>(n)) % 2);
      const Operation drawn{OperationKind::kPrefill,
                            {0, slot_choice, length, 0, chunk == 16 ? 0U : 2U, 1, 1, 0,
                             static_cast<std::uint32_t>(seed + static_cast<std::int64_t>(calls.size())), 9, transport}};
      Choices own(drawn);
      calls.push_back({&session, DrawPrefill(session, own, layer), absl::UnknownError("not called")});
      if (failed()) return;
    }
  }
  std::vector<std::thread> threads;
  threads.reserve(calls.size());
  for (Call& call : calls) {
    threads.emplace_back([&call] { call.result = call.session->client->Prefill(call.prefill->call); });
  }
  for (std::thread& thread : threads) thread.join();
  for (Call& call : calls) {
    if (!failed()) Settle(*call.session, *call.prefill, call.result);
  }
}

void Player::Hasty(Choices choices) {
  const auto cache = world_.caches.find(NameOf(choices.Next()));
  const absl::Duration timeout = absl::Microseconds(50 * (1 + choices.Below(20)));
  const auto transport = static_cast<std::uint32_t>(choices.Below(2));
  const Operation drawn{OperationKind::kPrefill,
                        {0, 0, 9, 0, 0, 0, 1, 0, static_cast<std::uint32_t>(choices.Next()), 9, transport}};
  if (cache == world_.caches.end() || cache->second->free_slots() == 0) return;
  if (cache->second->spec.ephemeral && cache->second->sessions == 0) return;  // would go with the session
  // In a session of its own: such a call may be applied as late as the server's clock allows, but not after the
  // session.
  constexpr int kPlace = -2;
  absl::StatusOr<Session> opened =
      client().OpenSession(cache->first, {.ttl = absl::Hours(1), .client_name = "hasty", .keep_alive = false});
  if (!Expect(opened.status(), {}, "opening a session for a hasty prefill")) return;
  ++cache->second->sessions;
  ModelSession& session = world_.sessions[kPlace];
  session.client.emplace(*std::move(opened));
  session.cache = cache->second;
  AcquireFor(session, kPlace, 1);
  if (!failed()) RunHasty(session, drawn, timeout);
  Expect(session.client->Close(), {}, "closing the session of a hasty prefill");
  EndModelSession(kPlace);
}

void Player::RunHasty(ModelSession& session, const Operation& drawn, absl::Duration timeout) {
  Choices own(drawn);
  const std::unique_ptr<PrefillCase> prefill = DrawPrefill(session, own, 0);
  if (failed()) return;
  const absl::StatusOr<PrefillResult> result = session.client->Prefill(prefill->call, {.timeout = timeout});
  if (result.ok()) return Settle(session, *prefill, result);
  Expect(result.status(), {absl::StatusCode::kDeadlineExceeded}, "a hasty prefill");
  // Applied or not, the slot tells; half applied it must not be.
  const absl::StatusOr<SlotContents> contents = session.client->ReadSlots({prefill->slots[0]}, {0});
  if (failed() || !Expect(contents.status(), {}, "reading a slot after a hasty prefill")) return;
  const LayerState& before = session.cache->slots[static_cast<std::size_t>(prefill->slots[0])][0];
  if (contents->positions[0] == before.position && BytesOf(contents->state) == before.state) return;
  if (contents->positions[0] != prefill->after[0].position || BytesOf(contents->state) != prefill->after[0].state) {
    Fail("a hasty prefill was applied by half");
  }
}

}  // namespace gdpcache::test
