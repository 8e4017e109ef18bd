// A client to be killed: shares memory and has prefills run on it, one after the other, in a session of its own. Prints
// "running" when the first is over, and goes on until it is killed.
//
//   shared_memory_client ADDRESS CACHE

#include <cstdint>
#include <cstdio>
#include <cstring>

#include "gdpcache/client.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const absl::StatusOr<gdpcache::Client> client = gdpcache::Client::Connect(argv[1]);
  if (!client.ok()) return 1;
  absl::StatusOr<gdpcache::Session> session =
      client->OpenSession(argv[2], {.ttl = absl::Milliseconds(500), .client_name = "to be killed"});
  if (!session.ok()) return 1;
  constexpr std::int64_t kTokens = 16384;
  const gdpcache::CacheGeometry& geometry = session->geometry();
  const std::int64_t bytes = kTokens * geometry.heads * geometry.key_dim * 2;
  absl::StatusOr<gdpcache::SharedMemory> memory = session->ShareMemory(2 * bytes);
  const absl::StatusOr<std::vector<std::int64_t>> slots = session->AcquireSlots(1);
  if (!memory.ok() || !slots.ok()) return 1;
  std::memset(memory->data(), 0x3c, static_cast<std::size_t>(2 * bytes));
  gdpcache::PrefillCall call;
  call.k = {gdpcache::DataType::kBFloat16, {kTokens, geometry.heads, geometry.key_dim}, memory->data()};
  call.w = call.k;
  call.u = call.k;
  call.state_indices = *slots;
  call.save_new_value = true;
  call.outputs.v_new = gdpcache::Tensor{call.u.dtype, call.u.shape, memory->data() + bytes};
  call.transport = gdpcache::Transport::kSharedMemory;
  for (bool first = true; session->Prefill(call).ok(); first = false) {
    if (!first) continue;
    std::puts("running");
    std::fflush(stdout);
  }
  return 1;
}
