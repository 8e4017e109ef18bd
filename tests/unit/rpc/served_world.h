#ifndef GDPCACHE_TESTS_UNIT_RPC_SERVED_WORLD_H_
#define GDPCACHE_TESTS_UNIT_RPC_SERVED_WORLD_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gdpcache/v1/state_cache.grpc.pb.h"
#include "server/rpc/server.h"
#include "tests/unit/engine/engine_world.h"

/// The world of the engine's tests behind a gRPC server on the loopback interface, and the problems of tests/reference
/// as requests of an ordinary generated client.
namespace gdpcache::rpc {

struct ServedWorld : engine::World {
  explicit ServedWorld(const engine::EngineOptions& options = {});
  ~ServedWorld();

  /// A client whose transport takes 64 KiB of an answer that nobody reads.
  std::unique_ptr<v1::StateCache::Stub> StubWithSmallWindow() const;

  ServerMetrics metrics;
  std::unique_ptr<Server> server;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::StateCache::Stub> stub;
};

/// The problem as a ragged call with all boundaries, its tensors inline.
v1::PrefillRequest ToProto(const testing::Problem& problem, const std::string& session);

/// A tensor on its way.
struct Upload {
  v1::TensorId id = v1::TENSOR_ID_UNSPECIFIED;
  const std::string* bytes = nullptr;
  std::size_t sent = 0;
};

/// The bytes that follow `inline_request` when it is streamed; they stay where they are.
std::vector<Upload> UploadsOf(const v1::PrefillRequest& inline_request);

/// The next frame of an upload.
v1::PrefillFrame NextFrame(Upload& upload, std::size_t most);

/// What a streamed prefill answered.
struct Streamed {
  grpc::Status status;
  bool responded = false;
  v1::PrefillResponse response;  // with the data in its tensors
};

using Stream = grpc::ClientReaderWriter<v1::PrefillFrame, v1::PrefillFrame>;

/// Reads until the end and finishes. Fails the running test if a piece is out of place.
Streamed ReadAll(Stream& stream);

/// Streams the request in frames of random size and order, each tensor at most `lead` of itself ahead of another, while
/// it reads the answer.
Streamed RunStream(v1::StateCache::Stub& stub, const v1::PrefillRequest& inline_request, std::uint64_t seed,
                   double lead = 0.3);

/// The request without its tensors' data.
v1::PrefillFrame HeaderOf(const v1::PrefillRequest& inline_request);

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_TESTS_UNIT_RPC_SERVED_WORLD_H_
