// What tenants of one server see of each other: nothing.

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gdpcache/v1/state_cache.grpc.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/access_support.h"

namespace gdpcache {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kPrefix[] = "/gdpcache.v1.StateCache/";

std::string Key(char c) { return std::string(16, c); }

/// One caller's calls.
class Tenant {
 public:
  Tenant(std::shared_ptr<grpc::Channel> channel, const Person& person)
      : channel_(std::move(channel)), metadata_(person.metadata()) {}

  test::RawAnswer Raw(const std::string& method, const Message& request) const {
    return test::CallRaw(channel_, kPrefix + method, request.SerializeAsString(), metadata_);
  }

  template <typename Response>
  Response Call(const std::string& method, const Message& request) const {
    const test::RawAnswer answer = Raw(method, request);
    EXPECT_TRUE(answer.status.ok()) << method << ": " << answer.status.error_message();
    Response response;
    EXPECT_TRUE(response.ParseFromString(answer.bytes));
    return response;
  }

  std::string Open() const {
    v1::OpenSessionRequest request;
    request.set_cache("model");
    request.set_client_name("somebody");
    return Call<v1::OpenSessionResponse>("OpenSession", request).session();
  }

  std::int64_t Acquire(const std::string& session) const {
    v1::AcquireSlotsRequest request;
    request.set_session(session);
    request.set_count(1);
    return Call<v1::AcquireSlotsResponse>("AcquireSlots", request).slots(0);
  }

  void Save(const std::string& session, std::int64_t slot, const std::string& key) const {
    v1::SaveSnapshotsRequest request;
    request.set_session(session);
    request.add_saves()->set_slot(slot);
    request.mutable_saves(0)->set_key(key);
    const auto response = Call<v1::SaveSnapshotsResponse>("SaveSnapshots", request);
    ASSERT_EQ(response.outcomes_size(), 1);
    EXPECT_EQ(response.outcomes(0).result(), v1::SNAPSHOT_RESULT_STORED) << response.DebugString();
  }

  std::unique_ptr<test::RawStream> Watch() const {
    v1::WatchSnapshotsRequest request;
    request.set_cache("model");
    request.set_existing(true);
    return std::make_unique<test::RawStream>(channel_, absl::StrCat(kPrefix, "WatchSnapshots"),
                                             request.SerializeAsString(), metadata_);
  }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const test::RawMetadata metadata_;
};

/// Sets a field of this name in a request, or in what its first frame holds. False if there is none.
bool SetField(Message& message, const std::string& name, const std::string& value) {
  if (const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name)) {
    message.GetReflection()->SetString(&message, field, value);
    return true;
  }
  if (message.GetDescriptor()->real_oneof_decl_count() == 0) return false;
  const FieldDescriptor& first = *message.GetDescriptor()->oneof_decl(0)->field(0);
  if (first.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) return false;
  return SetField(*message.GetReflection()->MutableMessage(&message, &first), name, value);
}

/// What the methods that name a session, or a cache, take; by their names.
std::map<std::string, std::unique_ptr<Message>> RequestsWith(const std::string& field, const std::string& value) {
  std::map<std::string, std::unique_ptr<Message>> requests;
  const google::protobuf::ServiceDescriptor& service =
      *google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(v1::StateCache::service_full_name());
  for (int n = 0; n < service.method_count(); ++n) {
    const MethodDescriptor& method = *service.method(n);
    std::unique_ptr<Message> request(
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(method.input_type())->New());
    if (SetField(*request, field, value)) requests.emplace(method.name(), std::move(request));
  }
  return requests;
}

class TenantTest : public ::testing::Test {
 protected:
  void SetUp() override {
    v1::CreateCacheRequest create;
    create.set_name("model");
    v1::CacheGeometry& geometry = *create.mutable_geometry();
    geometry.set_layers(2);
    geometry.set_slots(4);
    geometry.set_heads(1);
    geometry.set_key_dim(8);
    geometry.set_value_dim(8);
    chat_.Call<v1::CreateCacheResponse>("CreateCache", create);
    search_.Call<v1::CreateCacheResponse>("CreateCache", create);  // shares it
  }

  SecureServer server_{SecureServer::Transport::kLoopback, {"--listen=127.0.0.1:0"}};
  const Tenant chat_{server_.Connect(), kEngine};
  const Tenant search_{server_.Connect(), kOtherEngine};
  const Tenant operator_{server_.Connect(), kOperator};
};

