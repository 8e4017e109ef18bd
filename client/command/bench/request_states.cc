#include "client/command/bench/request_states.h"

#include <cstddef>

#include "client/command/bench/memory_copy.h"
#include "client/command/bench/statistics.h"

namespace gdpcache::bench {
namespace {

constexpr std::int64_t kPosition = 64;  // tokens absorbed

}  // namespace

absl::StatusOr<RequestStates> RequestStates::Create(const Run& run) {
  absl::StatusOr<Lease> lease = run.MakeLease(run.Geometry(run.options().model.layers, 2));
  if (!lease.ok()) return lease.status();
  std::vector<float> values(static_cast<std::size_t>(SlotBytes(run.options().model)) / sizeof(float));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0x1p-10F * static_cast<float>(i % 1021);
  RequestStates states(*std::move(lease), std::move(values));
  if (absl::Status status = states.Write(); !status.ok()) return status;
  return states;
}

std::vector<std::int64_t> RequestStates::Shape() const {
  const CacheGeometry& model = lease_.session.geometry();
  return {1, model.layers, model.heads, model.key_dim, model.value_dim};
}

absl::Status RequestStates::Read() {
  const std::vector<std::int64_t> slots = {slot()};
  SlotOutputs outputs;
  outputs.state = Tensor{DataType::kFloat32, Shape(), values_.data()};
  return lease_.session.ReadSlots(slots, {}, outputs).status();
}

absl::Status RequestStates::Write() {
  const std::vector<std::int64_t> slots = {slot()};
  const std::vector<std::int64_t> positions(static_cast<std::size_t>(lease_.session.geometry().layers), kPosition);
  SlotUpdate update;
  update.slots = slots;
  update.positions = positions;
  update.state = {DataType::kFloat32, Shape(), values_.data()};
  return lease_.session.WriteSlots(update);
}

absl::Status MeasureCopying(Run& run, RequestStates& states, const std::string& name, TimedCall copy) {
  run.Begin(name);
  MemoryCopy memory(states.bytes());
  const auto empty = [&] { return Timed([&] { return states.session().KeepAlive().status(); }); };
  const auto plain = [&]() -> absl::StatusOr<absl::Duration> { return memory.Run(); };
  const absl::StatusOr<std::vector<std::vector<double>>> samples = MeasureInTurn({empty, plain, copy}, run.seconds());
  if (!samples.ok()) return samples.status();
  run.Add(Latency(name, (*samples)[2], {{"memory copy", Median((*samples)[1])}, {"empty RPC", Median((*samples)[0])}},
                  states.bytes()));
  return absl::OkStatus();
}

}  // namespace gdpcache::bench
