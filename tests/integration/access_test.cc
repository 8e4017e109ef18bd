// Who may call what: every method, over every transport, with every kind of credentials; and that files may change
// while clients call.

#include <grpcpp/grpcpp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gdpcache/v1/state_cache.grpc.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/access/identity.h"
#include "tests/integration/access_support.h"
#include "tests/integration/prefill_load.h"
#include "tests/integration/ready_line.h"
#include "tests/support/eventually.h"

namespace gdpcache {
namespace {

using rpc::Permission;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using Transport = SecureServer::Transport;

constexpr char kInfo[] = "/gdpcache.v1.StateCache/GetServerInfo";

/// Every method that the server has, and some that it does not have.
std::vector<std::string> Methods() {
  std::vector<std::string> methods = {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch",
                                      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                                      "/gdpcache.v1.StateCache/NoSuchMethod", "/no.such.Service/Method"};
  const google::protobuf::ServiceDescriptor& service =
      *google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(v1::StateCache::service_full_name());
  for (int n = 0; n < service.method_count(); ++n) {
    methods.push_back(absl::StrCat("/", service.full_name(), "/", service.method(n)->name()));
  }
  return methods;
}

/// How a call without any content begins or ends.
grpc::Status Outcome(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const test::RawMetadata& metadata) {
  test::RawStream call(channel, method, "", metadata);
  if (call.Read().has_value()) return grpc::Status::OK;  // some would go on for ever
  return call.Finish();
}

enum class Decision { kAllowed, kUnauthenticated, kDenied };

Decision DecisionOf(const grpc::Status& status, const std::string& method) {
  if (!absl::StrContains(status.error_message(), "needs the permission")) {
    EXPECT_NE(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << status.error_message();
    EXPECT_NE(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
    return Decision::kAllowed;
  }
  EXPECT_THAT(status.error_message(), HasSubstr(method));
  EXPECT_THAT(status.error_message(), Not(HasSubstr("-0123456789"))) << "a token";
  if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) return Decision::kUnauthenticated;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  return Decision::kDenied;
}

/// What should be decided for somebody with `permissions`, as the configuration file has them; empty: nobody known.
Decision Expected(const std::string& method, const std::string& permissions) {
  const std::optional<Permission> needed = rpc::PermissionFor(method);
  if (!needed.has_value()) return Decision::kAllowed;
  if (permissions.empty()) return Decision::kUnauthenticated;
  const std::string word = *needed == Permission::kAdmin ? "ADMIN" : *needed == Permission::kData ? "DATA" : "";
  return absl::StrContains(permissions, word) ? Decision::kAllowed : Decision::kDenied;
}

void ExpectDecisions(const std::string& who, const std::shared_ptr<grpc::Channel>& channel,
                     const test::RawMetadata& metadata, const std::string& permissions) {
  for (const std::string& method : Methods()) {
    EXPECT_EQ(DecisionOf(Outcome(channel, method, metadata), method), Expected(method, permissions))
        << who << " calls " << method;
  }
}

void ExpectDecisionsByToken(const std::string& transport, const std::shared_ptr<grpc::Channel>& channel) {
  // All on one connection: what one call was does not stick to it.
  for (const Person& person : Everybody()) {
    ExpectDecisions(absl::StrCat(transport, ", ", person.name), channel, person.metadata(), person.permissions);
  }
  for (const std::string& wrong :
       {std::string("Bearer wrong-token-0123456789"), kEngine.token, "Basic " + kEngine.token, std::string("Bearer "),
        "Bearer " + kEngine.token + "0", "Bearer " + kEngine.token.substr(1)}) {
    ExpectDecisions(absl::StrCat(transport, ", ", wrong), channel, {{"authorization", wrong}}, "");
  }
  ExpectDecisions(transport + ", two tokens", channel,
                  {{"authorization", "Bearer " + kEngine.token}, {"authorization", "Bearer " + kReader.token}}, "");
}

TEST(AccessTest, LoopbackInClearTextTakesTokensOnly) {
  const SecureServer server(Transport::kLoopback);
  ExpectDecisions("loopback, nobody", server.Connect(), {}, "");
  ExpectDecisionsByToken("loopback", server.Connect());
}

TEST(AccessTest, TlsTakesTokensOnly) {
  const SecureServer server(Transport::kTls);
  ExpectDecisions("TLS, nobody", server.Connect(), {}, "");
  ExpectDecisionsByToken("TLS", server.Connect());
  ExpectDecisions("TLS, a certificate that nobody has asked for",
                  server.Connect(server.authority().Issue(kEngine.name)), {}, "");
}

TEST(AccessTest, MutualTlsTakesCertificatesAndTokens) {
  const SecureServer server(Transport::kMutualTls);
  for (const Person& person : Everybody()) {
    ExpectDecisions("common name " + person.name, server.Connect(server.authority().Issue(person.name)), {},
                    person.permissions);
    ExpectDecisions("alternative name " + person.name,
                    server.Connect(server.authority().Issue("someone", {"DNS:x.example", "DNS:" + person.name})), {},
                    person.permissions);
  }
  const test::IssuedCertificate stranger = server.authority().Issue("stranger");
  ExpectDecisions("a stranger", server.Connect(stranger), {}, "");
  ExpectDecisionsByToken("a stranger's certificate", server.Connect(stranger));
  ExpectDecisions("two at once", server.Connect(server.authority().Issue(kReader.name, {"DNS:" + kEngine.name})), {},
                  "");
  ExpectDecisions("an engine with a reader's token", server.Connect(server.authority().Issue(kEngine.name)),
                  kReader.metadata(), kReader.permissions);
}

TEST(AccessTest, OnTheUnixSocketTheServersUserNeedsATokenLikeAnybody) {
  for (const Transport transport : {Transport::kLoopback, Transport::kMutualTls}) {
    const SecureServer server(transport);
    ExpectDecisions("Unix socket, nobody", server.ConnectUnix(), {}, "");
    ExpectDecisionsByToken("Unix socket", server.ConnectUnix());
  }
}

/// What somebody gets to hear who connects to the Unix socket as `user`: the beginning of HTTP/2, or nothing.
std::string GreetingFor(SecureServer& server, uid_t user) {
  const std::string path(absl::StripPrefix(server.server().unix_address(), "unix:"));
  std::array<int, 2> pipe_ends = {};
  EXPECT_EQ(pipe(pipe_ends.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    const int connection = socket(AF_UNIX, SOCK_STREAM, 0);
    const timeval patience = {.tv_sec = 10, .tv_usec = 0};
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    if (setuid(user) != 0 || connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) _exit(1);
    std::array<char, 64> bytes;
    const ssize_t got = recv(connection, bytes.data(), bytes.size(), 0);
    _exit(got > 0 && write(pipe_ends[1], bytes.data(), static_cast<std::size_t>(got)) != got ? 1 : 0);
  }
  close(pipe_ends[1]);
  std::string greeting(64, '\0');
  const ssize_t got = read(pipe_ends[0], greeting.data(), greeting.size());
  close(pipe_ends[0]);
  greeting.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return greeting;
}

TEST(AccessTest, AnIdentityByUserIsTheServersOwnOnTheUnixSocketAlone) {
  SecureServer server(Transport::kMutualTls, {}, absl::StrCat(" uid: ", geteuid()));
  ExpectDecisions("Unix socket, own user", server.ConnectUnix(), {}, kOperator.permissions);
  ExpectDecisionsByToken("Unix socket", server.ConnectUnix());
  ExpectDecisions("a stranger", server.Connect(server.authority().Issue("stranger")), {}, "");
  if (geteuid() != 0) GTEST_SKIP() << "only root can be somebody else";
  // Whatever the modes say, which may change.
  const std::string path(absl::StripPrefix(server.server().unix_address(), "unix:"));
  ASSERT_EQ(chmod(std::filesystem::path(path).parent_path().c_str(), 0755), 0);
  ASSERT_EQ(chmod(path.c_str(), 0666), 0);
  EXPECT_NE(GreetingFor(server, 0), "");
  EXPECT_EQ(GreetingFor(server, 65'534), "");
}

TEST(AccessTest, WithoutIdentitiesEverybodyMayDoEverything) {
  test::ServerProcess server;
  for (const std::string& address : {server.tcp_address(), server.unix_address()}) {
    ExpectDecisions(address, test::Connect(address), {}, "[READ, DATA, ADMIN]");
    ExpectDecisions(address, test::Connect(address), kReader.metadata(), "[READ, DATA, ADMIN]");
  }
}

/// What comes of a call to the admin address.
grpc::StatusCode AdminCodeOf(SecureServer& server, const std::string& method, const test::RawMetadata& metadata,
                             const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  const std::string address = test::ReadyValue(server.server(), "admin");
  return Outcome(test::Connect(address, credentials), method, metadata).error_code();
}

TEST(AccessTest, TheAdminAddressTellsOfConnectionsToAdministratorsOnly) {
  constexpr char kChannelz[] = "/grpc.channelz.v1.Channelz/GetServers";
  constexpr char kReflection[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  for (const Transport transport : {Transport::kLoopback, Transport::kTls}) {
    SecureServer server(transport, {"--admin=127.0.0.1:0"});
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = server.authority().certificate();
    const std::shared_ptr<grpc::ChannelCredentials> credentials =
        transport == Transport::kTls ? grpc::SslCredentials(options) : grpc::InsecureChannelCredentials();
    const auto code_of = [&](const char* method, const test::RawMetadata& metadata) {
      return AdminCodeOf(server, method, metadata, credentials);
    };
    EXPECT_EQ(code_of(kChannelz, {}), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(code_of(kChannelz, {{"authorization", "Bearer wrong-token-0123456789"}}),
              grpc::StatusCode::UNAUTHENTICATED);
    for (const Person& person : {kReader, kEngine}) {
      EXPECT_EQ(code_of(kChannelz, person.metadata()), grpc::StatusCode::PERMISSION_DENIED) << person.name;
    }
    for (const Person& person : {kJanitor, kOperator}) {
      EXPECT_EQ(code_of(kChannelz, person.metadata()), grpc::StatusCode::OK) << person.name;
    }
    EXPECT_EQ(code_of(kReflection, {}), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(code_of("/grpc.health.v1.Health/Check", {}), grpc::StatusCode::OK) << "a probe has none";
    if (transport == Transport::kTls) {
      EXPECT_EQ(AdminCodeOf(server, kChannelz, kOperator.metadata(), grpc::InsecureChannelCredentials()),
                grpc::StatusCode::UNAVAILABLE)
          << "clear text";
    }
  }
}

/// UNAVAILABLE where no connection comes about.
grpc::StatusCode CodeOf(const std::shared_ptr<grpc::Channel>& channel, const test::RawMetadata& metadata = {}) {
  return test::CallRaw(channel, kInfo, "", metadata).status.error_code();
}

TEST(AccessTest, MutualTlsLetsInNobodyWithoutACertificateOfTheAuthority) {
  const SecureServer server(Transport::kMutualTls);
  EXPECT_EQ(CodeOf(server.Connect(), kEngine.metadata()), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(CodeOf(server.Connect(test::CertificateAuthority().Issue(kEngine.name))), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(CodeOf(server.Connect(server.authority().Issue(kEngine.name, {}, /*expired=*/true))),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(CodeOf(server.Connect(server.authority().Issue(kEngine.name))), grpc::StatusCode::OK);
}

TEST(AccessTest, ClientsTellTheServerFromOthers) {
  SecureServer server(Transport::kTls);
  const SecureServer other(Transport::kTls);
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = other.authority().certificate();
  const std::string address = server.server().tcp_address();
  EXPECT_EQ(CodeOf(test::Connect(address, grpc::SslCredentials(options)), kEngine.metadata()),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(CodeOf(test::Connect(address), kEngine.metadata()), grpc::StatusCode::UNAVAILABLE) << "clear text";
}

/// What an engine of SecureServer's connects with: its token and, where it has one, its certificate.
ClientOptions EngineOptions(const SecureServer& server, const test::IssuedCertificate& own = {}) {
  ClientOptions options;
  options.token = kEngine.token;
  if (server.transport() == Transport::kLoopback) return options;
  options.tls.emplace().ca_file = server.path("own-ca.crt");
  test::WriteSecret(options.tls->ca_file, server.authority().certificate());
  if (own.certificate.empty()) return options;
  options.tls->certificate_file = server.path("own.crt");
  options.tls->key_file = server.path("own.key");
  test::WriteSecret(options.tls->certificate_file, own.certificate);
  test::WriteSecret(options.tls->key_file, own.key);
  return options;
}

/// The same for a channel of gRPC's, over TLS.
std::shared_ptr<grpc::ChannelCredentials> EngineCredentials(const SecureServer& server) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = server.authority().certificate();
  return grpc::CompositeChannelCredentials(grpc::SslCredentials(options), grpc::AccessTokenCredentials(kEngine.token));
}

/// The name in the certificate that the server shows on a new connection.
std::string ServerName(const SecureServer& server, const test::IssuedCertificate& own = {}) {
  const std::unique_ptr<v1::StateCache::Stub> stub = v1::StateCache::NewStub(server.Connect(own));
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer " + kEngine.token);
  v1::GetServerInfoResponse response;
  const grpc::Status status = stub->GetServerInfo(&context, {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  const std::vector<grpc::string_ref> names = context.auth_context()->FindPropertyValues(GRPC_X509_CN_PROPERTY_NAME);
  return names.empty() ? "" : std::string(names.front().data(), names.front().size());
}

TEST(AccessRotationTest, CertificatesChangeUnderLoadWithoutAFailedCall) {
  SecureServer server(Transport::kTls);
  const std::string address = server.server().tcp_address();
  test::HalfSentPrefill in_flight(address, EngineOptions(server), EngineCredentials(server));
  ASSERT_TRUE(test::Eventually([&] { return in_flight.IsUnderWay(); }));
  test::PrefillLoad load(address, EngineOptions(server));
  for (const char* name : {"second", "third"}) {
    const test::IssuedCertificate next = server.authority().Issue(name, {"DNS:localhost", "IP:127.0.0.1"});
    server.WriteCertificate(next);
    EXPECT_TRUE(test::Eventually([&] { return ServerName(server) == name; })) << name;
    const int before = load.answers();
    EXPECT_TRUE(test::Eventually([&] { return load.answers() >= before + 10; })) << "and engines go on";
  }
  load.Check(in_flight.Finish());
  // What is wrong is told, and changes nothing.
  server.WriteCertificate(
      {server.authority().IssueForLoopback().certificate, server.authority().IssueForLoopback().key});
  const auto log = [&server] { return server.server().process().Errors(); };
  EXPECT_TRUE(test::Eventually([&] { return absl::StrContains(log(), "is not the key of the first certificate in"); }));
  EXPECT_EQ(ServerName(server), "third");
  remove(server.path("tls.key").c_str());
  EXPECT_TRUE(test::Eventually([&] { return absl::StrContains(log(), "tls.key' cannot be opened"); }));
  EXPECT_THAT(log(), HasSubstr("going on with what was read before"));
  EXPECT_EQ(ServerName(server), "third");
  server.WriteCertificate(server.authority().Issue("fourth", {"IP:127.0.0.1"}));
  EXPECT_TRUE(test::Eventually([&] { return ServerName(server) == "fourth"; }));
}

TEST(AccessRotationTest, AuthoritiesOfClientsChange) {
  SecureServer server(Transport::kMutualTls);
  const test::CertificateAuthority next("next authority");
  const test::IssuedCertificate old_client = server.authority().Issue(kEngine.name);
  const test::IssuedCertificate new_client = next.Issue(kEngine.name);
  EXPECT_EQ(CodeOf(server.Connect(new_client)), grpc::StatusCode::UNAVAILABLE);
  {
    const test::PrefillLoad load(server.server().tcp_address(), EngineOptions(server, old_client));
    test::WriteSecret(server.path("ca.crt"), server.authority().certificate() + next.certificate());
    EXPECT_TRUE(test::Eventually([&] { return CodeOf(server.Connect(new_client)) == grpc::StatusCode::OK; }));
  }
  test::WriteSecret(server.path("ca.crt"), next.certificate());
  EXPECT_TRUE(test::Eventually([&] { return CodeOf(server.Connect(old_client)) == grpc::StatusCode::UNAVAILABLE; }));
  EXPECT_EQ(CodeOf(server.Connect(new_client)), grpc::StatusCode::OK);
}

TEST(AccessRotationTest, TokensChangeUnderLoadWithoutAFailedCall) {
  SecureServer server(Transport::kLoopback);
  const auto channel = server.Connect();
  const test::RawMetadata fresh = {{"authorization", "Bearer fresh-token-0123456789"}};
  const std::string line = kEngine.token + " engine\n";
  EXPECT_EQ(CodeOf(channel, fresh), grpc::StatusCode::UNAUTHENTICATED);
  {
    const test::PrefillLoad load(server.server().tcp_address(), EngineOptions(server));
    server.WriteTokens(line + "fresh-token-0123456789 engine\n");
    EXPECT_TRUE(test::Eventually([&] { return CodeOf(channel, fresh) == grpc::StatusCode::OK; }));
    EXPECT_EQ(CodeOf(channel, kReader.metadata()), grpc::StatusCode::UNAUTHENTICATED) << "no longer there";
    server.WriteTokens("fresh-token-0123456789 stranger\n");
    EXPECT_TRUE(test::Eventually([&] {
      return absl::StrContains(server.server().process().Errors(), "the name is 'stranger'; no identity is configured");
    }));
  }
  server.WriteTokens("fresh-token-0123456789 engine\n");
  EXPECT_TRUE(
      test::Eventually([&] { return CodeOf(channel, kEngine.metadata()) == grpc::StatusCode::UNAUTHENTICATED; }));
  EXPECT_EQ(CodeOf(channel, fresh), grpc::StatusCode::OK);
}

/// How many bytes a core dump of a process may have.
std::string CoreLimit(const std::string& pid) {
  std::ifstream limits("/proc/" + pid + "/limits");
  std::string line;
  while (std::getline(limits, line)) {
    if (absl::StartsWith(line, "Max core file size")) return line;
  }
  return "";
}

TEST(AccessStartTest, WhoeverHasSecretsLeavesNoCoreDump) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_CORE, &limit), 0);
  if (limit.rlim_max <= 1) GTEST_SKIP() << "nobody may leave one here";
  limit.rlim_cur = limit.rlim_max;  // for this process and its servers
  ASSERT_EQ(setrlimit(RLIMIT_CORE, &limit), 0);
  for (const Transport transport : {Transport::kLoopback, Transport::kTls}) {
    SecureServer server(transport);
    EXPECT_THAT(CoreLimit(std::to_string(server.server().process().pid())), ContainsRegex("Max core file size +1 "));
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which forbid it to every process
  test::ServerProcess open;
  EXPECT_EQ(CoreLimit(std::to_string(open.process().pid())), CoreLimit("self"));
#endif
}

TEST(AccessStartTest, FilesThatCannotBeUsedAreNamed) {
  const test::TemporaryDirectory directory;
  const auto path = [&](const char* name) { return directory.path() + "/" + name; };
  const test::CertificateAuthority authority;
  test::WriteSecret(path("crt"), authority.IssueForLoopback().certificate);
  test::WriteSecret(path("key"), authority.IssueForLoopback().key);
  const test::ProgramResult result =
      test::RunProgram(test::ServerProgram(), {"--backend=cpu", "--unix=", "--listen=127.0.0.1:0",
                                               "--tls-certificate=" + path("crt"), "--tls-key=" + path("key")});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.output, "");
  EXPECT_THAT(result.errors, HasSubstr("the TLS key '" + path("key") +
                                       "' is not the key of the first certificate in '" + path("crt") + "'"));
}

}  // namespace
}  // namespace gdpcache
