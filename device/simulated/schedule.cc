#include "weft/device/simulated/schedule.h"

#include "weft/base/check.h"

namespace weft::device {

Schedule::Schedule(uint64_t seed) : random_(seed) {
  // Some seeds run each task as soon as it is there, some none before somebody
  // waits; some keep an order of the streams to the end, some change it.
  constexpr uint64_t kEarly[] = {0, 0, 8, 2, 1};
  constexpr uint64_t kRedraw[] = {0, 0, 16, 4, 1};
  early_one_in_ = kEarly[random_() % 5];
  redraw_one_in_ = kRedraw[random_() % 5];
}

int Schedule::AddStream() {
  queues_.emplace_back();
  queues_.back().priority = random_();
  return static_cast<int>(queues_.size()) - 1;
}

void Schedule::Enqueue(int stream, int64_t task) {
  WEFT_CHECK_GE(task, 0);
  queues_.at(stream).items.push_back({task, Mark()});
  ++pending_tasks_;
}

void Schedule::Wait(int stream, Mark mark) {
  if (IsDone(mark)) return;
  queues_.at(stream).items.push_back({-1, mark});
}

Schedule::Mark Schedule::MarkOf(int stream) const {
  const Queue& queue = queues_.at(stream);
  return {stream, queue.done + static_cast<int64_t>(queue.items.size())};
}

bool Schedule::IsDone(Mark mark) const {
  return queues_.at(mark.stream).done >= mark.position;
}

void Schedule::DropWaits() {
  for (bool dropped = true; dropped;) {
    dropped = false;
    for (Queue& queue : queues_) {
      while (!queue.items.empty() && queue.items.front().task < 0 &&
             IsDone(queue.items.front().mark)) {
        queue.items.pop_front();
        ++queue.done;
        dropped = true;
      }
    }
  }
}

absl::optional<Schedule::Pick> Schedule::Next() {
  int best = -1;
  for (int i = 0; i < static_cast<int>(queues_.size()); ++i) {
    const Queue& queue = queues_[i];
    if (queue.hangs || queue.items.empty() || queue.items.front().task < 0) {
      continue;
    }
    if (best < 0 || queue.priority > queues_[best].priority) best = i;
  }
  if (best < 0) return absl::nullopt;
  if (Draw(redraw_one_in_)) queues_[best].priority = random_();
  return Pick{best, queues_[best].items.front().task};
}

void Schedule::Finish(Pick pick) {
  Queue& queue = queues_.at(pick.stream);
  WEFT_CHECK(!queue.items.empty());
  WEFT_CHECK_EQ(queue.items.front().task, pick.task);
  queue.items.pop_front();
  ++queue.done;
  --pending_tasks_;
  DropWaits();
}

bool Schedule::DrawEarly() { return Draw(early_one_in_); }

void Schedule::SetHangs(int stream, bool hangs) {
  queues_.at(stream).hangs = hangs;
}

bool Schedule::Draw(uint64_t one_in) {
  return one_in != 0 && random_() % one_in == 0;
}

}  // namespace weft::device
