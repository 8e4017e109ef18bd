// The client library and the command against a server that asks who they are.

#include <cstdlib>
#include <string>
#include <vector>

#include "gdpcache/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/access_support.h"
#include "tests/support/eventually.h"
#include "tests/support/process.h"

namespace gdpcache {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ServerTransport = SecureServer::Transport;

class SecureClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const test::IssuedCertificate own = server_.authority().Issue(kReader.name);
    test::WriteSecret(server_.path("own.crt"), own.certificate);
    test::WriteSecret(server_.path("own.key"), own.key);
    test::WriteSecret(server_.path("token"), kEngine.token + "\n");
  }

  const std::string& address() { return server_.server().tcp_address(); }

  TlsOptions Files() const {
    return {.ca_file = server_.path("ca.crt"),
            .certificate_file = server_.path("own.crt"),
            .key_file = server_.path("own.key")};
  }

  /// What a call that needs DATA comes to.
  static absl::Status Use(const std::string& address, const ClientOptions& options) {
    const absl::StatusOr<Client> client = Client::Connect(address, options);
    if (!client.ok()) return client.status();
    CacheSpec spec;
    spec.name = "m";
    spec.geometry = {.layers = 1, .slots = 2, .heads = 1, .key_dim = 8, .value_dim = 8};
    if (const auto created = client->CreateCache(spec); !created.ok()) return created.status();
    absl::StatusOr<Session> session = client->OpenSession("m");
    if (!session.ok()) return session.status();
    const absl::StatusOr<std::vector<std::int64_t>> slots = session->AcquireSlots(1);
    if (!slots.ok()) return slots.status();
    return session->ReadSlots(*slots).status();  // a stream
  }

  SecureServer server_{ServerTransport::kMutualTls};
};

TEST_F(SecureClientTest, ACertificateOrATokenSaysWhoCalls) {
  ClientOptions options;
  options.tls = Files();
  EXPECT_EQ(Use(address(), options).code(), absl::StatusCode::kPermissionDenied) << "the certificate is a reader's";
  options.token = kEngine.token;
  EXPECT_TRUE(Use(address(), options).ok()) << Use(address(), options);
  options.token = "";
  options.token_file = server_.path("token");
  EXPECT_TRUE(Use(address(), options).ok()) << Use(address(), options);
  options.token_file = "";
  options.token = "wrong-token-0123456789";
  const absl::Status refused = Use(address(), options);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(refused.message()), Not(HasSubstr("0123456789")));
}

TEST_F(SecureClientTest, TheServerMustBeWhoItSays) {
  ClientOptions options;
  options.tls = Files();
  options.tls->ca_file = "";
  EXPECT_EQ(Client::Connect(address(), options).status().code(), absl::StatusCode::kUnavailable)
      << "none of the system's authorities";
  options.tls = Files();
  options.tls->server_name = "other.example";
  EXPECT_EQ(Client::Connect(address(), options).status().code(), absl::StatusCode::kUnavailable);
  options.tls->server_name = "localhost";
  EXPECT_TRUE(Client::Connect(address(), options).ok());
  EXPECT_EQ(Client::Connect(address()).status().code(), absl::StatusCode::kUnavailable) << "clear text";
}

