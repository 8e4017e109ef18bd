#include "server/rpc/access/access_control.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <spdlog/spdlog.h>

#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/cache/clock.h"
#include "server/cache/errors.h"
#include "server/cache/session.h"
#include "server/rpc/status.h"

namespace gdpcache::rpc {
namespace {

constexpr char kAuthorization[] = "authorization";
constexpr char kPath[] = ":path";

std::string ToString(grpc::string_ref text) { return std::string(text.data(), text.size()); }

template <typename Metadata>
std::vector<std::string> ValuesOf(const Metadata& metadata, const char* key) {
  std::vector<std::string> values;
  const auto [begin, end] = metadata.equal_range(key);
  for (auto entry = begin; entry != end; ++entry) values.push_back(ToString(entry->second));
  return values;
}

std::vector<std::string> CertificateNames(const grpc::AuthContext* context) {
  std::vector<std::string> names;
  if (context == nullptr || !context->IsPeerAuthenticated()) return names;
  for (const char* property : {GRPC_X509_SAN_PROPERTY_NAME, GRPC_X509_CN_PROPERTY_NAME}) {
    for (const grpc::string_ref& name : context->FindPropertyValues(property)) names.push_back(ToString(name));
  }
  return names;
}

/// The token of an "authorization" value; empty if it is none.
absl::string_view BearerToken(absl::string_view authorization) {
  constexpr absl::string_view kScheme = "bearer ";
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return "";
  return absl::StripAsciiWhitespace(authorization.substr(kScheme.size()));
}

/// What is wrong with files, for the log: only what lasts. While a pair of files is replaced one after the other they
/// do not fit for a moment.
class Trouble {
 public:
  /// `good` is what to log of files that have changed.
  void Note(const absl::StatusOr<bool>& read, const std::string& good) {
    if (read.ok()) {
      if (*read || logged_) spdlog::info("{}", good);
      message_.clear();
      logged_ = false;
    } else if (message_ != read.status().message()) {
      message_ = std::string(read.status().message());
      logged_ = false;
    } else if (!logged_) {
      spdlog::error("{}; going on with what was read before", message_);
      logged_ = true;
    }
  }

 private:
  std::string message_;
  bool logged_ = false;
};

}  // namespace

/// gRPC's way to ask, before a call reaches its handler.
class AccessControl::Processor final : public grpc::AuthMetadataProcessor {
 public:
  Processor(const AccessControl& access, bool own_user) {
    const std::lock_guard lock(mutex_);  // what has been set up is visible to whoever takes it next
    access_ = &access;
    own_user_ = own_user;
  }

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata* /*consumed*/,
                       OutputMetadata* /*response*/) override {
    const AccessControl* access = nullptr;
    Credentials credentials;
    {
      const std::lock_guard lock(mutex_);
      access = access_;
      credentials.own_user = own_user_;
    }
    credentials.authorizations = ValuesOf(metadata, kAuthorization);
    credentials.certificate_names = CertificateNames(context);
    const std::vector<std::string> path = ValuesOf(metadata, kPath);
    const absl::Status status = access->Authorize(path.empty() ? "" : path.front(), credentials).status();
    if (!status.ok()) access->NoteRefusal(status);
    return ToGrpcStatus(status);
  }

 private:
  // gRPC calls from threads of its own, and ThreadSanitizer does not see what orders them behind the construction.
  std::mutex mutex_;
  const AccessControl* access_ = nullptr;
  bool own_user_ = false;
};

absl::StatusOr<std::shared_ptr<const AccessControl>> AccessControl::Create(AccessOptions options) {
  const std::shared_ptr<AccessControl> access(new AccessControl(std::move(options)));
  if (!access->options_.token_file.empty()) {
    std::set<std::string, std::less<>> names;
    for (const auto& [name, identity] : access->identities_) names.insert(name);
    absl::StatusOr<std::unique_ptr<TokenFile>> tokens = TokenFile::Open(access->options_.token_file, std::move(names));
    if (!tokens.ok()) return tokens.status();
    access->tokens_ = *std::move(tokens);
    spdlog::info("{} read from {}", cache::Counted(access->tokens_->count(), "token"), access->tokens_->path());
  }
  if (!access->options_.tls.certificate.empty()) {
    absl::StatusOr<std::unique_ptr<ServerCertificate>> certificate = ServerCertificate::Open(access->options_.tls);
    if (!certificate.ok()) return certificate.status();
    access->certificate_ = *std::move(certificate);
    spdlog::info("TLS certificate: {}", access->certificate_->description());
    if (access->certificate_->expired()) spdlog::warn("the TLS certificate has expired: clients will refuse it");
  }
  if (access->tokens_ != nullptr || access->certificate_ != nullptr) {
    access->refresher_ = std::thread([access = access.get()] { access->KeepFresh(); });
  }
  return access;
}

std::shared_ptr<const AccessControl> AccessControl::Everybody() {
  return std::shared_ptr<const AccessControl>(new AccessControl({}));
}

AccessControl::AccessControl(AccessOptions options)
    : options_(std::move(options)),
      everybody_{.name = "",
                 .tenant = std::string(cache::kDefaultTenant),
                 .permissions = {Permission::kRead, Permission::kData, Permission::kAdmin}} {
  for (const Identity& identity : options_.identities) identities_.emplace(identity.name, identity);
  for (const auto& [name, identity] : identities_) {
    if (identity.by_own_user) own_user_ = &identity;
  }
}

AccessControl::~AccessControl() {
  if (!refresher_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    stop_.notify_all();
  }
  refresher_.join();
}

