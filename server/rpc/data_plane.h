#ifndef GDPCACHE_SERVER_RPC_DATA_PLANE_H_
#define GDPCACHE_SERVER_RPC_DATA_PLANE_H_

#include <grpcpp/grpcpp.h>

#include "gdpcache/v1/prefill.pb.h"
#include "server/cache/catalog.h"
#include "server/cache/clock.h"
#include "server/cache/snapshots/snapshot_store.h"
#include "server/engine/engine.h"
#include "server/rpc/access/access_control.h"
#include "server/rpc/call_log.h"
#include "server/rpc/detached_calls.h"
#include "server/rpc/metrics/prefill_metrics.h"
#include "server/rpc/snapshot_uploads.h"

/// The calls that carry tensors. Each function takes over one RPC and returns its reactor, which deletes itself when
/// the RPC is over. The streams come raw: their frames are read from the transport's slices and written from the
/// results' own memory, and yet they are the protocol's messages, so that clients need to know nothing of this.
namespace gdpcache::rpc {

/// What the calls work on; outlives them, and the server that they belong to.
struct DataPlane {
  cache::Catalog& catalog;
  const cache::Clock& clock;
  const engine::Engine& engine;
  cache::SnapshotStore& snapshots;
  SnapshotUploads& uploads;
  DetachedCalls& detached;
  const AccessControl& access;
  CallLog& log;
  PrefillMetrics& metrics;
};

grpc::ServerUnaryReactor* HandlePrefill(const DataPlane& plane, grpc::CallbackServerContext* context,
                                        const v1::PrefillRequest* request, v1::PrefillResponse* response);

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* HandlePrefillStream(const DataPlane& plane,
                                                                                 grpc::CallbackServerContext* context);

/// `request` holds a ReadSlotsRequest; it may go when this returns.
grpc::ServerWriteReactor<grpc::ByteBuffer>* HandleReadSlots(const DataPlane& plane,
                                                            grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer* request);

/// `response` receives a WriteSlotsResponse.
grpc::ServerReadReactor<grpc::ByteBuffer>* HandleWriteSlots(const DataPlane& plane,
                                                            grpc::CallbackServerContext* context,
                                                            grpc::ByteBuffer* response);

/// `request` holds a ReadSnapshotRequest; it may go when this returns.
grpc::ServerWriteReactor<grpc::ByteBuffer>* HandleReadSnapshot(const DataPlane& plane,
                                                               grpc::CallbackServerContext* context,
                                                               const grpc::ByteBuffer* request);

/// `response` receives a WriteSnapshotResponse.
grpc::ServerReadReactor<grpc::ByteBuffer>* HandleWriteSnapshot(const DataPlane& plane,
                                                               grpc::CallbackServerContext* context,
                                                               grpc::ByteBuffer* response);

/// `request` holds a WatchSnapshotsRequest; it may go when this returns.
grpc::ServerWriteReactor<grpc::ByteBuffer>* HandleWatchSnapshots(const DataPlane& plane,
                                                                 grpc::CallbackServerContext* context,
                                                                 const grpc::ByteBuffer* request);

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_DATA_PLANE_H_
