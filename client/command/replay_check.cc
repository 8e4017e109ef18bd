#include "client/command/replay_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/command/exact_recurrence.h"
#include "client/command/text.h"

namespace gdpcache::command {
namespace {

/// A server may be this much worse than the recorded kernel, or within this error of exact, whichever is more.
constexpr double kSlack = 1.1;
constexpr double kSmallestLimit = 1e-5;

/// The states of the slots that sequences name, in the sequences' order: recordings tell the error of those.
std::vector<double> NamedSlots(const RecordedBatch& batch, const std::vector<double>& state) {
  const std::int64_t size = batch.heads * batch.key_dim * batch.value_dim;
  std::vector<double> named;
  for (const std::int64_t slot : batch.state_indices) {
    if (slot >= 0) named.insert(named.end(), state.begin() + slot * size, state.begin() + (slot + 1) * size);
  }
  return named;
}

/// The error that the recording tells of its kernel sets the limit; where it tells none, the error found here.
TensorCheck Compare(const std::vector<double>& server, const std::vector<double>& recorded,
                    const std::vector<double>& exact, std::optional<double> told_error) {
  TensorCheck check;
  check.server_vs_exact = RelativeError(server, exact);
  check.recorded_vs_exact = RelativeError(recorded, exact);
  check.server_vs_recorded = RelativeError(server, recorded);
  check.limit = std::max(kSlack * told_error.value_or(check.recorded_vs_exact), kSmallestLimit);
  check.pass = check.server_vs_exact <= check.limit;  // false for NaN
  return check;
}

absl::StatusOr<TensorCheck> CheckTensor(const RecordedBatch& batch, const char* name, const ConstTensor& server,
                                        const std::optional<ConstTensor>& recorded, const std::vector<double>& exact,
                                        std::optional<double> told_error) {
  if (!recorded) {
    return absl::InvalidArgumentError(absl::StrCat(batch.path, ": there is no tensor out.", name, " to check against"));
  }
  TensorCheck check = Compare(ToDoubles(server), ToDoubles(*recorded), exact, told_error);
  check.name = name;
  check.shape = recorded->shape;
  return check;
}

/// The slots that sequences name. The others are compared bit for bit.
absl::StatusOr<TensorCheck> CheckState(const RecordedBatch& batch, const OwnedTensor& state,
                                       const std::vector<double>& exact) {
  if (!batch.out_state) {
    return absl::InvalidArgumentError(absl::StrCat(batch.path, ": there is no tensor out.state to check against"));
  }
  TensorCheck check =
      Compare(NamedSlots(batch, ToDoubles(state.view())), NamedSlots(batch, ToDoubles(*batch.out_state)),
              NamedSlots(batch, exact), batch.error_state);
  check.name = "state";
  check.shape = batch.out_state->shape;
  return check;
}

/// Slots that the call does not change: named by no sequence, or by one without tokens that starts from the slot.
IdentityCheck CheckUntouchedSlots(const RecordedBatch& batch, const OwnedTensor& state) {
  IdentityCheck check{"slots left alone, before and after"};
  const std::int64_t slots = batch.state_before->shape[0];
  std::vector<bool> touched(static_cast<std::size_t>(slots));
  for (std::size_t n = 0; n < batch.state_indices.size(); ++n) {
    const bool advances = batch.begins[n + 1] > batch.begins[n] || batch.initial_state_source != InitialState::kSlot;
    if (batch.state_indices[n] >= 0 && advances) touched[static_cast<std::size_t>(batch.state_indices[n])] = true;
  }
  const auto* before = static_cast<const std::byte*>(batch.state_before->data);
  const std::int64_t slot_bytes = state.byte_size() / slots;
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    if (touched[static_cast<std::size_t>(slot)]) continue;
    ++check.checked;
    const std::int64_t offset = slot * slot_bytes;
    if (std::memcmp(before + offset, state.data() + offset, static_cast<std::size_t>(slot_bytes)) != 0) {
      ++check.different;
    }
  }
  return check;
}

/// Where slots are float32, a sequence's slot and its final state are the same bytes.
IdentityCheck CheckFinalStates(const RecordedBatch& batch, const ReplayResults& results) {
  IdentityCheck check{"slots advanced, slot and final state"};
  const OwnedTensor& final_state = results.prefill.final_state;
  if (results.state.dtype() != DataType::kFloat32 || final_state.data() == nullptr) return check;
  const std::int64_t slot_bytes = results.state.byte_size() / batch.state_before->shape[0];
  for (std::size_t n = 0; n < batch.state_indices.size(); ++n) {
    if (batch.state_indices[n] < 0) continue;
    ++check.checked;
    if (std::memcmp(final_state.data() + static_cast<std::int64_t>(n) * slot_bytes,
                    results.state.data() + batch.state_indices[n] * slot_bytes,
                    static_cast<std::size_t>(slot_bytes)) != 0) {
      ++check.different;
    }
  }
  return check;
}

const char* Verdict(bool pass) { return pass ? "pass" : "FAIL"; }

}  // namespace

