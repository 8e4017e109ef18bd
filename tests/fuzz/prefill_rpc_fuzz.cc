// Prefill, PrefillStream and WriteSlots through the whole rpc layer of a server in this process, memory shared with it
// included. The first byte chooses the call; a stream's messages each have two bytes of length before them. Requests
// that can be parsed get the session's id, which nobody could guess.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "client/library/connection.h"
#include "client/library/raw_call.h"
#include "gdpcache/v1/state_cache.pb.h"
#include "spdlog/spdlog.h"
#include "tests/fuzz/require.h"
#include "tests/support/eventually.h"
#include "tests/unit/rpc/served_world.h"

namespace gdpcache::rpc {
namespace {

using fuzz::Require;

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

class Target {
 public:
  Target()
      : world_({.staging_bytes = std::int64_t{4} << 20, .workers = 2, .segment_bytes = std::int64_t{16} << 10}),
        session_(world_.OpenSession({.layers = 2,
                                     .slots = 4,
                                     .heads = 1,
                                     .key_dim = 2,
                                     .value_dim = 3,
                                     .num_householder = 2,
                                     .state_dtype = kernels::DataType::kFloat32,
                                     .auxiliary_bytes = 3})),
        memory_(kRegionBytes + kBehindRegion, kGuard),
        connection_(client::Connection::Open(world_.server->addresses()[0], {}).value()) {
    spdlog::set_level(spdlog::level::off);
    auto region = std::make_shared<cache::Region>(cache::RegionKind::kSystem, memory_.data(), kRegionBytes,
                                                  [this] { region_released_ = true; });
    Require(session_->regions().Add("r", std::move(region)).ok(), "no region");
  }

  void Run(absl::string_view input) {
    if (input.empty()) return;
    const int method = input[0] % 3;
    input.remove_prefix(1);
    const absl::Status reset = engine::Complete<absl::Status>([this](auto done) {
      return world_.engine->ResetSlots({.session = session_}, {0, 1, 2, 3}, std::move(done));
    });
    Require(reset.ok(), "the slots cannot be reset");
    const std::size_t before = engine::Fingerprint(*session_->cache());
    const absl::Status status = method == 0 ? RunOne(input) : RunMany(input, method == 2);
    // Nothing is left of the call, and nothing of it has happened unless it succeeded.
    Require(test::Eventually([this] { return world_.engine->staging().used() == 0; }), "staging memory is leaked");
    Require(test::Eventually([this] { return Uses() == 0; }) && !region_released_, "a region's uses do not add up");
    Require(status.ok() || before == engine::Fingerprint(*session_->cache()),
            "a call that failed has changed the cache");
    Require(session_->cache()->slots().counts().held == 4, "slots were lost");
    Require(std::all_of(memory_.begin() + kRegionBytes, memory_.end(), [](std::byte byte) { return byte == kGuard; }),
            "memory behind the region was written");
    Require(!absl::IsInternal(status) && !absl::IsUnknown(status), "the server calls itself broken");
  }

 private:
  static constexpr std::size_t kRegionBytes = 4'000;
  static constexpr std::size_t kBehindRegion = 8'192;
  static constexpr std::byte kGuard{0x5A};

  std::int64_t Uses() const {
    std::int64_t uses = 0;
    for (const cache::SessionRegions::Entry& entry : session_->regions().List()) uses += entry.uses;
    return uses;
  }

  absl::Status RunOne(absl::string_view input) {
    std::string bytes(input);
    v1::PrefillRequest request;
    if (request.ParseFromString(bytes)) {
      request.set_session(session_->id());
      bytes = request.SerializeAsString();
    }
    grpc::ByteBuffer response;
    return client::RunUnary(*connection_, "/gdpcache.v1.StateCache/Prefill", absl::Now() + absl::Seconds(60),
                            BufferOf(bytes), &response);
  }

  absl::Status RunMany(absl::string_view input, bool slots) {
    const auto next = [&](grpc::ByteBuffer* message) {
      if (input.size() < 2) return false;
      const std::size_t size = std::min<std::size_t>(
          static_cast<std::uint8_t>(input[0]) + 256 * static_cast<std::size_t>(static_cast<std::uint8_t>(input[1])),
          input.size() - 2);
      *message = BufferOf(slots ? SlotsFrame(input.substr(2, size)) : PrefillFrame(input.substr(2, size)));
      input.remove_prefix(2 + size);
      return true;
    };
    return client::RunStream(*connection_,
                             slots ? "/gdpcache.v1.StateCache/WriteSlots" : "/gdpcache.v1.StateCache/PrefillStream",
                             absl::Now() + absl::Seconds(60), next, [](grpc::ByteBuffer&) { return absl::OkStatus(); });
  }

  std::string PrefillFrame(absl::string_view bytes) const {
    v1::PrefillFrame frame;
    if (!frame.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) || !frame.has_request()) {
      return std::string(bytes);
    }
    frame.mutable_request()->set_session(session_->id());
    return frame.SerializeAsString();
  }

  std::string SlotsFrame(absl::string_view bytes) const {
    v1::WriteSlotsFrame frame;
    if (!frame.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) || !frame.has_header()) {
      return std::string(bytes);
    }
    frame.mutable_header()->set_session(session_->id());
    return frame.SerializeAsString();
  }

  ServedWorld world_;
  const std::shared_ptr<cache::Session> session_;
  std::vector<std::byte> memory_;
  bool region_released_ = false;
  const std::shared_ptr<const client::Connection> connection_;
};

}  // namespace
}  // namespace gdpcache::rpc

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static auto& target = *new gdpcache::rpc::Target();
  target.Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
