#ifndef GDPCACHE_TESTS_SUPPORT_RAW_CALL_H_
#define GDPCACHE_TESTS_SUPPORT_RAW_CALL_H_

#include <grpcpp/channel.h>
#include <grpcpp/support/status.h>

#include <memory>
#include <string>

namespace gdpcache::test {

struct RawAnswer {
  grpc::Status status;
  std::string bytes;
};

/// Sends `bytes` as the one message of a call to `method` ("/package.Service/Method"), whatever they are.
RawAnswer CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method, const std::string& bytes);

/// grpc.health.v1.Health/Check: 1 is SERVING, 2 is NOT_SERVING; -1 when the call fails.
int CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service);

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_RAW_CALL_H_
