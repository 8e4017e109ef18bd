#ifndef GDPCACHE_TESTS_INTEGRATION_SNAPSHOT_SUPPORT_H_
#define GDPCACHE_TESTS_INTEGRATION_SNAPSHOT_SUPPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gdpcache/client.h"
#include "gtest/gtest.h"

/// A small model and its snapshots, through the client library.
namespace gdpcache::test {

/// A key of 16 bytes for each number, ascending with it.
inline std::string Key(int number) {
  std::string digits = std::to_string(number);
  return std::string(16 - digits.size(), '0') + digits;
}

/// A cache, and what an engine would do with it. Everything must succeed unless it returns a status.
class SnapshotModel {
 public:
  static constexpr std::int64_t kChunk = 16;  // expanded tokens, and tokens between boundaries

  explicit SnapshotModel(const std::string& address, const std::string& fingerprint = "model@1", std::int64_t heads = 2)
      : client_(Client::Connect(address, {.timeout = absl::Seconds(60)})) {
    EXPECT_TRUE(client_.ok()) << client_.status();
    spec_.name = "model";
    spec_.fingerprint = fingerprint;
    spec_.geometry = {.layers = 2, .slots = 8, .heads = heads, .key_dim = 8, .value_dim = 12};
    spec_.geometry.num_householder = 2;
    spec_.geometry.auxiliary_bytes = 5;
    const absl::StatusOr<CreatedCache> created = client_->CreateCache(spec_);
    EXPECT_TRUE(created.ok()) << created.status();
    NewSession();
  }

  Client& client() { return *client_; }
  Session& session() { return *session_; }

  void NewSession() { session_.emplace(client_->OpenSession("model").value()); }
  void EndSession() { session_.reset(); }

  std::int64_t AcquireSlot() { return session_->AcquireSlots(1).value().front(); }

  /// Tokens [begin, end) of a prompt in one layer.
  absl::StatusOr<PrefillResult> PrefillLayer(std::int64_t layer, std::int64_t slot, int prompt, std::int64_t begin,
                                             std::int64_t end, const std::vector<SnapshotDirective>& directives = {},
                                             Transport transport = Transport::kAuto) {
    const CacheGeometry& geometry = spec_.geometry;
    const std::int64_t rows = (end - begin) * geometry.num_householder;
    const std::vector<float> k = Values(prompt, 10 * layer + 1, begin, rows, geometry.heads * geometry.key_dim);
    const std::vector<float> w = Values(prompt, 10 * layer + 2, begin, rows, geometry.heads * geometry.key_dim);
    const std::vector<float> u = Values(prompt, 10 * layer + 3, begin, rows, geometry.heads * geometry.value_dim);
    const std::vector<std::int64_t> slots = {slot};
    const std::vector<std::int64_t> expected = {begin};
    const std::string auxiliary = Auxiliary(prompt, layer, end);
    std::vector<SnapshotDirective> here = directives;
    for (SnapshotDirective& directive : here) {
      if (directive.auxiliary.empty())
        directive.auxiliary = Auxiliary(prompt, layer, begin + directive.boundary * kChunk);
    }
    PrefillCall call;
    call.layer = layer;
    call.k = {DataType::kFloat32, {rows, geometry.heads, geometry.key_dim}, k.data()};
    call.w = {DataType::kFloat32, {rows, geometry.heads, geometry.key_dim}, w.data()};
    call.u = {DataType::kFloat32, {rows, geometry.heads, geometry.value_dim}, u.data()};
    call.chunk_size = kChunk;
    call.state_indices = slots;
    call.expected_positions = expected;
    call.auxiliary_state = ConstTensor{DataType::kUInt8, {1, geometry.auxiliary_bytes}, auxiliary.data()};
    call.snapshots = here;
    call.transport = transport;
    return session_->Prefill(call);
  }

  /// The same in every layer; the last layer's outcomes.
  std::vector<SnapshotOutcome> Prefill(std::int64_t slot, int prompt, std::int64_t begin, std::int64_t end,
                                       const std::vector<SnapshotDirective>& directives = {},
                                       Transport transport = Transport::kAuto) {
    std::vector<SnapshotOutcome> outcomes;
    for (std::int64_t layer = 0; layer < spec_.geometry.layers; ++layer) {
      const absl::StatusOr<PrefillResult> result = PrefillLayer(layer, slot, prompt, begin, end, directives, transport);
      EXPECT_TRUE(result.ok()) << result.status();
      if (result.ok()) outcomes = result->snapshots;
    }
    return outcomes;
  }

