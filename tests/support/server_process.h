#ifndef GDPCACHE_TESTS_SUPPORT_SERVER_PROCESS_H_
#define GDPCACHE_TESTS_SUPPORT_SERVER_PROCESS_H_

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/process.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::test {

/// The path of the gdpcached that was built with the tests.
const std::string& ServerProgram();

/// A gdpcached of its own with the CPU backend, on a free loopback port and a Unix socket in a temporary directory;
/// serving once constructed, killed when destroyed.
class ServerProcess {
 public:
  /// `flags` come after those above, so they may override them.
  explicit ServerProcess(const std::vector<std::string>& flags = {});

  /// For channels: "127.0.0.1:PORT" and "unix:PATH".
  const std::string& tcp_address() const { return tcp_address_; }
  std::string unix_address() const { return "unix:" + unix_path(); }
  std::string unix_path() const { return directory_.path() + "/gdpcached.sock"; }
  const std::string& ready_line() const { return ready_line_; }

  Process& process() { return process_; }

 private:
  std::vector<std::string> Arguments(const std::vector<std::string>& flags) const;

  TemporaryDirectory directory_;
  Process process_;
  std::string ready_line_;
  std::string tcp_address_;
};

/// A channel that shares no connection with another, without a limit on what it receives.
std::shared_ptr<grpc::Channel> Connect(
    const std::string& address,
    const std::shared_ptr<grpc::ChannelCredentials>& credentials = grpc::InsecureChannelCredentials());

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_SERVER_PROCESS_H_
