// From whichever tier of a real server a snapshot comes back, and on whichever backend, what follows has the bits of
// the run that was never interrupted. GDPCACHE_TEST_BACKEND=cuda takes it to a GPU.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gdpcache/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/eventually.h"
#include "tests/support/server_process.h"

namespace gdpcache {
namespace {

constexpr std::int64_t kLayers = 2;
constexpr std::int64_t kHeads = 3;
constexpr std::int64_t kKeyDim = 128;
constexpr std::int64_t kValueDim = 64;
constexpr std::int64_t kAuxiliary = 24;
constexpr std::int64_t kChunk = 64;

/// The calls that a prompt comes in, in tokens; the last of them are what a restored slot goes on with.
const std::vector<std::int64_t> kCalls = {0, 320, 700, 1'200};

std::string Key(const std::string& name) { return absl::StrCat("0123456789abcdef", name); }

std::string Auxiliary(std::int64_t layer, std::int64_t position) {
  return std::string(kAuxiliary, static_cast<char>('a' + (layer * 7 + position) % 23));
}

/// One layer's inputs of a prompt of 1,200 tokens.
struct Inputs {
  Inputs(std::int64_t num_householder, unsigned seed) : householders(num_householder) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const std::int64_t rows = kCalls.back() * householders;
    const auto fill = [&](std::vector<std::uint16_t>& values, std::int64_t count, float scale) {
      values.resize(count);
      for (std::uint16_t& value : values) {
        const float number = scale * normal(random);
        std::uint32_t bits = 0;
        std::memcpy(&bits, &number, sizeof(bits));
        value = static_cast<std::uint16_t>(bits >> 16);  // bfloat16
      }
    };
    fill(k, rows * kHeads * kKeyDim, 0.09F);
    fill(w, rows * kHeads * kKeyDim, 0.05F);
    fill(u, rows * kHeads * kValueDim, 1.0F);
    for (std::int64_t row = 0; row < rows; ++row) {
      // Accumulated within each chunk of the expanded stream; calls begin where chunks do, or behind the last of one.
      const std::int64_t call = row / householders < kCalls[1]   ? kCalls[0]
                                : row / householders < kCalls[2] ? kCalls[1]
                                                                 : kCalls[2];
      const std::int64_t in_chunk = (row - call * householders) % kChunk;
      for (std::int64_t head = 0; head < kHeads; ++head) g.push_back(-0.01F * static_cast<float>(in_chunk + 1 + head));
    }
  }

  /// Tokens [begin, end) into `slot`.
  PrefillCall Call(std::int64_t layer, std::int64_t begin, std::int64_t end,
                   const std::vector<std::int64_t>& slot) const {
    const std::int64_t rows = (end - begin) * householders;
    const std::int64_t first = begin * householders * kHeads;
    PrefillCall call;
    call.layer = layer;
    call.k = {DataType::kBFloat16, {rows, kHeads, kKeyDim}, k.data() + first * kKeyDim};
    call.w = {DataType::kBFloat16, {rows, kHeads, kKeyDim}, w.data() + first * kKeyDim};
    call.u = {DataType::kBFloat16, {rows, kHeads, kValueDim}, u.data() + first * kValueDim};
    call.g = ConstTensor{DataType::kFloat32, {rows, kHeads}, g.data() + first};
    call.state_indices = slot;
    call.save_new_value = true;
    return call;
  }

  const std::int64_t householders;
  std::vector<std::uint16_t> k;
  std::vector<std::uint16_t> w;
  std::vector<std::uint16_t> u;
  std::vector<float> g;
};

std::string Bytes(const OwnedTensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.data()), static_cast<std::size_t>(tensor.byte_size())};
}

std::vector<std::string> FlagsFor(SnapshotTier tier, const std::string& directory) {
  std::vector<std::string> flags = {"--snapshot-device-memory=64MiB"};
  if (const char* const backend = std::getenv("GDPCACHE_TEST_BACKEND"); backend != nullptr) {
    flags.push_back(absl::StrCat("--backend=", backend));
  }
  // Watermarks at which whatever is stored moves down at once.
  if (tier != SnapshotTier::kDevice) flags.push_back("--snapshot-device-watermarks=1:0");
  flags.push_back(tier == SnapshotTier::kHost ? "--snapshot-host-memory=64MiB" : "--snapshot-host-memory=0");
  if (tier == SnapshotTier::kDisk) flags.push_back(absl::StrCat("--snapshot-directory=", directory));
  return flags;
}

class SnapshotTiersTest : public ::testing::TestWithParam<std::tuple<std::int64_t, SnapshotTier>> {
 protected:
  SnapshotTiersTest() : server_(FlagsFor(tier(), directory_.path() + "/snapshots")) {
    const CacheGeometry geometry{.layers = kLayers,
                                 .slots = 2,
                                 .heads = kHeads,
                                 .key_dim = kKeyDim,
                                 .value_dim = kValueDim,
                                 .num_householder = householders(),
                                 .auxiliary_bytes = kAuxiliary};
    EXPECT_TRUE(client_->CreateCache({.name = "model", .geometry = geometry, .fingerprint = "a model"}).ok());
  }

  static std::int64_t householders() { return std::get<0>(GetParam()); }
  static SnapshotTier tier() { return std::get<1>(GetParam()); }

