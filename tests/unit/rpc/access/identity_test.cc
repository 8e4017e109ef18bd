#include "server/rpc/access/identity.h"

#include <map>
#include <optional>
#include <string>

#include "gdpcache/v1/state_cache.pb.h"
#include "gtest/gtest.h"

namespace gdpcache::rpc {
namespace {

TEST(IdentityTest, EveryMethodOfTheServiceHasBeenThoughtOf) {
  const std::map<std::string, Permission> expected = {
      {"GetServerInfo", Permission::kRead},      {"GetServerStats", Permission::kRead},
      {"CreateCache", Permission::kData},        {"DeleteCache", Permission::kAdmin},
      {"ListCaches", Permission::kRead},         {"OpenSession", Permission::kData},
      {"KeepAlive", Permission::kData},          {"CloseSession", Permission::kData},
      {"AcquireSlots", Permission::kData},       {"ReleaseSlots", Permission::kData},
      {"ResetSlots", Permission::kData},         {"CopySlots", Permission::kData},
      {"ListSlots", Permission::kRead},          {"ReadSlots", Permission::kData},
      {"WriteSlots", Permission::kData},         {"Prefill", Permission::kData},
      {"PrefillStream", Permission::kData},      {"RegisterSystemMemory", Permission::kData},
      {"RegisterCudaMemory", Permission::kData}, {"RegisterCudaEvent", Permission::kData},
      {"UnregisterMemory", Permission::kData},   {"ListSharedMemory", Permission::kData},
      {"SaveSnapshots", Permission::kData},      {"LookupPrefix", Permission::kData},
      {"RestoreSnapshots", Permission::kData},   {"PinSnapshots", Permission::kData},
      {"UnpinSnapshots", Permission::kData},     {"DeleteSnapshots", Permission::kData},
      {"ListSnapshots", Permission::kRead},      {"WatchSnapshots", Permission::kRead},
      {"ReadSnapshot", Permission::kData},       {"WriteSnapshot", Permission::kData},
      {"QueryWriteStatus", Permission::kRead}};
  const google::protobuf::FileDescriptor* const file =
      google::protobuf::DescriptorPool::generated_pool()->FindFileByName("gdpcache/v1/state_cache.proto");
  ASSERT_NE(file, nullptr);
  const google::protobuf::ServiceDescriptor& service = *file->service(0);
  EXPECT_EQ(service.method_count(), static_cast<int>(expected.size()));
  for (int n = 0; n < service.method_count(); ++n) {
    const std::string& name = service.method(n)->name();
    ASSERT_TRUE(expected.contains(name)) << name << " is new: what does it need?";
    EXPECT_EQ(PermissionFor("/gdpcache.v1.StateCache/" + name), expected.at(name)) << name;
  }
}

TEST(IdentityTest, OtherServices) {
  EXPECT_EQ(PermissionFor("/grpc.health.v1.Health/Check"), std::nullopt);
  EXPECT_EQ(PermissionFor("/grpc.health.v1.Health/Watch"), std::nullopt);
  EXPECT_EQ(PermissionFor("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"), Permission::kRead);
  EXPECT_EQ(PermissionFor("/grpc.channelz.v1.Channelz/GetServers"), Permission::kAdmin);
  for (const char* unknown : {"", "/", "GetServerInfo", "/gdpcache.v1.StateCache/", "/gdpcache.v1.StateCache/New",
                              "/gdpcache.v2.StateCache/ListCaches", "/grpc.health.v1.Healthy/Check"}) {
    EXPECT_EQ(PermissionFor(unknown), Permission::kData) << unknown;
  }
}

TEST(IdentityTest, WhoMayDoAnythingMayLookOn) {
  for (const Permission permission : {Permission::kRead, Permission::kData, Permission::kAdmin}) {
    const Identity identity = {.name = "a", .tenant = "t", .permissions = {permission}};
    EXPECT_TRUE(identity.May(Permission::kRead));
    EXPECT_EQ(identity.May(Permission::kData), permission == Permission::kData);
    EXPECT_EQ(identity.May(Permission::kAdmin), permission == Permission::kAdmin);
  }
  EXPECT_FALSE(Identity().May(Permission::kRead));
}

}  // namespace
}  // namespace gdpcache::rpc