std::shared_ptr<grpc::ServerCredentials> AccessControl::WithProcessor(
    std::shared_ptr<grpc::ServerCredentials> credentials, bool own_user) const {
  if (!identities_.empty()) credentials->SetAuthMetadataProcessor(std::make_shared<Processor>(*this, own_user));
  return credentials;
}

std::shared_ptr<grpc::ServerCredentials> AccessControl::TcpCredentials() const {
  if (certificate_ == nullptr) {
    if (identities_.empty()) return grpc::InsecureServerCredentials();
    return WithProcessor(grpc::experimental::LocalServerCredentials(LOCAL_TCP), false);
  }
  grpc::experimental::TlsServerCredentialsOptions tls(certificate_->MakeProvider());
  tls.watch_identity_key_cert_pairs();
  if (!options_.tls.client_ca.empty()) {
    tls.watch_root_certs();
    tls.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return WithProcessor(grpc::experimental::TlsServerCredentials(tls), false);
}

std::shared_ptr<grpc::ServerCredentials> AccessControl::UnixCredentials() const {
  if (identities_.empty()) return grpc::InsecureServerCredentials();  // the file's mode says who may connect
  return WithProcessor(grpc::experimental::LocalServerCredentials(UDS), true);
}

absl::StatusOr<const Identity*> AccessControl::CallerOf(const grpc::ServerContextBase& context) const {
  if (identities_.empty()) return &everybody_;
  const std::shared_ptr<const grpc::AuthContext> peer = context.auth_context();
  return Authenticate({ValuesOf(context.client_metadata(), kAuthorization), CertificateNames(peer.get()),
                       absl::StartsWith(context.peer(), "unix:")});
}

absl::StatusOr<const Identity*> AccessControl::Authorize(absl::string_view method,
                                                         const Credentials& credentials) const {
  const std::optional<Permission> needed = PermissionFor(method);
  const absl::StatusOr<const Identity*> caller = Authenticate(credentials);
  if (!needed.has_value()) return caller.ok() ? *caller : nullptr;
  if (!caller.ok()) {
    return absl::UnauthenticatedError(
        absl::StrCat(method, " needs the permission '", NameOf(*needed), "': ", caller.status().message()));
  }
  if ((*caller)->May(*needed)) return caller;
  return absl::PermissionDeniedError(absl::StrCat(method, " needs the permission '", NameOf(*needed),
                                                  "', which the identity ", cache::Quoted((*caller)->name),
                                                  " does not have"));
}

absl::StatusOr<const Identity*> AccessControl::Authenticate(const Credentials& credentials) const {
  if (identities_.empty()) return &everybody_;
  if (credentials.authorizations.size() > 1) {
    return absl::UnauthenticatedError("there are several 'authorization' entries; there may be one");
  }
  if (!credentials.authorizations.empty()) {
    const absl::string_view token = BearerToken(credentials.authorizations.front());
    if (token.empty()) return absl::UnauthenticatedError("the 'authorization' is not of the form 'Bearer TOKEN'");
    const std::optional<std::string> name = tokens_ == nullptr ? std::nullopt : tokens_->NameOf(token);
    if (!name.has_value()) return absl::UnauthenticatedError("the bearer token is not a known one");
    return &identities_.at(*name);  // the token file has names of identities only
  }
  const Identity* found = nullptr;
  for (const std::string& name : credentials.certificate_names) {
    const auto identity = identities_.find(name);
    if (identity == identities_.end() || &identity->second == found) continue;
    if (found != nullptr) {
      return absl::UnauthenticatedError(absl::StrCat("the client's certificate names two identities, ",
                                                     cache::Quoted(found->name), " and ", cache::Quoted(name)));
    }
    found = &identity->second;
  }
  if (found != nullptr) return found;
  if (credentials.own_user && own_user_ != nullptr) return own_user_;
  if (!credentials.certificate_names.empty()) {
    return absl::UnauthenticatedError("none of the names in the client's certificate is a configured identity");
  }
  return absl::UnauthenticatedError(options_.tls.client_ca.empty()
                                        ? "present a bearer token"
                                        : "present a bearer token, or a certificate that names an identity");
}

std::int64_t AccessControl::tenants() const {
  if (identities_.empty()) return 1;
  std::set<absl::string_view> tenants;
  for (const auto& [name, identity] : identities_) tenants.insert(identity.tenant);
  return static_cast<std::int64_t>(tenants.size());
}

void AccessControl::NoteRefusal(const absl::Status& status) const {
  if (options_.on_refusal) options_.on_refusal(status);
  const std::optional<std::int64_t> left_out = refusal_lines_.Admit(cache::SteadyNow());
  if (!left_out.has_value()) return;
  spdlog::warn("refused: {}{}", std::string(status.message()),
               *left_out > 0 ? absl::StrCat(" (and ", cache::Counted(*left_out, "call"), " before)") : "");
}

void AccessControl::KeepFresh() {
  Trouble with_tokens;
  Trouble with_certificate;
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, absl::ToChronoNanoseconds(options_.refresh_period), [this] { return stopping_; })) {
    lock.unlock();
    if (tokens_ != nullptr) {
      const absl::StatusOr<bool> read = tokens_->Refresh();
      with_tokens.Note(read, absl::StrCat(cache::Counted(tokens_->count(), "token"), " read from ", tokens_->path()));
    }
    if (certificate_ != nullptr) {
      const absl::StatusOr<bool> read = certificate_->Refresh();
      with_certificate.Note(read, absl::StrCat("TLS certificate: ", certificate_->description()));
    }
    lock.lock();
  }
}

}  // namespace gdpcache::rpc
