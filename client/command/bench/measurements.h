#ifndef GDPCACHE_CLIENT_COMMAND_BENCH_MEASUREMENTS_H_
#define GDPCACHE_CLIENT_COMMAND_BENCH_MEASUREMENTS_H_

#include "absl/status/status.h"
#include "client/command/bench/run.h"

/// The groups of measurements. Each measures what the options pick of it and adds it to the run.
namespace gdpcache::bench {

/// kernel/TOKENS and prefill/TOKENS/TRANSPORT: one sequence through one layer, v_new and every boundary state wanted,
/// against the kernel and an empty RPC (in shared memory, and one token) or a pump of as many bytes.
///
/// The kernel's time is what the server tells of the calls in shared memory, where it runs with nothing beside it, else
/// of the others. So it needs neither the kernels nor the device in this process, and is the server's very own.
absl::Status MeasurePrefills(Run& run);

/// decode/CLIENTS: one-token calls of several clients at once on one cache, against one client alone; that one against
/// one that makes empty calls.
absl::Status MeasureDecodes(Run& run);

/// slots/...: a request's states of all layers copied on the server, read and written, against a copy of as many bytes
/// in memory and an empty RPC, or a pump of them.
absl::Status MeasureSlots(Run& run);

/// snapshots/...: a request's states saved, found under one of 1,000 keys, and restored from each tier.
absl::Status MeasureSnapshots(Run& run);

}  // namespace gdpcache::bench

#endif  // GDPCACHE_CLIENT_COMMAND_BENCH_MEASUREMENTS_H_
