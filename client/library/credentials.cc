#include "client/library/credentials.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/library/token_source.h"

namespace gdpcache::client {
namespace {

bool IsLoopback(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  return host == "localhost" || host == "[::1]" || absl::StartsWith(host, "127.");
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Tls(const TlsOptions& tls) {
  if (tls.certificate_file.empty() != tls.key_file.empty()) {
    return absl::InvalidArgumentError("a client's certificate and its key belong together; one of them is missing");
  }
  grpc::SslCredentialsOptions options;
  const auto read = [](const char* what, const std::string& path, std::string& into) -> absl::Status {
    if (path.empty()) return absl::OkStatus();
    absl::StatusOr<std::string> text = ReadFile(what, path);
    if (!text.ok()) return text.status();
    into = *std::move(text);
    return absl::OkStatus();
  };
  if (absl::Status status = read("the certificate authority", tls.ca_file, options.pem_root_certs); !status.ok()) {
    return status;
  }
  if (absl::Status status = read("the client's certificate", tls.certificate_file, options.pem_cert_chain);
      !status.ok()) {
    return status;
  }
  if (absl::Status status = read("the client's key", tls.key_file, options.pem_private_key); !status.ok()) {
    return status;
  }
  return grpc::SslCredentials(options);
}

absl::StatusOr<std::unique_ptr<TokenSource>> Token(const ClientOptions& options) {
  if (!options.token_file.empty()) return TokenSource::FromFile(options.token_file);
  if (absl::Status status = CheckToken(options.token); !status.ok()) return status;
  return std::make_unique<TokenSource>(options.token);
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(const std::string& address,
                                                                          const ClientOptions& options) {
  const bool is_unix = absl::StartsWith(address, "unix:");
  const bool is_tls = options.tls.has_value() && !is_unix;
  const bool has_token = !options.token.empty() || !options.token_file.empty();
  if (!options.token.empty() && !options.token_file.empty()) {
    return absl::InvalidArgumentError("a token and a token file are given; there may be one of them");
  }
  std::shared_ptr<grpc::ChannelCredentials> channel = grpc::InsecureChannelCredentials();
  if (is_tls) {
    absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> tls = Tls(*options.tls);
    if (!tls.ok()) return tls.status();
    channel = *std::move(tls);
  }
  if (!has_token) return channel;
  if (!is_tls && !is_unix && !IsLoopback(address)) {
    return absl::InvalidArgumentError(absl::StrCat("the token would travel to '", address, "' in clear text; use TLS"));
  }
  absl::StatusOr<std::unique_ptr<TokenSource>> token = Token(options);
  if (!token.ok()) return token.status();
  // gRPC itself sees to it that the peer is what it was taken for, whatever the name resolves to.
  if (!is_tls) channel = grpc::experimental::LocalCredentials(is_unix ? UDS : LOCAL_TCP);
  const grpc_security_level least = is_tls ? GRPC_PRIVACY_AND_INTEGRITY : GRPC_SECURITY_NONE;
  std::shared_ptr<grpc::ChannelCredentials> both = grpc::CompositeChannelCredentials(
      channel, grpc::experimental::MetadataCredentialsFromPlugin(*std::move(token), least));
  if (both == nullptr) return absl::InvalidArgumentError("the TLS files cannot be used");
  return both;
}

}  // namespace gdpcache::client
