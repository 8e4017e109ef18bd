#include "server/rpc/shared_memory_codec.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace gdpcache::rpc {
namespace {

/// Keeps what it finds in the decoded request; the first error ends the search.
class Finder {
 public:
  Finder(const cache::SessionRegions& regions, std::vector<std::shared_ptr<const cache::Region>>& kept)
      : regions_(regions), kept_(kept) {}

  const cache::Region* Region(const std::string& name) {
    if (!status_.ok()) return nullptr;
    absl::StatusOr<std::shared_ptr<cache::Region>> found = regions_.Find(name);
    status_ = found.status();
    if (!found.ok()) return nullptr;
    const cache::Region* const region = found->get();
    if (std::find(kept_.begin(), kept_.end(), *found) == kept_.end()) kept_.push_back(*std::move(found));
    return region;
  }

  void Place(bool present, const v1::SharedMemoryRef& reference, engine::RegionPlace& place) {
    if (present) place = {.region = Region(reference.region()), .offset = reference.offset()};
  }

  void Place(const v1::Tensor& tensor, engine::TensorArgument& argument) {
    Place(tensor.has_shared_memory(), tensor.shared_memory(), argument.place);
  }

  void Event(const std::string& name, const cache::Region*& event) {
    if (!name.empty()) event = Region(name);
  }

  const absl::Status& status() const { return status_; }

 private:
  const cache::SessionRegions& regions_;
  std::vector<std::shared_ptr<const cache::Region>>& kept_;
  absl::Status status_;
};

}  // namespace

absl::Status FindSharedMemory(const v1::PrefillRequest& request, const cache::SessionRegions& regions,
                              engine::PrefillRequest& decoded) {
  Finder finder(regions, decoded.regions);
  finder.Place(request.k(), decoded.k);
  finder.Place(request.w(), decoded.w);
  finder.Place(request.u(), decoded.u);
  finder.Place(request.g(), decoded.g);
  finder.Place(request.initial_state(), decoded.initial_state);
  finder.Place(request.auxiliary_state(), decoded.auxiliary_state);
  const v1::OutputDestinations& outputs = request.outputs();
  finder.Place(outputs.has_h(), outputs.h(), decoded.outputs.h);
  finder.Place(outputs.has_v_new(), outputs.v_new(), decoded.outputs.v_new);
  finder.Place(outputs.has_final_state(), outputs.final_state(), decoded.outputs.final_state);
  finder.Event(request.ready_event(), decoded.ready_event);
  finder.Event(request.done_event(), decoded.done_event);
  finder.Place(request.has_done_flag(), request.done_flag().place(), decoded.done_flag.place);
  return finder.status();
}

void DescribePlaces(const v1::OutputDestinations& outputs, v1::PrefillResponse& response) {
  if (outputs.has_h()) *response.mutable_h()->mutable_shared_memory() = outputs.h();
  if (outputs.has_v_new()) *response.mutable_v_new()->mutable_shared_memory() = outputs.v_new();
  if (outputs.has_final_state()) *response.mutable_final_state()->mutable_shared_memory() = outputs.final_state();
}

}  // namespace gdpcache::rpc
