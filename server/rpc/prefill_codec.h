#ifndef GDPCACHE_SERVER_RPC_PREFILL_CODEC_H_
#define GDPCACHE_SERVER_RPC_PREFILL_CODEC_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gdpcache/v1/prefill.pb.h"
#include "gdpcache/v1/tensor.pb.h"
#include "server/engine/prefill_plan.h"
#include "server/engine/prefill_request.h"
#include "server/engine/prefill_result.h"
#include "server/engine/tensor_argument.h"

namespace gdpcache::rpc {

/// A tensor of a streaming call as the engine takes it; points into `tensor`. INVALID_ARGUMENT for a dtype that does
/// not exist and for shared memory.
absl::StatusOr<engine::TensorArgument> DecodeTensor(absl::string_view field, bool present, const v1::Tensor& tensor);

v1::DataType EncodeDataType(engine::ElementType type);

/// The request as the engine takes it, but for what is in shared memory (FindSharedMemory); points into `request`.
/// Checks only what gets lost on the way: enum values and the length of request_id; and that a stream has no shared
/// memory.
absl::StatusOr<engine::PrefillRequest> DecodePrefill(const v1::PrefillRequest& request,
                                                     engine::TensorTransport transport);

/// Everything about the results but their bytes.
void DescribeResults(const v1::PrefillRequest& request, const engine::PrefillPlan& plan, v1::PrefillResponse& response);

void EncodeResult(const engine::PrefillResult& result, v1::PrefillResponse& response);

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_PREFILL_CODEC_H_