TEST_F(SecureClientTest, OnAUnixSocketTlsIsNotUsedAndTokensCount) {
  const std::string socket = server_.server().unix_address();
  ClientOptions options;
  EXPECT_EQ(Use(socket, options).code(), absl::StatusCode::kUnauthenticated) << "the server's own user";
  options.tls = Files();
  options.token = kEngine.token;
  EXPECT_TRUE(Use(socket, options).ok());
  options.token = kReader.token;
  EXPECT_EQ(Use(socket, options).code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(SecureClientTest, TokensGoOverLoopbackInClearTextButNoFurther) {
  SecureServer clear(ServerTransport::kLoopback);
  ClientOptions options;
  options.token = kEngine.token;
  EXPECT_TRUE(Use(clear.server().tcp_address(), options).ok()) << Use(clear.server().tcp_address(), options);
  const absl::Status refused = Client::Connect("gdpcache.example:7411", options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("would travel to 'gdpcache.example:7411' in clear text"));
}

TEST_F(SecureClientTest, ATokenFileIsFollowed) {
  ClientOptions options;
  options.tls = Files();
  options.token_file = server_.path("token");
  const absl::StatusOr<Client> client = Client::Connect(address(), options);
  ASSERT_TRUE(client.ok()) << client.status();
  test::WriteSecret(server_.path("token"), "wrong-token-0123456789");
  EXPECT_TRUE(test::Eventually([&] { return absl::IsUnauthenticated(client->ListCaches().status()); }));
  test::WriteSecret(server_.path("token"), "");
  test::WriteSecret(server_.path("token"), kReader.token);
  EXPECT_TRUE(test::Eventually([&] { return client->ListCaches().ok(); }));
}

TEST_F(SecureClientTest, FilesThatCannotBeUsedAreNamed) {
  const auto error = [this](const ClientOptions& options) {
    const absl::Status status = Client::Connect(address(), options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  ClientOptions options;
  options.tls = Files();
  options.tls->ca_file = "/no/such/file";
  EXPECT_THAT(error(options), HasSubstr("/no/such/file"));
  options.tls = Files();
  options.tls->key_file = "";
  EXPECT_THAT(error(options), HasSubstr("one of them is missing"));
  options.tls = Files();
  options.token_file = "/no/such/token";
  EXPECT_THAT(error(options), HasSubstr("the token file '/no/such/token' cannot be read"));
  options.token = "t";
  EXPECT_THAT(error(options), HasSubstr("there may be one of them"));
  options.token_file = "";
  options.token = "two words";
  EXPECT_THAT(error(options), HasSubstr("white space"));
}

TEST_F(SecureClientTest, TheCommandTakesThemAsOptionsAndFromTheEnvironment) {
  const std::vector<std::string> tls = {"--server",          address(),
                                        "--tls-ca",          server_.path("ca.crt"),
                                        "--tls-certificate", server_.path("own.crt"),
                                        "--tls-key",         server_.path("own.key")};
  const auto run = [&tls](std::vector<std::string> arguments, const std::vector<std::string>& more = {}) {
    arguments.insert(arguments.end(), tls.begin(), tls.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    return test::RunProgram(GDPCACHE_COMMAND, arguments);
  };
  EXPECT_EQ(run({"health"}).output, "serving\n");
  EXPECT_EQ(run({"info"}).exit_code, 0);
  const std::vector<std::string> create = {"caches",  "create", "c",         "--layers", "1",           "--slots", "1",
                                           "--heads", "1",      "--key-dim", "8",        "--value-dim", "8"};
  const test::ProgramResult refused = run(create);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.errors, HasSubstr("PERMISSION_DENIED"));
  EXPECT_EQ(run(create, {"--token-file", server_.path("token")}).exit_code, 0);

  // A probe has no token, and on the socket no certificate either.
  EXPECT_EQ(test::RunProgram(GDPCACHE_COMMAND, {"health", "--server", server_.server().unix_address()}).exit_code, 0);
  EXPECT_EQ(test::RunProgram(GDPCACHE_COMMAND, {"health", "--server", address(), "--timeout", "5"}).exit_code, 1);

  setenv("GDPCACHE_TLS_CA", server_.path("ca.crt").c_str(), 1);
  setenv("GDPCACHE_TLS_CERTIFICATE", server_.path("own.crt").c_str(), 1);
  setenv("GDPCACHE_TLS_KEY", server_.path("own.key").c_str(), 1);
  setenv("GDPCACHE_TOKEN_FILE", server_.path("token").c_str(), 1);
  const test::ProgramResult deleted =
      test::RunProgram(GDPCACHE_COMMAND, {"caches", "delete", "c", "--server", address()});
  for (const char* name : {"GDPCACHE_TLS_CA", "GDPCACHE_TLS_CERTIFICATE", "GDPCACHE_TLS_KEY", "GDPCACHE_TOKEN_FILE"}) {
    unsetenv(name);
  }
  EXPECT_EQ(deleted.exit_code, 1);
  EXPECT_THAT(deleted.errors, HasSubstr("needs the permission 'admin', which the identity 'engine' does not have"));
}

}  // namespace
}  // namespace gdpcache
