#include "weft/ps/core/replication/restoring.h"

#include "absl/strings/str_cat.h"

namespace weft::ps {

Restoring::Step Restoring::Next(const PartitionMap& map) {
  using Kind = Step::Kind;
  Step step;
  bool is_current = map.generation() == generation_;
  if (is_current && !map.is_restoring()) {
    step.kind = Kind::kDone;
    return step;
  }
  if (map.generation() > generation_) {
    step.kind = Kind::kFailed;
    step.status = absl::AbortedError(
        "another checkpoint is being restored meanwhile, or was");
    return step;
  }
  if (absl::IsAborted(map.CheckLoaded(loaded_)) ||
      (is_current && map.lost() > 0)) {
    ++generation_;
    loaded_.clear();
    is_current = false;
  }
  step.generation = generation_;
  if (map.lost() > 0 || (map.is_restoring() && !is_current)) {
    step.kind = Kind::kBegin;
    return step;
  }
  step.status = map.CheckLoaded(loaded_);
  if (step.status.ok()) {
    step.kind = Kind::kEnd;
    return step;
  }
  for (const PartitionMap::Server& server : map.servers()) {
    if (server.state == PartitionMap::State::kLive &&
        loaded_.count(server.key) == 0) {
      step.servers.push_back(server.key);
    }
  }
  step.kind = step.servers.empty() ? Kind::kWait : Kind::kLoad;
  return step;
}

void Restoring::Loaded(WorkerKey server, uint64_t generation, uint64_t epoch) {
  if (generation == generation_) loaded_[server] = epoch;
}

MapChange Restoring::End() const {
  MapChange end;
  end.kind = MapChange::Kind::kEndRestore;
  end.generation = generation_;
  end.loaded = loaded_;
  return end;
}

}  // namespace weft::ps
