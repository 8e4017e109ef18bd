#include "server/rpc/access/access_control.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/certificates.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::rpc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kInfo[] = "/gdpcache.v1.StateCache/GetServerInfo";
constexpr char kOpen[] = "/gdpcache.v1.StateCache/OpenSession";
constexpr char kHealth[] = "/grpc.health.v1.Health/Check";
constexpr char kEngineToken[] = "engine-token-0123456789";

class AccessControlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    test::WriteSecret(Path("tokens"), std::string(kEngineToken) + " engine\nreader-token-0123456789 reader\n");
    AccessOptions options;
    options.identities = identities_;
    options.token_file = Path("tokens");
    auto access = AccessControl::Create(options);
    ASSERT_TRUE(access.ok()) << access.status();
    access_ = *std::move(access);
  }

  std::string Path(const std::string& name) const { return directory_.path() + "/" + name; }

  /// The identity's name, or the error's code.
  std::string Who(const char* method, const Credentials& credentials) const {
    const absl::StatusOr<const Identity*> caller = access_->Authorize(method, credentials);
    if (!caller.ok()) {
      EXPECT_THAT(std::string(caller.status().message()), AllOf(HasSubstr(method), Not(HasSubstr("token-0123"))));
      return absl::StatusCodeToString(caller.status().code());
    }
    return *caller == nullptr ? "nobody" : (*caller)->name;
  }

  std::vector<Identity> identities_ = {{"engine", "chat", {Permission::kData}},
                                       {"reader", "search", {Permission::kRead}},
                                       {"operator", "chat", {Permission::kAdmin}}};
  test::TemporaryDirectory directory_;
  std::shared_ptr<const AccessControl> access_;
};

TEST_F(AccessControlTest, ATokenComesBeforeACertificate) {
  EXPECT_EQ(Who(kInfo, {{"Bearer engine-token-0123456789"}, {}, false}), "engine");
  EXPECT_EQ(Who(kInfo, {{"bearer  engine-token-0123456789"}, {}, false}), "engine");
  EXPECT_EQ(Who(kInfo, {{"Bearer engine-token-0123456789"}, {"operator"}, true}), "engine");
  EXPECT_EQ(Who(kInfo, {{}, {"a.example", "operator"}, false}), "operator");
  EXPECT_EQ(Who(kInfo, {{"Bearer wrong-token-0123456789"}, {"operator"}, true}), "UNAUTHENTICATED");
}

TEST_F(AccessControlTest, WhoCannotShowToBeAnybodyIsRefused) {
  for (const Credentials& credentials :
       {Credentials{}, Credentials{{"engine-token-0123456789"}, {}, false}, Credentials{{"Basic abc"}, {}, false},
        Credentials{{"Bearer "}, {}, true}, Credentials{{""}, {}, true},
        Credentials{{"Bearer engine-token-0123456789", "Bearer engine-token-0123456789"}, {}, false},
        Credentials{{}, {}, true}, Credentials{{}, {"stranger", ""}, false},
        Credentials{{}, {"engine", "reader"}, true}}) {
    EXPECT_EQ(Who(kInfo, credentials), "UNAUTHENTICATED");
    EXPECT_EQ(Who(kHealth, credentials), "nobody") << "a probe has none";
  }
  EXPECT_EQ(Who(kInfo, {{}, {"engine", "engine"}, false}), "engine");
}

TEST_F(AccessControlTest, TheServersOwnUserIsTheIdentityThatStandsForIt) {
  identities_[1].by_own_user = true;
  SetUp();
  EXPECT_EQ(Who(kInfo, {{}, {}, true}), "reader");
  EXPECT_EQ(Who(kOpen, {{}, {}, true}), "PERMISSION_DENIED");
  EXPECT_EQ(Who(kOpen, {{"Bearer engine-token-0123456789"}, {}, true}), "engine");
  EXPECT_EQ(Who(kInfo, {{"Bearer wrong-token-0123456789"}, {}, true}), "UNAUTHENTICATED");
  EXPECT_EQ(Who(kInfo, {{}, {}, false}), "UNAUTHENTICATED") << "over TCP";
}

TEST_F(AccessControlTest, RefusalsNameMethodPermissionAndIdentity) {
  EXPECT_EQ(Who(kOpen, {{"Bearer reader-token-0123456789"}, {}, false}), "PERMISSION_DENIED");
  EXPECT_EQ(
      access_->Authorize(kOpen, {{"Bearer reader-token-0123456789"}, {}, false}).status().message(),
      "/gdpcache.v1.StateCache/OpenSession needs the permission 'data', which the identity 'reader' does not have");
  EXPECT_EQ(access_->Authorize(kOpen, {}).status().message(),
            "/gdpcache.v1.StateCache/OpenSession needs the permission 'data': present a bearer token");
}

TEST_F(AccessControlTest, CountsTenants) {
  EXPECT_EQ(access_->tenants(), 2) << "chat and search";
  EXPECT_EQ(AccessControl::Everybody()->tenants(), 1);
}

TEST_F(AccessControlTest, WithoutIdentitiesEverybodyMayDoEverything) {
  const std::shared_ptr<const AccessControl> open = AccessControl::Everybody();
  for (const char* method : {kInfo, kOpen, "/gdpcache.v1.StateCache/DeleteCache"}) {
    const absl::StatusOr<const Identity*> caller = open->Authorize(method, {{"Bearer whatever"}, {}, false});
    ASSERT_TRUE(caller.ok()) << caller.status();
    EXPECT_EQ((*caller)->tenant, "default");
  }
}

TEST_F(AccessControlTest, FilesThatCannotBeUsedEndTheStart) {
  AccessOptions options;
  options.identities = {{"engine", "chat", {Permission::kData}}};
  options.token_file = Path("none");
  EXPECT_THAT(std::string(AccessControl::Create(options).status().message()), HasSubstr(Path("none")));
  options.token_file = "";
  options.tls = {Path("crt"), Path("key"), ""};
  EXPECT_THAT(std::string(AccessControl::Create(options).status().message()), HasSubstr(Path("crt")));
}

}  // namespace
}  // namespace gdpcache::rpc
