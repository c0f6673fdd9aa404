#include "weft/rpc/stream_table.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::rpc {

absl::StatusOr<std::shared_ptr<StreamBuffers>> StreamTable::FindOrAdd(
    const Worker& caller, uint64_t id, Driver& driver) {
  if (id == 0) {
    return absl::FailedPreconditionError(
        "a call without a session cannot open a stream");
  }
  MutexLock lock(mu_);
  Streams& streams = streams_[caller.key];
  const auto it = streams.find(id);
  if (it != streams.end()) return it->second;
  if (static_cast<int64_t>(streams.size()) >= most_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        caller.name, " (", caller.key.ToString(), ") has ", streams.size(),
        " streams open here, which is the limit of one caller; end some, or "
        "raise it there by --limits=rpc_streams=VALUE"));
  }
  auto buffers = std::make_shared<StreamBuffers>(driver);
  streams.emplace(id, buffers);
  return buffers;
}

void StreamTable::Remove(WorkerKey caller, uint64_t id) {
  std::shared_ptr<StreamBuffers> ended;
  MutexLock lock(mu_);
  const auto of = streams_.find(caller);
  if (of == streams_.end()) return;
  const auto it = of->second.find(id);
  if (it == of->second.end()) return;
  ended = std::move(it->second);
  of->second.erase(it);
  if (of->second.empty()) streams_.erase(of);
}

void StreamTable::RemoveAll(WorkerKey caller) {
  Streams ended;
  MutexLock lock(mu_);
  const auto of = streams_.find(caller);
  if (of == streams_.end()) return;
  ended.swap(of->second);
  streams_.erase(of);
}

void StreamTable::Clear() {
  absl::flat_hash_map<WorkerKey, Streams> ended;
  MutexLock lock(mu_);
  ended.swap(streams_);
}

int64_t StreamTable::size() const {
  int64_t size = 0;
  MutexLock lock(mu_);
  for (const auto& [caller, streams] : streams_) size += streams.size();
  return size;
}

}  // namespace weft::rpc
