#ifndef GDPCACHE_CLIENT_COMMAND_REPLAY_RUN_H_
#define GDPCACHE_CLIENT_COMMAND_REPLAY_RUN_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/command/recorded_batch.h"
#include "gdpcache/client.h"

namespace gdpcache::command {

/// What the server made of a recorded batch.
struct ReplayResults {
  PrefillResult prefill;  // h always; v_new and final_state as the recording asks
  OwnedTensor state;      // [S, H, K, V] in the slot order of the file; empty without state.before
};

/// Runs the batch through the server in a temporary cache of the file's geometry, which goes away whatever happens.
absl::StatusOr<ReplayResults> RunRecordedBatch(const Client& client, const RecordedBatch& batch, Transport transport);

/// Stores h, v_new, state and final_state, those there are, as a safetensors file.
absl::Status WriteResults(const std::string& path, const RecordedBatch& batch, const ReplayResults& results);

}  // namespace gdpcache::command

#endif  // GDPCACHE_CLIENT_COMMAND_REPLAY_RUN_H_
