#ifndef GDPCACHE_TESTS_SUPPORT_RAW_CALL_H_
#define GDPCACHE_TESTS_SUPPORT_RAW_CALL_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/status.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gdpcache::test {

struct RawAnswer {
  grpc::Status status;
  std::string bytes;
};

using RawMetadata = std::vector<std::pair<std::string, std::string>>;

/// Sends `bytes` as the one message of a call to `method` ("/package.Service/Method"), whatever they are.
RawAnswer CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method, const std::string& bytes,
                  const RawMetadata& metadata = {});

/// A call with one request message and any number of answers, as bytes.
class RawStream {
 public:
  RawStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& method, const std::string& request,
            const RawMetadata& metadata = {});
  RawStream(const RawStream&) = delete;
  RawStream& operator=(const RawStream&) = delete;
  ~RawStream();

  /// The next message; nothing when the call has ended.
  std::optional<std::string> Read();

  /// How the call ended. Once, after the last message.
  grpc::Status Finish();

 private:
  bool Next();

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  bool finished_ = false;
};

/// grpc.health.v1.Health/Check: 1 is SERVING, 2 is NOT_SERVING; -1 when the call fails.
int CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service);

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_RAW_CALL_H_
