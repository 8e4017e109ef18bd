#include "kernels/loss_reporting_backend.h"

#include <type_traits>
#include <utility>

namespace gdpcache::kernels {

template <typename Result>
Result LossReportingBackend::Reported(Result result) const {
  const auto report = [this](const absl::Status& status) {
    if (absl::IsUnavailable(status)) on_lost_(status);
  };
  if constexpr (std::is_same_v<Result, absl::Status>) {
    report(result);
  } else {
    report(result.status());
  }
  return result;
}

absl::Status LossReportingBackend::Waited(absl::Status status) const {
  return Reported(status.ok() ? std::move(status) : absl::UnavailableError(status.message()));
}

absl::StatusOr<Buffer> LossReportingBackend::Allocate(std::size_t size, MemoryKind kind) {
  return Reported(real_.Allocate(size, kind));
}

absl::StatusOr<std::unique_ptr<Stream>> LossReportingBackend::CreateStream() { return Reported(real_.CreateStream()); }

absl::Status LossReportingBackend::RunRecurrence(const RecurrenceShape& shape, absl::Span<const Sequence> sequences,
                                                 Stream& stream) {
  return Reported(real_.RunRecurrence(shape, sequences, stream));
}

absl::Status LossReportingBackend::CopyStates(const RecurrenceShape& shape, absl::Span<const StateCopy> copies,
                                              Stream& stream) {
  return Reported(real_.CopyStates(shape, copies, stream));
}

absl::Status LossReportingBackend::CopyBytes(absl::Span<const ByteCopy> copies, Stream& stream) {
  return Reported(real_.CopyBytes(copies, stream));
}

absl::Status LossReportingBackend::CopyBytesAhead(absl::Span<const ByteCopy> copies, Stream& stream) {
  return Reported(real_.CopyBytesAhead(copies, stream));
}

absl::Status LossReportingBackend::CopyBytesAside(absl::Span<const ByteCopy> copies, Stream& stream) {
  return Reported(real_.CopyBytesAside(copies, stream));
}

absl::Status LossReportingBackend::ZeroBytes(absl::Span<const ByteRange> ranges, Stream& stream) {
  return Reported(real_.ZeroBytes(ranges, stream));
}

absl::StatusOr<std::int64_t> LossReportingBackend::FindNonFinite(absl::Span<const FiniteCheck> ranges, Stream& stream) {
  return Reported(real_.FindNonFinite(ranges, stream));
}

absl::Status LossReportingBackend::Synchronize(Stream& stream) { return Waited(real_.Synchronize(stream)); }

absl::StatusOr<std::unique_ptr<Event>> LossReportingBackend::Record(Stream& stream) {
  return Reported(real_.Record(stream));
}

absl::Status LossReportingBackend::Wait(Event& event) { return Waited(real_.Wait(event)); }

absl::StatusOr<bool> LossReportingBackend::HasHappened(Event& event) {
  absl::StatusOr<bool> happened = real_.HasHappened(event);
  if (!happened.ok()) return Waited(happened.status());
  return happened;
}

absl::Status LossReportingBackend::Await(Event& event, Stream& stream) { return Reported(real_.Await(event, stream)); }

}  // namespace gdpcache::kernels
