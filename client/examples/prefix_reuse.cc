// Prefixes that need not be computed again: what a serving engine does with every prompt, shown with two prompts that
// share their beginning. Run it twice, with the server stopped and started in between: with --snapshot-directory the
// second run finds what the first has kept. Each final state is compared with that of a run without the prefix cache.
//
//   prefix_reuse [host:port | unix:PATH]

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "gdpcache/boundary_policy.h"
#include "gdpcache/client.h"

namespace {

constexpr std::int64_t kLayers = 2;
constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kDim = 64;
constexpr std::int64_t kHouseholder = 2;      // expanded tokens per token
constexpr std::int64_t kAuxiliary = 48;       // bytes a layer keeps beside its state, e.g. its convolution's window
constexpr std::int64_t kBlock = 64;           // tokens between two boundaries: the prefills' chunk_size
constexpr std::int64_t kTokensPerCall = 256;  // long prompts are prefilled in several calls
constexpr std::int64_t kSystemPrompt = 640;   // what both prompts begin with

using Prompt = std::vector<std::int32_t>;

Prompt MakePrompt(std::int32_t question, std::int64_t tokens) {
  Prompt prompt;
  for (std::int32_t n = 0; n < tokens; ++n) prompt.push_back(n < kSystemPrompt ? 7 * n + 1 : 11 * n + question);
  return prompt;
}

// A key names all tokens up to a position. Engines have such digests already: their block hashes, each made of the one
// before and the block's tokens. This one, twice FNV-1a, will do for prompts that nobody made to collide; use a
// cryptographic hash, such as SHA-256, for those of strangers. keys[i] is that of i + 1 blocks.
std::vector<std::string> PrefixKeys(const Prompt& prompt) {
  std::vector<std::string> keys;
  std::uint64_t state[2] = {0xcbf29ce484222325, 0x84222325cbf29ce4};
  for (std::size_t n = 0; n < prompt.size(); ++n) {
    for (std::uint64_t& half : state) {
      half = (half ^ static_cast<std::uint64_t>(prompt[n])) * 0x100000001b3;
      half ^= half >> 29;
    }
    if ((n + 1) % kBlock == 0) keys.emplace_back(reinterpret_cast<const char*>(state), sizeof(state));
  }
  return keys;
}

// Stands for the model: what one of its layers computes for the tokens [begin, end).
struct LayerInputs {
  LayerInputs(const Prompt& prompt, std::int64_t layer, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin * kHouseholder; row < end * kHouseholder; ++row) {
      std::uint64_t seed =
          static_cast<std::uint64_t>(prompt[row / kHouseholder]) * 31 + row % kHouseholder + 1000 * layer;
      const auto next = [&seed] {
        seed = seed * 6364136223846793005 + 1442695040888963407;
        return static_cast<float>(static_cast<std::int64_t>(seed >> 40) - (1 << 23)) / (1 << 23);
      };
      for (std::int64_t i = 0; i < kHeads * kDim; ++i) {
        k.push_back(next() / 8);
        w.push_back(next() / 8);
        u.push_back(next());
      }
      // The decay accumulates within each chunk of 64 expanded tokens.
      for (std::int64_t head = 0; head < kHeads; ++head) g.push_back(-0.01F * static_cast<float>(row % 64 + 1));
    }
  }
  std::vector<float> k, w, u, g;
};

// Stands for the bytes that the layer needs beside its state to go on behind `position`.
std::string AuxiliaryBytes(std::int64_t layer, const Prompt& prompt, std::int64_t position) {
  return std::string(kAuxiliary, static_cast<char>(layer + prompt[position - 1]));
}

// Prefills the tokens [begin, end) of the prompt in every layer, and keeps the states at `positions`.
absl::Status Prefill(gdpcache::Session& session, std::int64_t slot, const Prompt& prompt, std::int64_t begin,
                     std::int64_t end, const std::vector<std::int64_t>& positions) {
  const std::vector<std::string> keys = PrefixKeys(prompt);
  const auto boundaries = gdpcache::CallBoundaries(positions, begin, end, kBlock);
  if (!boundaries.ok()) return boundaries.status();
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const LayerInputs inputs(prompt, layer, begin, end);
    const std::int64_t rows = (end - begin) * kHouseholder;
    const std::vector<std::int64_t> slots = {slot};
    const std::vector<std::int64_t> expected = {begin};  // refuses a call that comes twice
    const std::string auxiliary = AuxiliaryBytes(layer, prompt, end);
    // Every layer names the boundaries; when the last one has, the snapshots can be found.
    std::vector<gdpcache::SnapshotDirective> directives;
    for (const gdpcache::CallBoundary& at : *boundaries) {
      directives.push_back({.sequence = 0,
                            .boundary = at.boundary,
                            .key = keys[at.position / kBlock - 1],
                            .auxiliary = AuxiliaryBytes(layer, prompt, at.position)});
    }
    gdpcache::PrefillCall call;
    call.layer = layer;
    call.k = {gdpcache::DataType::kFloat32, {rows, kHeads, kDim}, inputs.k.data()};
    call.w = {gdpcache::DataType::kFloat32, {rows, kHeads, kDim}, inputs.w.data()};
    call.u = {gdpcache::DataType::kFloat32, {rows, kHeads, kDim}, inputs.u.data()};
    call.g = gdpcache::ConstTensor{gdpcache::DataType::kFloat32, {rows, kHeads}, inputs.g.data()};
    call.state_indices = slots;
    call.expected_positions = expected;
    call.auxiliary_state = gdpcache::ConstTensor{gdpcache::DataType::kUInt8, {1, kAuxiliary}, auxiliary.data()};
    call.snapshots = directives;
    const absl::StatusOr<gdpcache::PrefillResult> result = session.Prefill(call);
    if (!result.ok()) return result.status();
    for (const gdpcache::SnapshotOutcome& outcome : result->snapshots) {
      if (outcome.result == gdpcache::SnapshotResult::kNoSpace) std::printf("not kept: %s\n", outcome.message.c_str());
    }
  }
  return absl::OkStatus();
}

