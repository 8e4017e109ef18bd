#include "server/cache/snapshots/pending_snapshots.h"

namespace gdpcache::cache {

std::shared_ptr<PendingSnapshot> PendingSnapshots::Find(SessionKey session, const SpaceIndex& space,
                                                        absl::string_view key) const {
  const auto of_session = sessions_.find(session);
  if (of_session == sessions_.end()) return nullptr;
  const auto found = of_session->second.find(Name(&space, std::string(key)));
  return found == of_session->second.end() ? nullptr : found->second;
}

void PendingSnapshots::Add(std::shared_ptr<PendingSnapshot> pending) {
  by_time_.emplace(pending->last_part, pending.get());
  ++pending->space->tenant.unfinished;
  auto& of_session = sessions_[pending->session];
  Name name(pending->space.get(), pending->key);
  of_session.emplace(std::move(name), std::move(pending));
}

void PendingSnapshots::Remove(PendingSnapshot& pending) {
  by_time_.erase({pending.last_part, &pending});
  --pending.space->tenant.unfinished;
  pending.GiveBackRoom();
  const auto of_session = sessions_.find(pending.session);
  of_session->second.erase(Name(pending.space.get(), pending.key));
  if (of_session->second.empty()) sessions_.erase(of_session);
}

void PendingSnapshots::SetLastPart(PendingSnapshot& pending, absl::Time time) {
  by_time_.erase({pending.last_part, &pending});
  pending.last_part = time;
  by_time_.emplace(time, &pending);
}

std::vector<std::shared_ptr<PendingSnapshot>> PendingSnapshots::OfSession(SessionKey session, std::size_t most) const {
  std::vector<std::shared_ptr<PendingSnapshot>> found;
  const auto of_session = sessions_.find(session);
  if (of_session == sessions_.end()) return found;
  for (const auto& [name, pending] : of_session->second) {
    if (found.size() == most) break;
    found.push_back(pending);
  }
  return found;
}

std::vector<std::shared_ptr<PendingSnapshot>> PendingSnapshots::LastPartUntil(absl::Time time, std::size_t most) const {
  std::vector<std::shared_ptr<PendingSnapshot>> found;
  for (const auto& [last_part, pending] : by_time_) {
    if (last_part > time || found.size() == most) break;
    found.push_back(Find(pending->session, *pending->space, pending->key));
  }
  return found;
}

}  // namespace gdpcache::cache