TEST_F(TenantTest, ASessionOfAnotherTenantCannotBeToldFromNone) {
  const std::string session = chat_.Open();
  const std::string none(session.size(), '0');
  const auto requests = RequestsWith("session", session);
  EXPECT_GE(requests.size(), 17u);
  for (const auto& [method, request] : requests) {
    const test::RawAnswer answer = search_.Raw(method, *request);
    const bool of_gpus = method.starts_with("RegisterCuda");
    EXPECT_EQ(answer.status.error_code(), of_gpus ? grpc::StatusCode::UNIMPLEMENTED : grpc::StatusCode::NOT_FOUND)
        << method;
    SetField(*request, "session", none);
    EXPECT_EQ(answer.status.error_message(), search_.Raw(method, *request).status.error_message()) << method;
  }
  v1::KeepAliveRequest keep_alive;
  keep_alive.set_session(session);
  chat_.Call<v1::KeepAliveResponse>("KeepAlive", keep_alive);
}

/// All that the methods which name a cache answer to somebody who has heard of another tenant's key, pin and upload.
std::map<std::string, std::pair<grpc::StatusCode, std::string>> AnswersAbout(const Tenant& tenant,
                                                                             const std::string& own_session,
                                                                             std::int64_t slot, const std::string& key,
                                                                             const std::string& pin) {
  std::map<std::string, std::pair<grpc::StatusCode, std::string>> answers;
  for (auto& [method, request] : RequestsWith("cache", "model")) {
    if (method == "OpenSession" || method == "ListSlots") continue;  // they name nothing that could be another's
    const FieldDescriptor* const keys = request->GetDescriptor()->FindFieldByName("keys");
    const bool has_key = SetField(*request, "key", key);
    if (keys != nullptr) request->GetReflection()->AddString(request.get(), keys, key);
    const bool has_pin = SetField(*request, "pin", pin);
    const bool has_upload = SetField(*request, "upload", "upload");
    EXPECT_TRUE(keys != nullptr || has_key || has_pin || has_upload || method == "ListSnapshots" ||
                method == "WatchSnapshots")
        << method << " is new: what does it tell?";
    if (method == "WatchSnapshots") continue;  // has a test of its own
    if (auto* write = dynamic_cast<v1::WriteSnapshotRequest*>(request.get())) {
      write->mutable_header()->set_size(1'000);
      write->mutable_header()->set_offset(1);
    }
    const test::RawAnswer answer = tenant.Raw(method, *request);
    answers[method] = {answer.status.error_code(), answer.bytes + answer.status.error_message()};
  }
  v1::RestoreSnapshotsRequest restore;
  restore.set_session(own_session);
  restore.add_restores()->set_key(key);
  restore.mutable_restores(0)->add_slots(slot);
  restore.set_pin(pin);
  const test::RawAnswer answer = tenant.Raw("RestoreSnapshots", restore);
  answers["RestoreSnapshots"] = {answer.status.error_code(), answer.status.error_message()};
  return answers;
}

TEST_F(TenantTest, AnswersAreTheSameWhetherAnotherTenantHasSomethingOrNot) {
  const std::string session = chat_.Open();
  const std::int64_t slot = chat_.Acquire(session);
  const std::string key = Key('a');
  chat_.Save(session, slot, key);
  v1::PinSnapshotsRequest pin_request;
  pin_request.set_cache("model");
  pin_request.add_keys(key);
  const std::string pin = chat_.Call<v1::PinSnapshotsResponse>("PinSnapshots", pin_request).pin();
  v1::WriteSnapshotRequest upload;
  upload.mutable_header()->set_cache("model");
  upload.mutable_header()->set_upload("upload");
  upload.mutable_header()->set_size(1'000);
  EXPECT_EQ(chat_.Raw("WriteSnapshot", upload).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << "broken off";
  v1::QueryWriteStatusRequest query;
  query.set_cache("model");
  query.set_upload("upload");
  EXPECT_EQ(chat_.Call<v1::QueryWriteStatusResponse>("QueryWriteStatus", query).size(), 1'000);

  const std::string own_session = search_.Open();
  const std::int64_t own_slot = search_.Acquire(own_session);
  const auto with = AnswersAbout(search_, own_session, own_slot, key, pin);
  for (const char* method :
       {"RestoreSnapshots", "PinSnapshots", "UnpinSnapshots", "ReadSnapshot", "QueryWriteStatus", "WriteSnapshot"}) {
    EXPECT_EQ(with.at(method).first, grpc::StatusCode::NOT_FOUND) << method;
  }
  for (const char* method : {"LookupPrefix", "DeleteSnapshots", "ListSnapshots"}) {
    EXPECT_EQ(with.at(method).first, grpc::StatusCode::OK) << method;
  }

  v1::DeleteSnapshotsRequest remove;
  remove.set_cache("model");
  remove.add_keys(key);
  remove.set_force(true);
  EXPECT_EQ(chat_.Call<v1::DeleteSnapshotsResponse>("DeleteSnapshots", remove).deleted(), 1) << "it was still there";
  v1::CloseSessionRequest close;
  close.set_session(session);
  chat_.Call<v1::CloseSessionResponse>("CloseSession", close);
  EXPECT_EQ(AnswersAbout(search_, own_session, own_slot, key, pin), with);
}

TEST_F(TenantTest, TheSameKeyOfTwoTenantsIsTwoSnapshots) {
  for (const Tenant* tenant : {&chat_, &search_}) {
    const std::string session = tenant->Open();
    tenant->Save(session, tenant->Acquire(session), Key('a'));
  }
  v1::DeleteSnapshotsRequest remove;
  remove.set_cache("model");
  remove.add_keys(Key('a'));
  EXPECT_EQ(chat_.Call<v1::DeleteSnapshotsResponse>("DeleteSnapshots", remove).deleted(), 1);
  v1::ListSnapshotsRequest list;
  list.set_cache("model");
  EXPECT_THAT(search_.Call<v1::ListSnapshotsResponse>("ListSnapshots", list).snapshots(), SizeIs(1));
  EXPECT_THAT(chat_.Call<v1::ListSnapshotsResponse>("ListSnapshots", list).snapshots(), IsEmpty());
}

TEST_F(TenantTest, WatchersAreToldOfTheirOwn) {
  const auto watch = search_.Watch();
  v1::WatchSnapshotsResponse told;
  ASSERT_TRUE(told.ParseFromString(watch->Read().value_or("none")));
  EXPECT_EQ(told.events(0).type(), v1::SnapshotEvent::TYPE_SYNCED);
  const std::string session = chat_.Open();
  chat_.Save(session, chat_.Acquire(session), Key('a'));
  const std::string own_session = search_.Open();
  search_.Save(own_session, search_.Acquire(own_session), Key('b'));
  ASSERT_TRUE(told.ParseFromString(watch->Read().value_or("none")));
  ASSERT_THAT(told.events(), SizeIs(1));
  EXPECT_EQ(told.events(0).key(), Key('b'));
}

TEST_F(TenantTest, OneTenantDoesNotTakeAllWatches) {
  std::vector<std::unique_ptr<test::RawStream>> watches;
  for (int n = 0; n < 128; ++n) {
    watches.push_back(chat_.Watch());
    ASSERT_TRUE(watches.back()->Read().has_value()) << n;
  }
  const auto refused = chat_.Watch();
  EXPECT_FALSE(refused->Read().has_value());
  EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(search_.Watch()->Read().has_value());
}

TEST_F(TenantTest, SlotsOfOthersAreNeitherShownNorTouched) {
  const std::string session = chat_.Open();
  const std::int64_t slot = chat_.Acquire(session);
  const std::string own_session = search_.Open();
  v1::ListSlotsRequest list;
  list.set_cache("model");
  const auto slots_of = [&list](const Tenant& tenant) {
    const auto response = tenant.Call<v1::ListSlotsResponse>("ListSlots", list);
    EXPECT_EQ(response.free_slots(), 3);
    std::vector<std::int64_t> slots;
    for (const v1::SlotInfo& info : response.slots()) slots.push_back(info.slot());
    return slots;
  };
  EXPECT_THAT(slots_of(chat_), ElementsAre(slot));
  EXPECT_THAT(slots_of(search_), IsEmpty());
  EXPECT_THAT(slots_of(operator_), ElementsAre(slot));

  v1::ResetSlotsRequest reset;
  reset.set_session(own_session);
  reset.add_slots(slot);
  const grpc::Status of_another = search_.Raw("ResetSlots", reset).status;
  EXPECT_EQ(of_another.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  v1::ReleaseSlotsRequest release;
  release.set_session(session);
  release.add_slots(slot);
  chat_.Call<v1::ReleaseSlotsResponse>("ReleaseSlots", release);
  EXPECT_EQ(search_.Raw("ResetSlots", reset).status.error_message(), of_another.error_message()) << "a free one";
}

}  // namespace
}  // namespace gdpcache
