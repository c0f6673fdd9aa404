#include "weft/ps/replicated/server_links.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "weft/ps/replicated/service.h"
#include "weft/rpc/call.h"

namespace weft::ps {
namespace {

constexpr absl::Duration kBatchTimeout = absl::Seconds(5);
constexpr int64_t kMostOfABatch = int64_t{16} << 20;  // bytes
// The limit of a batch of copies: one piece of a large partition, or the pieces
// of many small ones, which would else have a pause each.
constexpr int64_t kMostOfACopy = int64_t{1} << 17;
constexpr absl::Duration kRetryAfter = absl::Milliseconds(20);
constexpr absl::Duration kRetryFor = absl::Seconds(5);
// Messages that may wait for one server. Beyond that they are dropped.
constexpr size_t kMostWaiting = 65536;

// While pushes go on, a piece of a copy is followed by a pause of so many times
// what it took.
constexpr int kPauseOfAPiece = 10;
constexpr absl::Duration kLongestPause = absl::Milliseconds(200);
// Pushes count as going on for so long after the last one.
constexpr absl::Duration kPushesGoOn = absl::Milliseconds(100);

bool IsSamePiece(const Envelope& a, const Envelope& b) {
  return a.table == b.table && a.partition == b.partition &&
         a.message.epoch == b.message.epoch &&
         a.message.fill == b.message.fill && a.message.piece == b.message.piece;
}

}  // namespace

ServerLinks::~ServerLinks() {
  Shutdown();
  MutexLock lock(mu_);
  while (calls_ > 0) ended_.Wait(mu_);
}

void ServerLinks::Shutdown() {
  MutexLock lock(mu_);
  is_ending_ = true;
}

void ServerLinks::Enqueue(WorkerKey to, Envelope envelope) {
  MutexLock lock(mu_);
  Link& link = links_[to];
  if (envelope.message.kind == ReplicaMessage::Kind::kFill) {
    std::deque<Envelope>& pieces = link.copies.waiting;
    // A piece may be requested again while it still waits here.
    const bool waits = std::any_of(
        pieces.begin(), pieces.end(),
        [&](const Envelope& piece) { return IsSamePiece(piece, envelope); });
    if (!waits) pieces.push_back(std::move(envelope));
    return;
  }
  if (!envelope.message.entries.empty()) appended_ = SteadyClock().Now();
  std::deque<Envelope>& messages = link.messages.waiting;
  if (messages.size() < kMostWaiting) messages.push_back(std::move(envelope));
}

std::shared_ptr<ServerLinks::Batch> ServerLinks::Take(WorkerKey to,
                                                      Queue& queue,
                                                      bool is_copy,
                                                      Instant now) {
  if (queue.is_sending || queue.waiting.empty() || now < queue.send_at) {
    return nullptr;
  }
  queue.is_sending = true;
  ++calls_;
  auto batch = std::make_shared<Batch>();
  batch->to = to;
  batch->is_copy = is_copy;
  batch->sent_at = now;
  int64_t room = is_copy ? kMostOfACopy : kMostOfABatch;
  while (!queue.waiting.empty() && room > 0) {
    room -= queue.waiting.front().bytes();
    batch->envelopes.push_back(std::move(queue.waiting.front()));
    queue.waiting.pop_front();
  }
  return batch;
}

void ServerLinks::Flush() {
  std::vector<std::shared_ptr<Batch>> batches;
  {
    MutexLock lock(mu_);
    if (is_ending_) return;
    const Instant now = SteadyClock().Now();
    for (auto& [to, link] : links_) {
      batches.push_back(Take(to, link.messages, /*is_copy=*/false, now));
      batches.push_back(Take(to, link.copies, /*is_copy=*/true, now));
    }
  }
  for (auto& batch : batches) {
    if (batch != nullptr) Send(std::move(batch));
  }
}

void ServerLinks::Send(std::shared_ptr<Batch> batch) {
  const EncodedBatch encoded = EncodeBatch(batch->envelopes);
  rpc::CallAsync(agent_->To(batch->to, kBatchTimeout), &Replicate,
                 encoded.batch, encoded.payloads)
      .OnReady([this, batch](const absl::Status& status) {
        OnSent(*batch, status);
        MutexLock lock(mu_);
        if (--calls_ == 0) ended_.NotifyAll();
      });
}

void ServerLinks::OnSent(Batch& batch, const absl::Status& status) {
  {
    MutexLock lock(mu_);
    const auto it = links_.find(batch.to);
    if (it == links_.end()) return;
    Queue& queue = batch.is_copy ? it->second.copies : it->second.messages;
    queue.is_sending = false;
    const Instant now = SteadyClock().Now();
    if (status.ok()) {
      queue.failing_since = Instant::Infinite();
      if (batch.is_copy && now - appended_ < kPushesGoOn) {
        queue.send_at = now + std::min(kPauseOfAPiece * (now - batch.sent_at),
                                       kLongestPause);
      }
    } else {
      queue.failing_since = std::min(queue.failing_since, now);
      queue.send_at = now + kRetryAfter;
      if (now - queue.failing_since < kRetryFor) {
        queue.waiting.insert(queue.waiting.begin(),
                             std::make_move_iterator(batch.envelopes.begin()),
                             std::make_move_iterator(batch.envelopes.end()));
      } else {
        queue.waiting.clear();
      }
    }
  }
  Flush();
}

void ServerLinks::OnMap(const PartitionMap& map) {
  MutexLock lock(mu_);
  for (auto it = links_.begin(); it != links_.end();) {
    const bool is_over =
        map.StateOf(it->first) == PartitionMap::State::kExited &&
        !it->second.is_sending();
    it = is_over ? links_.erase(it) : std::next(it);
  }
}

}  // namespace weft::ps
