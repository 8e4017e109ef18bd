#ifndef GDPCACHE_CLIENT_LIBRARY_TOKEN_SOURCE_H_
#define GDPCACHE_CLIENT_LIBRARY_TOKEN_SOURCE_H_

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/security/credentials.h"

namespace gdpcache::client {

/// The bearer token that goes with every call: a fixed one, or a file's, looked at again once a second. Thread-safe.
class TokenSource final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit TokenSource(std::string token) : TokenSource(std::move(token), "") {}

  ~TokenSource() override;  // maybe on a thread of gRPC's

  /// INVALID_ARGUMENT names a file that holds no token.
  static absl::StatusOr<std::unique_ptr<TokenSource>> FromFile(std::string path);

  /// The token now. What was read last stays while the file cannot be read.
  std::string Token();

  bool IsBlocking() const override { return false; }
  grpc::Status GetMetadata(grpc::string_ref service, grpc::string_ref method, const grpc::AuthContext& channel,
                           std::multimap<std::string, std::string>* metadata) override;
  grpc::string DebugString() override { return "bearer token"; }

 private:
  using Clock = std::chrono::steady_clock;  // nobody sets it

  TokenSource(std::string token, std::string path);

  std::mutex mutex_;  // guards what follows
  std::string path_;  // empty: a fixed token
  std::string token_;
  Clock::time_point looked_;
};

/// The whole file. INVALID_ARGUMENT says what `what` it is, its name, and why it cannot be read.
absl::StatusOr<std::string> ReadFile(const char* what, const std::string& path);

/// What may stand in an "authorization" header. INVALID_ARGUMENT without the token.
absl::Status CheckToken(const std::string& token);

}  // namespace gdpcache::client

#endif  // GDPCACHE_CLIENT_LIBRARY_TOKEN_SOURCE_H_
