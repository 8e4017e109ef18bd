#ifndef GDPCACHE_TESTS_INTEGRATION_HALF_SENT_WRITE_H_
#define GDPCACHE_TESTS_INTEGRATION_HALF_SENT_WRITE_H_

#include <grpcpp/client_context.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/control_client.h"
#include "tests/support/raw_call.h"

namespace gdpcache::test {

/// A streamed write of a slot of a SmallCache that waits for its client: it runs until the client sends the rest.
class HalfSentWrite {
 public:
  HalfSentWrite(ControlClient& client, const std::string& session, const RawMetadata& metadata = {},
                std::int64_t slot = 0) {
    for (const auto& [key, value] : metadata) context_.AddMetadata(key, value);
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    stream_ = client.stub().WriteSlots(&context_, &response_);
    v1::WriteSlotsFrame header;
    header.mutable_header()->set_session(session);
    v1::SlotContents& contents = *header.mutable_header()->mutable_contents();
    contents.add_slots(slot);
    contents.mutable_state()->set_dtype(v1::DATA_TYPE_FLOAT32);
    for (const std::int64_t size : {1, 2, 2, 4, 3}) contents.mutable_state()->add_shape(size);
    EXPECT_TRUE(stream_->Write(header));
    SendHalf(0);
  }

  grpc::Status Finish() {
    SendHalf(kHalf);
    return End();
  }

  grpc::Status End() {
    stream_->WritesDone();
    return stream_->Finish();
  }

 private:
  static constexpr std::size_t kHalf = std::size_t{2} * 4 * 3 * 4;

  void SendHalf(std::uint64_t offset) {
    v1::WriteSlotsFrame frame;
    frame.mutable_data()->set_tensor(v1::TENSOR_ID_STATE);
    frame.mutable_data()->set_offset(offset);
    frame.mutable_data()->set_payload(std::string(kHalf, '\0'));
    stream_->Write(frame);  // whether it arrived is for Finish to say
  }

  grpc::ClientContext context_;
  v1::WriteSlotsResponse response_;
  std::unique_ptr<grpc::ClientWriter<v1::WriteSlotsFrame>> stream_;
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_INTEGRATION_HALF_SENT_WRITE_H_
