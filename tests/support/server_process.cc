#include "tests/support/server_process.h"

#include <grpc/grpc.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"

namespace gdpcache::test {

const std::string& ServerProgram() {
  // Where the build put it, unless the tests have been packed for another machine.
  const char* const packed = std::getenv("GDPCACHED_PROGRAM");
  static const std::string& program = *new std::string(packed != nullptr ? packed : GDPCACHED_PATH);
  return program;
}

ServerProcess::ServerProcess(const std::vector<std::string>& flags) : process_(ServerProgram(), Arguments(flags)) {
  const std::optional<std::string> line = process_.ReadLine();
  if (!line.has_value()) {
    ADD_FAILURE() << "gdpcached did not get ready: " << process_.Errors();
    return;
  }
  ready_line_ = *line;
  for (absl::string_view word : absl::StrSplit(ready_line_, ' ')) {
    if (absl::ConsumePrefix(&word, "address=") && tcp_address_.empty()) tcp_address_ = std::string(word);
  }
}

std::vector<std::string> ServerProcess::Arguments(const std::vector<std::string>& flags) const {
  std::vector<std::string> arguments = {"--backend=cpu", "--unix=" + unix_path()};
  const auto is_listen = [](const std::string& flag) { return flag.starts_with("--listen"); };
  if (std::none_of(flags.begin(), flags.end(), is_listen)) arguments.push_back("--listen=127.0.0.1:0");
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return arguments;
}

std::shared_ptr<grpc::Channel> Connect(const std::string& address,
                                       const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  // Otherwise the end of the last channel shuts the library down, which gRPC 1.51 now and then does 10 seconds late.
  static const bool kInitialised = (grpc_init(), true);
  static_cast<void>(kInitialised);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

}  // namespace gdpcache::test