  /// Whether the snapshot is in the tier of the test, and in no faster one.
  bool IsThere(const std::string& key) const {
    const auto page = client_->ListSnapshots("model");
    if (!page.ok()) return false;
    for (const Snapshot& snapshot : page->snapshots) {
      if (snapshot.key == key) return !snapshot.tiers.empty() && snapshot.tiers.front() == tier();
    }
    return false;
  }

  test::TemporaryDirectory directory_;
  test::ServerProcess server_;
  absl::StatusOr<Client> client_ = Client::Connect(server_.unix_address());
};

TEST_P(SnapshotTiersTest, WhatFollowsARestoreHasTheBitsOfTheUninterruptedRun) {
  auto session = client_->OpenSession("model");
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_TRUE(session->AcquireSlots(2).ok());
  std::vector<Inputs> inputs;
  for (std::int64_t layer = 0; layer < kLayers; ++layer) inputs.emplace_back(householders(), 11 + layer);

  // The uninterrupted run, in three calls; it keeps a boundary of the first, two of the second (one of them where the
  // call ends, at no multiple of the chunk), and the slot as it then stands.
  const std::vector<std::int64_t> first = {0};
  const auto directive = [](std::int64_t layer, std::int64_t position, std::int64_t begin) {
    return SnapshotDirective{.sequence = 0,
                             .boundary = (position - begin + kChunk - 1) / kChunk,
                             .key = Key(absl::StrCat("kept", position)),
                             .auxiliary = Auxiliary(layer, position)};
  };
  std::vector<std::string> v_new(kLayers);
  for (std::size_t part = 0; part + 1 < kCalls.size(); ++part) {
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      PrefillCall call = inputs[layer].Call(layer, kCalls[part], kCalls[part + 1], first);
      std::vector<SnapshotDirective> directives;
      if (part == 0) directives = {directive(layer, 256, kCalls[part])};
      if (part == 1) directives = {directive(layer, 640, kCalls[part]), directive(layer, 700, kCalls[part])};
      call.snapshots = directives;
      const std::string window = Auxiliary(layer, kCalls[part + 1]);
      call.auxiliary_state = ConstTensor{DataType::kUInt8, {1, kAuxiliary}, window.data()};
      const auto result = session->Prefill(call);
      ASSERT_TRUE(result.ok()) << result.status();
      for (const SnapshotOutcome& outcome : result->snapshots) {
        EXPECT_EQ(outcome.result, layer + 1 < kLayers ? SnapshotResult::kPending : SnapshotResult::kStored)
            << outcome.message;
      }
      v_new[layer] += Bytes(result->v_new);
    }
    if (part == 1) {
      const auto saved = session->SaveSnapshots({{{.slot = 0, .key = Key("saved700")}}});
      ASSERT_TRUE(saved.ok()) << saved.status();
      EXPECT_EQ((*saved)[0].result, SnapshotResult::kStored) << (*saved)[0].message;
    }
  }
  const auto uninterrupted = session->ReadSlots(first);
  ASSERT_TRUE(uninterrupted.ok()) << uninterrupted.status();

  const std::vector<std::int64_t> second = {1};
  for (const auto& [key, position] : std::vector<std::pair<std::string, std::int64_t>>{
           {Key("kept256"), 256}, {Key("kept640"), 640}, {Key("kept700"), 700}, {Key("saved700"), 700}}) {
    SCOPED_TRACE(key);
    EXPECT_TRUE(test::Eventually([&, &wanted = key] { return IsThere(wanted); }));
    const auto restored = session->RestoreSnapshots({{{.key = key, .slots = second}}});
    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_THAT(*restored, ::testing::ElementsAre(position));
    const auto content = session->ReadSlots(second);
    ASSERT_TRUE(content.ok()) << content.status();
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      EXPECT_EQ(Bytes(content->auxiliary).substr(layer * kAuxiliary, kAuxiliary), Auxiliary(layer, position));
    }
    const std::int64_t row = householders() * kHeads * kValueDim * 2;  // bytes of a token's v_new
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      std::string continued;
      std::int64_t begin = position;
      for (const std::int64_t end : kCalls) {
        if (end <= begin) continue;
        PrefillCall call = inputs[layer].Call(layer, begin, end, second);
        const std::string window = Auxiliary(layer, end);
        call.auxiliary_state = ConstTensor{DataType::kUInt8, {1, kAuxiliary}, window.data()};
        const auto result = session->Prefill(call);
        ASSERT_TRUE(result.ok()) << result.status();
        continued += Bytes(result->v_new);
        begin = end;
      }
      EXPECT_TRUE(continued == v_new[layer].substr(position * row)) << "layer " << layer;
    }
    const auto after = session->ReadSlots(second);
    ASSERT_TRUE(after.ok()) << after.status();
    EXPECT_TRUE(Bytes(after->state) == Bytes(uninterrupted->state));
    EXPECT_EQ(Bytes(after->auxiliary), Bytes(uninterrupted->auxiliary));
    EXPECT_EQ(after->positions, uninterrupted->positions);
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, SnapshotTiersTest,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::Values(SnapshotTier::kDevice, SnapshotTier::kHost,
                                                              SnapshotTier::kDisk)),
                         [](const auto& param) {
                           const SnapshotTier tier = std::get<1>(param.param);
                           return absl::StrCat("M", std::get<0>(param.param), "_",
                                               tier == SnapshotTier::kDevice ? "device"
                                               : tier == SnapshotTier::kHost ? "host"
                                                                             : "disk");
                         });

}  // namespace
}  // namespace gdpcache