absl::Status PrefillInCalls(gdpcache::Session& session, std::int64_t slot, const Prompt& prompt, std::int64_t begin,
                            const std::vector<std::int64_t>& positions) {
  const auto size = static_cast<std::int64_t>(prompt.size());
  for (std::int64_t end = begin; begin < size; begin = end) {
    end = std::min(begin + kTokensPerCall, size);
    if (absl::Status status = Prefill(session, slot, prompt, begin, end, positions); !status.ok()) return status;
  }
  return absl::OkStatus();
}

const char* NameOf(gdpcache::SnapshotTier tier) {
  switch (tier) {
    case gdpcache::SnapshotTier::kDevice:
      return "device";
    case gdpcache::SnapshotTier::kHost:
      return "host";
    case gdpcache::SnapshotTier::kDisk:
      return "disk";
    default:
      return "-";
  }
}

// Takes a prompt through the server as an engine does, and prints a line of the table.
absl::Status Serve(gdpcache::Client& client, gdpcache::Session& session, const char* name, const Prompt& prompt,
                   std::int64_t known) {
  const auto tokens = static_cast<std::int64_t>(prompt.size());
  absl::StatusOr<std::vector<std::int64_t>> slots = session.AcquireSlots(2);
  if (!slots.ok()) return slots.status();

  // 1. The longest prefix that is there. At least one token is left to be computed: its output is what is wanted.
  std::vector<std::string> keys = PrefixKeys(prompt);
  keys.resize((tokens - 1) / kBlock);
  const auto match = client.LookupPrefix(session.cache(), keys, absl::Seconds(30));
  if (!match.ok()) return match.status();

  // 2. Its states of all layers into the slot. One that went in between, or turns out to be damaged, is a miss.
  std::int64_t resumed = 0;
  const char* tier = "-";
  if (match->has_value()) {
    const gdpcache::Snapshot& snapshot = (*match)->snapshot;
    const auto restored = session.RestoreSnapshots({{.key = snapshot.key, .slots = {(*slots)[0]}}}, (*match)->pin);
    if (restored.ok()) {
      resumed = (*restored)[0];
      tier = snapshot.tiers.empty() ? "-" : NameOf(snapshot.tiers[0]);
    } else if (!absl::IsNotFound(restored.status()) && !absl::IsDataLoss(restored.status())) {
      return restored.status();
    }
  }

  // 3. The rest of the prompt, keeping the states that other prompts may want.
  gdpcache::BoundaryPolicy policy;  // the last aligned one, the one before it, and where the prompt leaves the known
  policy.from_start = {kSystemPrompt};
  const auto positions = gdpcache::BoundaryPositions(policy, {.tokens = tokens, .known = known, .resumed = resumed});
  if (!positions.ok()) return positions.status();
  if (absl::Status status = PrefillInCalls(session, (*slots)[0], prompt, resumed, *positions); !status.ok()) {
    return status;
  }

  // For this demonstration only: the same without the prefix cache, in another slot.
  if (absl::Status status = PrefillInCalls(session, (*slots)[1], prompt, 0, {}); !status.ok()) return status;
  const absl::StatusOr<gdpcache::SlotContents> both = session.ReadSlots(*slots);
  if (!both.ok()) return both.status();
  const auto equal_halves = [](const gdpcache::OwnedTensor& tensor) {
    const std::size_t half = static_cast<std::size_t>(tensor.byte_size()) / 2;
    return std::memcmp(tensor.data(), tensor.data() + half, half) == 0;
  };
  const bool same = equal_halves(both->state) && equal_halves(both->auxiliary);

  std::string kept;
  for (const std::int64_t position : *positions) kept += (kept.empty() ? "" : " ") + std::to_string(position);
  std::printf("%-8s %6lld  %8lld  %-6s  %8lld  %-12s  %s\n", name, static_cast<long long>(tokens),
              static_cast<long long>(resumed), tier, static_cast<long long>(tokens - resumed), kept.c_str(),
              same ? "identical" : "DIFFERENT");
  if (!same) return absl::DataLossError("the final states differ");
  return session.ReleaseSlots(*slots);
}

absl::Status Run(const std::string& address) {
  absl::StatusOr<gdpcache::Client> client = gdpcache::Client::Connect(address);
  if (!client.ok()) return client.status();
  gdpcache::CacheSpec spec;
  spec.name = "prefix-reuse";
  spec.fingerprint = "prefix_reuse.cc, version 1";  // snapshots are shared by caches of one fingerprint and shape
  spec.geometry = {.layers = kLayers, .slots = 4, .heads = kHeads, .key_dim = kDim, .value_dim = kDim};
  spec.geometry.num_householder = kHouseholder;
  spec.geometry.auxiliary_bytes = kAuxiliary;
  if (auto cache = client->CreateCache(spec); !cache.ok()) return cache.status();
  absl::StatusOr<gdpcache::Session> session = client->OpenSession(spec.name);
  if (!session.ok()) return session.status();

  std::printf("PROMPT   TOKENS  FOUND AT  IN      COMPUTED  KEPT AT       FINAL STATES\n");
  absl::Status status = Serve(*client, *session, "first", MakePrompt(3, 1003), 0);
  if (status.ok()) status = Serve(*client, *session, "second", MakePrompt(5, 750), kSystemPrompt);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  const absl::Status status = Run(argc > 1 ? argv[1] : "127.0.0.1:7411");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
