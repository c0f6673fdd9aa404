#include "weft/ps/core/replication/client_window.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "weft/base/check.h"

namespace weft::ps {

ClientWindow::ClientWindow(ClientWindowOptions options, int partitions,
                           PartitionMap map)
    : options_(options), map_(std::move(map)), partitions_(partitions) {
  WEFT_CHECK_GT(map_.epoch(), uint64_t{0});
  WEFT_CHECK_GT(options.first_sequence, uint64_t{0});
  for (int i = 0; i < partitions; ++i) {
    partitions_[i].last = options.first_sequence - 1;
    partitions_[i].epoch = EntryOf(i).epoch;
  }
}

ClientWindow::Action& ClientWindow::Add(Action::Kind kind, int partition,
                                        uint64_t sequence) {
  actions_.emplace_back();
  Action& action = actions_.back();
  action.kind = kind;
  action.partition = partition;
  action.request.mark.sequence = sequence;
  return action;
}

void ClientWindow::AddSend(int partition, uint64_t sequence, Bytes payload) {
  const PartitionMap::Entry& entry = EntryOf(partition);
  const Partition& state = partitions_[partition];
  Action& action = Add(Action::Kind::kSend, partition, sequence);
  action.request.entry = map_.EntryOf(partition);
  action.request.to = entry.primary;
  action.request.epoch = entry.epoch;
  action.request.mark.client = options_.client;
  action.request.mark.first = state.frames.front().sequence;
  action.payload = std::move(payload);
}

ClientWindow::Frame* ClientWindow::Find(int partition, uint64_t sequence) {
  for (Frame& frame : partitions_[partition].frames) {
    if (frame.sequence == sequence) return &frame;
  }
  return nullptr;
}

bool ClientWindow::HasRoom(int partition, int64_t bytes) const {
  const Partition& state = partitions_[partition];
  // The span of their numbers, not how many there are, is what a server can
  // tell apart.
  const bool fits =
      state.frames.empty() || state.last + 1 - state.frames.front().sequence <
                                  options_.most_outstanding;
  return fits && (bytes_ == 0 || bytes <= options_.most_bytes - bytes_);
}

uint64_t ClientWindow::Push(int partition, Bytes payload, Instant now) {
  WEFT_CHECK(HasRoom(partition, static_cast<int64_t>(payload.size())));
  Partition& state = partitions_[partition];
  bytes_ += static_cast<int64_t>(payload.size());
  state.frames.emplace_back();
  state.frames.back().sequence = ++state.last;
  state.frames.back().payload = std::move(payload);
  SendUnsent(partition, now);
  return state.last;
}

void ClientWindow::SendUnsent(int partition, Instant now) {
  Partition& state = partitions_[partition];
  if (state.is_refused || IsNone(EntryOf(partition).primary)) return;
  for (Frame& frame : state.frames) {
    if (frame.is_sent) continue;
    frame.is_sent = true;
    AddSend(partition, frame.sequence, frame.payload);
    state.resend_at = now + options_.resend_after;
    state.ask_at = now + options_.ask_every;
  }
}

void ClientWindow::OnMap(const PartitionMap& map, Instant now) {
  if (map.epoch() <= map_.epoch()) return;
  WEFT_CHECK_EQ(map.entries(), map_.entries());
  map_ = map;
  for (size_t i = 0; i < partitions_.size(); ++i) {
    Partition& state = partitions_[i];
    const int partition = static_cast<int>(i);
    if (state.epoch == EntryOf(partition).epoch) continue;
    state.epoch = EntryOf(partition).epoch;
    state.is_refused = false;
    for (Frame& frame : state.frames) frame.is_sent = frame.is_applied = false;
    SendUnsent(partition, now);
  }
}

void ClientWindow::Acknowledge(int partition, Frame& frame) {
  if (frame.is_answered) return;
  frame.is_answered = true;
  Add(Action::Kind::kAnswered, partition, frame.sequence);
}

void ClientWindow::Release(int partition, uint64_t through) {
  Partition& state = partitions_[partition];
  bool has_released = false;
  while (!state.frames.empty() && state.frames.front().sequence <= through) {
    Acknowledge(partition, state.frames.front());
    bytes_ -= static_cast<int64_t>(state.frames.front().payload.size());
    state.frames.pop_front();
    has_released = true;
  }
  if (has_released) Add(Action::Kind::kStable, partition, through);
}

void ClientWindow::OnAnswer(int partition, const Answer& answer, Instant now) {
  if (answer.map_epoch > map_.epoch()) {
    Add(Action::Kind::kLearnMap, partition, 0);
  }
  Partition& state = partitions_[partition];
  const bool is_current = answer.epoch == state.epoch;
  Frame* const frame = Find(partition, answer.sequence);
  switch (answer.code) {
    case Code::kOk:
      if (frame != nullptr) {
        Acknowledge(partition, *frame);
        frame->is_applied = frame->is_applied || is_current;
        if (options_.level == Durability::kD0) {
          bytes_ -= static_cast<int64_t>(frame->payload.size());
          state.frames.erase(
              std::find_if(state.frames.begin(), state.frames.end(),
                           [frame](const Frame& f) { return &f == frame; }));
        }
      }
      // True whoever says it, and whenever.
      return Release(partition, answer.stable_through);
    case Code::kTooFar:
      Add(Action::Kind::kBroken, partition, answer.sequence);
      return;
    case Code::kStale:
    case Code::kFenced:
    case Code::kBusy:
    case Code::kBehind:
      if (is_current) Refused(partition, answer.sequence, now);
      return;
  }
}

void ClientWindow::Refused(int partition, uint64_t sequence, Instant now) {
  Frame* const frame = Find(partition, sequence);
  if (frame == nullptr || frame->is_applied) return;
  frame->is_sent = false;
  Partition& state = partitions_[partition];
  if (!state.is_refused) state.retry_at = now + options_.retry_after;
  state.is_refused = true;
}

void ClientWindow::OnFailure(int partition, const PushRequest& request,
                             Instant now) {
  if (request.epoch != partitions_[partition].epoch) return;
  Refused(partition, request.mark.sequence, now);
}

void ClientWindow::OnTick(Instant now) {
  for (size_t i = 0; i < partitions_.size(); ++i) {
    if (!partitions_[i].frames.empty()) Retry(static_cast<int>(i), now);
  }
}

void ClientWindow::Retry(int partition, Instant now) {
  Partition& state = partitions_[partition];
  if (IsNone(EntryOf(partition).primary)) {
    // Somebody may come back who has it on disk.
    if (now < state.ask_at) return;
    Add(Action::Kind::kLearnMap, partition, 0);
    state.ask_at = now + options_.ask_every;
    return;
  }
  if (state.is_refused) {
    if (now < state.retry_at) return;
    state.is_refused = false;
    // Whoever refuses may not know of a newer map, nor live to tell.
    Add(Action::Kind::kLearnMap, partition, 0);
    return SendUnsent(partition, now);
  }
  const bool waits = std::any_of(state.frames.begin(), state.frames.end(),
                                 [](const Frame& f) { return !f.is_applied; });
  if (waits && now >= state.resend_at) {
    for (Frame& frame : state.frames) frame.is_sent = frame.is_applied;
    SendUnsent(partition, now);
  } else if (!waits && now >= state.ask_at &&
             !IsNone(EntryOf(partition).primary)) {
    state.ask_at = now + options_.ask_every;
    AddSend(partition, 0, Bytes());
  }
}

ReadRequest ClientWindow::Read(int partition) const {
  const Partition& state = partitions_[partition];
  ReadRequest read;
  read.entry = map_.EntryOf(partition);
  read.to = EntryOf(partition).primary;
  read.epoch = EntryOf(partition).epoch;
  read.client = options_.client;
  read.through = state.last;
  for (const Frame& frame : state.frames) {
    if (frame.is_answered) continue;
    read.through = frame.sequence - 1;
    break;
  }
  return read;
}

bool ClientWindow::IsStable() const {
  return std::all_of(partitions_.begin(), partitions_.end(),
                     [](const Partition& p) { return p.frames.empty(); });
}

std::string ClientWindow::DescribeWait(int partition) const {
  const Partition& state = partitions_[partition];
  const PartitionMap::Entry& entry = EntryOf(partition);
  if (state.frames.empty()) {
    return absl::StrCat("partition ", partition, ": nothing is outstanding");
  }
  return absl::StrCat(
      "partition ", partition, ": pushes ", state.frames.front().sequence,
      " to ", state.last, " wait for ",
      IsNone(entry.primary)
          ? IsLost(partition)
                ? std::string("nobody, for all servers that had it are gone")
                : absl::StrCat("server ", entry.heirs.front().ToString(),
                               " to come back with its log")
          : absl::StrCat("server ", entry.primary.ToString()),
      ", epoch ", entry.epoch, " of map ", map_.epoch());
}

std::string ClientWindow::Snapshot(Instant now) const {
  const auto since = [now](Instant at) {
    return std::max<int64_t>(absl::ToInt64Milliseconds(at - now), 0);
  };
  std::string out = absl::StrCat(map_.epoch(), ":");
  for (const Partition& state : partitions_) {
    absl::StrAppend(&out, state.last, ",", state.is_refused, ",",
                    since(state.retry_at), ",", since(state.resend_at), ",",
                    since(state.ask_at), ";");
    for (const Frame& frame : state.frames) {
      absl::StrAppend(&out, frame.sequence, frame.is_sent, frame.is_applied,
                      frame.is_answered, ";");
    }
  }
  return out;
}

}  // namespace weft::ps