  /// Fills a slot with what follows from `number`, at position `number`.
  static absl::Status Fill(Session& session, std::int64_t slot, int number) {
    const CacheGeometry& geometry = session.geometry();
    const Contents contents = ContentsOf(geometry, number);
    const std::vector<std::int64_t> slots = {slot};
    const std::vector<std::int64_t> positions(static_cast<std::size_t>(geometry.layers), number);
    SlotUpdate update;
    update.slots = slots;
    update.positions = positions;
    update.state = {DataType::kFloat32,
                    {1, geometry.layers, geometry.heads, geometry.key_dim, geometry.value_dim},
                    contents.state.data()};
    update.auxiliary =
        ConstTensor{DataType::kUInt8, {1, geometry.layers, geometry.auxiliary_bytes}, contents.auxiliary.data()};
    return session.WriteSlots(update);
  }
  void Fill(std::int64_t slot, int number) {
    const absl::Status status = Fill(*session_, slot, number);
    EXPECT_TRUE(status.ok()) << status;
  }

  /// Whether a slot holds what Fill puts there.
  bool IsFilled(std::int64_t slot, int number) { return State(slot) == StateOf(number); }

  SnapshotOutcome Save(std::int64_t slot, const std::string& key) {
    const absl::StatusOr<std::vector<SnapshotOutcome>> outcomes = session_->SaveSnapshots({{slot, key}});
    EXPECT_TRUE(outcomes.ok()) << outcomes.status();
    return outcomes.ok() ? outcomes->front() : SnapshotOutcome();
  }

  absl::StatusOr<std::vector<std::int64_t>> Restore(const std::string& key, std::vector<std::int64_t> slots,
                                                    const std::string& pin = "") {
    return session_->RestoreSnapshots({{.key = key, .slots = std::move(slots)}}, pin);
  }

  /// All of a slot: states, auxiliary bytes, positions.
  std::string State(std::int64_t slot) {
    const absl::StatusOr<SlotContents> contents = session_->ReadSlots({slot});
    EXPECT_TRUE(contents.ok()) << contents.status();
    if (!contents.ok()) return "";
    std::string all(reinterpret_cast<const char*>(contents->state.data()),
                    static_cast<std::size_t>(contents->state.byte_size()));
    all.append(reinterpret_cast<const char*>(contents->auxiliary.data()),
               static_cast<std::size_t>(contents->auxiliary.byte_size()));
    for (const std::int64_t position : contents->positions) absl::StrAppend(&all, " ", position);
    return all;
  }

  std::vector<Snapshot> List() {
    const absl::StatusOr<SnapshotPage> page = client_->ListSnapshots("model", 10'000);
    EXPECT_TRUE(page.ok()) << page.status();
    return page.ok() ? page->snapshots : std::vector<Snapshot>();
  }

  /// Whether it can be found, without using it.
  bool Has(const std::string& key) {
    for (const Snapshot& snapshot : List()) {
      if (snapshot.key == key) return true;
    }
    return false;
  }

 private:
  struct Contents {
    std::vector<float> state;
    std::string auxiliary;
  };

  static Contents ContentsOf(const CacheGeometry& geometry, int number) {
    Contents contents;
    const std::int64_t elements = geometry.layers * geometry.heads * geometry.key_dim * geometry.value_dim;
    for (std::int64_t i = 0; i < elements; ++i) {
      contents.state.push_back(static_cast<float>(number) + static_cast<float>(i) / 4'096);
    }
    for (std::int64_t i = 0; i < geometry.layers * geometry.auxiliary_bytes; ++i) {
      contents.auxiliary.push_back(static_cast<char>(number + 3 * i));
    }
    return contents;
  }

  std::string StateOf(int number) const {
    const Contents contents = ContentsOf(spec_.geometry, number);
    std::string all(reinterpret_cast<const char*>(contents.state.data()), contents.state.size() * sizeof(float));
    all += contents.auxiliary;
    for (std::int64_t layer = 0; layer < spec_.geometry.layers; ++layer) absl::StrAppend(&all, " ", number);
    return all;
  }

  std::string Auxiliary(int prompt, std::int64_t layer, std::int64_t position) const {
    return std::string(static_cast<std::size_t>(spec_.geometry.auxiliary_bytes),
                       static_cast<char>(prompt + 5 * layer + position));
  }

  /// Of rows behind token `begin`: the same numbers for a row, whatever call it comes in.
  std::vector<float> Values(int prompt, std::int64_t tensor, std::int64_t begin, std::int64_t rows,
                            std::int64_t columns) const {
    std::vector<float> values;
    values.reserve(static_cast<std::size_t>(rows * columns));
    const std::int64_t first = begin * spec_.geometry.num_householder;
    for (std::int64_t i = first * columns; i < (first + rows) * columns; ++i) {
      std::uint64_t hash = static_cast<std::uint64_t>(i * 1'000 + tensor * 10 + prompt) * 0x9E3779B97F4A7C15;
      hash ^= hash >> 31;
      values.push_back(static_cast<float>(hash % 2'001) / 4'000 - 0.25F);
    }
    return values;
  }

  absl::StatusOr<Client> client_;
  CacheSpec spec_;
  std::optional<Session> session_;
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_INTEGRATION_SNAPSHOT_SUPPORT_H_
