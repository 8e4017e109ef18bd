#ifndef GDPCACHE_CLIENT_COMMAND_SHARED_TENSORS_H_
#define GDPCACHE_CLIENT_COMMAND_SHARED_TENSORS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/command/recorded_batch.h"
#include "gdpcache/prefill.h"
#include "gdpcache/session.h"
#include "gdpcache/shared_memory.h"

namespace gdpcache::command {

/// A recorded call's tensors in memory shared with the server.
class SharedTensors {
 public:
  /// Copies the inputs of `call`, a call of `batch`, into such memory, and gives its results places there.
  static absl::StatusOr<SharedTensors> Place(Session& session, const RecordedBatch& batch, PrefillCall& call);

  /// Copies the results out, to where they would be had they travelled.
  absl::Status TakeResults(PrefillResult& result) const;

 private:
  SharedTensors(SharedMemory memory, const PrefillOutputs& outputs) : memory_(std::move(memory)), outputs_(outputs) {}

  SharedMemory memory_;
  PrefillOutputs outputs_;
};

}  // namespace gdpcache::command

#endif  // GDPCACHE_CLIENT_COMMAND_SHARED_TENSORS_H_
