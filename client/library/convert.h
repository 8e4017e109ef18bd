#ifndef GDPCACHE_CLIENT_LIBRARY_CONVERT_H_
#define GDPCACHE_CLIENT_LIBRARY_CONVERT_H_

#include "absl/types/span.h"
#include "gdpcache/cache.h"
#include "gdpcache/prefill.h"
#include "gdpcache/tensor.h"
#include "gdpcache/v1/cache.pb.h"
#include "gdpcache/v1/prefill.pb.h"
#include "gdpcache/v1/session.pb.h"
#include "gdpcache/v1/tensor.pb.h"

/// Between the library's types and the messages of the contract.
namespace gdpcache::client {

v1::DataType ToProto(DataType dtype);
void ToProto(const CacheGeometry& geometry, v1::CacheGeometry* message);

/// dtype and shape, without data.
void ToProto(DataType dtype, absl::Span<const std::int64_t> shape, v1::Tensor* message);

/// Everything but the tensors' data.
void ToProto(const PrefillCall& call, v1::PrefillRequest* message);

CacheGeometry FromProto(const v1::CacheGeometry& message);
CacheInfo FromProto(const v1::Cache& message);
ServerInfo FromProto(const v1::GetServerInfoResponse& message);
SlotList FromProto(const v1::ListSlotsResponse& message);
PrefillTiming FromProto(const v1::PrefillTiming& message);

}  // namespace gdpcache::client

#endif  // GDPCACHE_CLIENT_LIBRARY_CONVERT_H_
