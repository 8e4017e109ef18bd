// A client to be killed: streams 300 MB of a prefill, in a session of its parent's, and prints "half" when half of them
// are sent and results have come back.
//
//   endless_client ADDRESS SESSION SLOT

#include <grpcpp/client_context.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <future>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "gdpcache/v1/state_cache.grpc.pb.h"
#include "tests/support/server_process.h"

namespace {

constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kDim = 64;
constexpr std::int64_t kRowBytes = kHeads * kDim * 2;
constexpr std::int64_t kFrameRows = 512;
constexpr std::int64_t kFrames = 382;  // of each tensor: 300 MB
constexpr std::array kTensors = {gdpcache::v1::TENSOR_ID_K, gdpcache::v1::TENSOR_ID_W, gdpcache::v1::TENSOR_ID_U};

}  // namespace

int main(int argc, char** argv) {
  std::int64_t slot = 0;
  if (argc != 4 || !absl::SimpleAtoi(argv[3], &slot)) return 2;
  const auto stub = gdpcache::v1::StateCache::NewStub(gdpcache::test::Connect(argv[1]));
  grpc::ClientContext context;
  const auto stream = stub->PrefillStream(&context);
  gdpcache::v1::PrefillFrame frame;
  gdpcache::v1::PrefillRequest& request = *frame.mutable_request();
  request.set_session(argv[2]);
  for (gdpcache::v1::Tensor* tensor : {request.mutable_k(), request.mutable_w(), request.mutable_u()}) {
    tensor->set_dtype(gdpcache::v1::DATA_TYPE_BFLOAT16);
    for (const std::int64_t size : {kFrames * kFrameRows, kHeads, kDim}) tensor->add_shape(size);
  }
  request.add_state_indices(slot);
  request.set_save_new_value(true);
  bool sent = stream->Write(frame);

  std::promise<void> answered;
  std::thread reader([&] {
    gdpcache::v1::PrefillFrame result;
    stream->Read(&result);
    answered.set_value();
    while (stream->Read(&result)) {
    }
  });
  const std::string payload(static_cast<std::size_t>(kFrameRows * kRowBytes), '\x3c');  // 0.0115 everywhere
  for (std::int64_t n = 0; sent && n < kFrames; ++n) {
    if (n == kFrames / 2) {
      answered.get_future().wait();
      std::puts("half");
      std::fflush(stdout);
    }
    for (const gdpcache::v1::TensorId tensor : kTensors) {
      frame.mutable_data()->set_tensor(tensor);
      frame.mutable_data()->set_offset(static_cast<std::uint64_t>(n * kFrameRows * kRowBytes));
      frame.mutable_data()->set_payload(payload);
      sent = sent && stream->Write(frame);
    }
  }
  reader.join();  // without WritesDone: there is no end but the server's
  return 1;
}
