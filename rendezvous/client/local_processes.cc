// LocalProcesses: see the header.

#include "weft/rendezvous/client/local_processes.h"

#include <utility>

#include "weft/rendezvous/wire.h"

namespace weft::rendezvous {

bool LocalProcesses::Follow(const v1::View& view) {
  for (const v1::Member& member : view.members()) {
    if (!member.hosts_coordinator() || !member.has_process()) continue;
    if (member.incarnation() == host_incarnation_) return false;
    host_ = member.name();
    host_incarnation_ = member.incarnation();
    host_process_ = ProcessWatch::Of(member.process());
    members_.clear();
    return true;
  }
  return false;
}

std::vector<MemberCore::Event> LocalProcesses::Look(const MemberCore& core,
                                                    WorkerKey self) {
  std::vector<MemberCore::Event> seen;
  if (host_process_.has_value()) {
    if (!host_process_->HasEnded()) {
      if (core.hears_nothing() && host_process_->HasRun()) {
        seen.push_back(MemberCore::HostRan{});
      }
      return seen;
    }
    host_process_.reset();
    for (const v1::Member& member : core.view().members()) {
      const WorkerKey key = FromWire(member.key());
      if (key == self || !member.has_process()) continue;
      auto process = ProcessWatch::Of(member.process());
      if (process.has_value()) members_.emplace(key, *std::move(process));
    }
    seen.push_back(MemberCore::HostEnded{host_});
    return seen;
  }
  for (auto it = members_.begin(); it != members_.end();) {
    if (it->second.HasEnded()) {
      seen.push_back(MemberCore::MemberEnded{it->first});
      it = members_.erase(it);
    } else {
      ++it;
    }
  }
  return seen;
}

}  // namespace weft::rendezvous
