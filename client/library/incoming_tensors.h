#ifndef GDPCACHE_CLIENT_LIBRARY_INCOMING_TENSORS_H_
#define GDPCACHE_CLIENT_LIBRARY_INCOMING_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gdpcache/tensor.h"
#include "gdpcache/v1/tensor.pb.h"
#include "grpcpp/support/byte_buffer.h"

namespace gdpcache::client {

/// The results that a call expects, and how much of each has arrived. Nothing a server sends is written outside them.
class IncomingTensors {
 public:
  /// Expects a tensor of this dtype and shape; `destination` has `size` bytes.
  void Expect(v1::TensorId id, std::string name, DataType dtype, std::vector<std::int64_t> shape,
              std::byte* destination, std::int64_t size);

  /// Where the next `size` bytes of a tensor go, which must start at `offset`. INTERNAL for anything unexpected.
  absl::StatusOr<std::byte*> Claim(v1::TensorId id, std::uint64_t offset, std::uint64_t size);

  /// All bytes of an expected tensor are where they were to be, without having been claimed.
  void Complete(v1::TensorId id);

  /// INTERNAL unless the header describes the expected tensor, or is absent where none is expected.
  absl::Status CheckHeader(v1::TensorId id, bool present, const v1::Tensor& header) const;

  /// INTERNAL unless every byte has arrived.
  absl::Status CheckComplete() const;

 private:
  struct Expected {
    v1::TensorId id;
    std::string name;
    DataType dtype;
    std::vector<std::int64_t> shape;
    std::byte* destination;
    std::int64_t size;
    std::int64_t received = 0;
  };

  const Expected* Find(v1::TensorId id) const;

  std::vector<Expected> tensors_;
};

/// Takes a frame with `data` into `tensors`, copying its payload once. False, and nothing done, when the frame holds
/// something else or is encoded in another order than usual: then protobuf has to parse it.
absl::StatusOr<bool> TakeDataFrame(grpc::ByteBuffer& frame, IncomingTensors& tensors);

/// The same for a frame that protobuf has parsed.
absl::Status TakeData(const v1::TensorData& data, IncomingTensors& tensors);

/// Parses a whole message. INTERNAL when it is malformed.
absl::Status ParseMessage(grpc::ByteBuffer& buffer, google::protobuf::MessageLite* message);

}  // namespace gdpcache::client

#endif  // GDPCACHE_CLIENT_LIBRARY_INCOMING_TENSORS_H_
