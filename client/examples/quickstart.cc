// Two requests share a model's cache: one prefill for both, then a fork.
//
//   quickstart [host:port | unix:PATH]

#include <cstdio>
#include <string>
#include <vector>

#include "gdpcache/client.h"

namespace {

absl::Status Run(const std::string& address) {
  absl::StatusOr<gdpcache::Client> client = gdpcache::Client::Connect(address);
  if (!client.ok()) return client.status();

  // The model's geometry. Engines that name the same cache share it.
  gdpcache::CacheSpec spec;
  spec.name = "quickstart";
  spec.ephemeral = true;  // goes with its last session
  spec.geometry = {.layers = 1, .slots = 16, .heads = 2, .key_dim = 64, .value_dim = 64};
  if (auto cache = client->CreateCache(spec); !cache.ok()) return cache.status();

  // A session owns slots, one for each request in flight. It renews itself and ends with the object.
  absl::StatusOr<gdpcache::Session> session = client->OpenSession(spec.name);
  if (!session.ok()) return session.status();
  absl::StatusOr<std::vector<std::int64_t>> slots = session->AcquireSlots(3);
  if (!slots.ok()) return slots.status();

  // What a layer of the model computed for 100 + 28 tokens: k, w, u and the decays g. Memory stays the caller's.
  const std::int64_t tokens = 128;
  const std::vector<float> k(tokens * 2 * 64, 0.125F);
  const std::vector<float> w(tokens * 2 * 64, 0.0625F);
  const std::vector<float> u(tokens * 2 * 64, 1.0F);
  const std::vector<float> g(tokens * 2, -0.5F);
  const std::vector<std::int32_t> cu_seqlens = {0, 100, 128};
  const std::vector<std::int64_t> state_indices = {(*slots)[0], (*slots)[1]};

  gdpcache::PrefillCall call;
  call.k = {gdpcache::DataType::kFloat32, {tokens, 2, 64}, k.data()};
  call.w = {gdpcache::DataType::kFloat32, {tokens, 2, 64}, w.data()};
  call.u = {gdpcache::DataType::kFloat32, {tokens, 2, 64}, u.data()};
  call.g = gdpcache::ConstTensor{gdpcache::DataType::kFloat32, {tokens, 2}, g.data()};
  call.cu_seqlens = cu_seqlens;
  call.state_indices = state_indices;
  call.save_new_value = true;            // v_new, the corrected values
  call.states = gdpcache::States::kAll;  // h, the state at every chunk boundary
  absl::StatusOr<gdpcache::PrefillResult> result = session->Prefill(call);
  if (!result.ok()) return result.status();

  std::printf("%lld boundary states, slots at positions %lld and %lld, v_new[0] = %g\n",
              static_cast<long long>(result->h.shape()[0]), static_cast<long long>(result->positions[0]),
              static_cast<long long>(result->positions[1]), static_cast<double>(result->v_new.As<float>()[0]));

  // Sample a second continuation of the first request: fork its state.
  return session->CopySlots({{.source = (*slots)[0], .destinations = {(*slots)[2]}}});
}

}  // namespace

int main(int argc, char** argv) {
  const absl::Status status = Run(argc > 1 ? argv[1] : "127.0.0.1:7411");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