double RelativeError(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  if (difference == 0) return 0;
  return norm == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(difference / norm);
}

absl::StatusOr<CheckReport> CheckResults(const RecordedBatch& batch, const ReplayResults& results) {
  const ExactResults exact = ComputeExactly(batch);
  CheckReport report;
  absl::Status status;
  const auto add = [&](absl::StatusOr<TensorCheck> check) {
    status.Update(check.status());
    if (check.ok()) report.tensors.push_back(*std::move(check));
  };
  add(CheckTensor(batch, "h", results.prefill.h.view(), batch.out_h, exact.h, batch.error_h));
  if (batch.save_new_value) {
    add(CheckTensor(batch, "v_new", results.prefill.v_new.view(), batch.out_v_new, exact.v_new, batch.error_v_new));
  }
  if (batch.state_before) {
    add(CheckState(batch, results.state, exact.state));
    report.identities.push_back(CheckUntouchedSlots(batch, results.state));
    report.identities.push_back(CheckFinalStates(batch, results));
  }
  // Recordings of calls that store into slots have no final state of their own.
  if (batch.output_final_state && (batch.state_indices.empty() || batch.out_final_state)) {
    add(CheckTensor(batch, "final_state", results.prefill.final_state.view(), batch.out_final_state, exact.final_state,
                    batch.error_state));
  }
  if (!status.ok()) return status;
  report.pass =
      std::all_of(report.tensors.begin(), report.tensors.end(), [](const auto& check) { return check.pass; }) &&
      std::all_of(report.identities.begin(), report.identities.end(),
                  [](const auto& check) { return check.different == 0; });
  return report;
}

void PrintReport(const CheckReport& report, std::ostream& out) {
  out << "relative errors:\n";
  Table table({"TENSOR", "SHAPE", "SERVER/EXACT", "RECORDED/EXACT", "SERVER/RECORDED", "LIMIT", "RESULT"});
  for (const TensorCheck& check : report.tensors) {
    table.Add({check.name, FormatShape(check.shape), absl::StrFormat("%.3e", check.server_vs_exact),
               absl::StrFormat("%.3e", check.recorded_vs_exact), absl::StrFormat("%.3e", check.server_vs_recorded),
               absl::StrFormat("%.3e", check.limit), Verdict(check.pass)});
  }
  table.Print(out);
  if (!report.identities.empty()) {
    out << "\n";
    Table identities({"BIT FOR BIT", "COMPARED", "DIFFERENT", "RESULT"});
    for (const IdentityCheck& check : report.identities) {
      identities.Add(
          {check.name, absl::StrCat(check.checked), absl::StrCat(check.different), Verdict(check.different == 0)});
    }
    identities.Print(out);
  }
  out << "\n" << (report.pass ? "PASS" : "FAIL") << "\n";
}

nlohmann::json ToJson(const CheckReport& report) {
  nlohmann::json tensors = nlohmann::json::array();
  for (const TensorCheck& check : report.tensors) {
    tensors.push_back({{"name", check.name},
                       {"shape", check.shape},
                       {"server_vs_exact", check.server_vs_exact},
                       {"recorded_vs_exact", check.recorded_vs_exact},
                       {"server_vs_recorded", check.server_vs_recorded},
                       {"limit", check.limit},
                       {"pass", check.pass}});
  }
  nlohmann::json identities = nlohmann::json::array();
  for (const IdentityCheck& check : report.identities) {
    identities.push_back({{"name", check.name},
                          {"compared", check.checked},
                          {"different", check.different},
                          {"pass", check.different == 0}});
  }
  return {{"tensors", std::move(tensors)}, {"identities", std::move(identities)}, {"pass", report.pass}};
}

}  // namespace gdpcache::command
