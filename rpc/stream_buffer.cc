#include "weft/rpc/stream_buffer.h"

#include <utility>

namespace weft::rpc {

void StreamBuffer::Open() {
  std::vector<Promise<void>> told;
  {
    MutexLock lock(mu_);
    is_open_ = true;
    if (HasRoom() && !is_overfull_) told.swap(writers_);
  }
  for (Promise<void>& promise : told) promise.Set(absl::OkStatus());
}

bool StreamBuffer::is_open() const {
  MutexLock lock(mu_);
  return is_open_;
}

std::optional<StreamBuffer::Batch> StreamBuffer::Take(
    std::vector<Promise<void>>* told) {
  if (!values_.empty()) {
    std::vector<Slices> taken;
    for (size_t bytes = 0; !values_.empty() && bytes < kWindowBytes &&
                           taken.size() < kWindowValues;) {
      const size_t size = TotalSize(values_.front());
      bytes += size;
      bytes_ -= size;
      taken.push_back(std::move(values_.front()));
      values_.pop_front();
    }
    if (is_open_ && HasRoom() && !is_overfull_) told->swap(writers_);
    return Batch(false, std::move(taken));
  }
  if (std::exchange(is_overfull_, false) && is_open_) told->swap(writers_);
  if (!has_ended_) return std::nullopt;
  told->swap(ending_);
  return Batch(true, {});
}

Future<void> StreamBuffer::Write(absl::Span<Slices> values, bool is_last) {
  std::optional<Promise<Batch>> reader;
  std::optional<Batch> batch;
  std::vector<Promise<void>> told;
  std::optional<Future<void>> room;
  {
    MutexLock lock(mu_);
    if (!aborted_.ok()) return MakeReady<void>(aborted_, driver_);
    if (has_ended_) {
      return MakeReady<void>(
          absl::FailedPreconditionError("no value may follow the last"),
          driver_);
    }
    has_ended_ = is_last;
    for (Slices& value : values) {
      bytes_ += TotalSize(value);
      values_.push_back(std::move(value));
    }
    is_overfull_ = is_overfull_ || (!values_.empty() && IsOverfull());
    if (reader_.has_value()) batch = Take(&told);
    if (batch.has_value()) reader.swap(reader_);
    if (!is_open_ || !HasRoom() || is_overfull_) {
      writers_.emplace_back(driver_);
      room = writers_.back().future();
    }
  }
  if (reader.has_value()) reader->Set(*std::move(batch));
  for (Promise<void>& promise : told) promise.Set(absl::OkStatus());
  if (room.has_value()) return *std::move(room);
  return MakeReady<void>(absl::OkStatus(), driver_);
}

Future<void> StreamBuffer::End() {
  std::optional<Promise<Batch>> reader;
  std::optional<Batch> batch;
  std::vector<Promise<void>> told;
  Promise<void> promise(driver_);
  Future<void> known = promise.future();
  {
    MutexLock lock(mu_);
    if (!aborted_.ok()) return MakeReady<void>(aborted_, driver_);
    has_ended_ = true;
    ending_.push_back(std::move(promise));
    if (reader_.has_value()) {
      reader.swap(reader_);
      batch = Take(&told);
    }
  }
  if (reader.has_value()) reader->Set(*std::move(batch));
  for (Promise<void>& ending : told) ending.Set(absl::OkStatus());
  return known;
}

void StreamBuffer::Abort(const absl::Status& why) {
  std::optional<Promise<Batch>> reader;
  std::vector<Promise<void>> writers;
  std::vector<Promise<void>> ending;
  std::deque<Slices> values;
  {
    MutexLock lock(mu_);
    if (!aborted_.ok()) return;
    aborted_ = why;
    reader.swap(reader_);
    writers.swap(writers_);
    ending.swap(ending_);
    values.swap(values_);
  }
  if (reader.has_value()) reader->Set(why);
  for (Promise<void>& promise : writers) promise.Set(why);
  for (Promise<void>& promise : ending) promise.Set(why);
}

void StreamBuffer::Close() {
  {
    MutexLock lock(mu_);
    is_closed_ = true;
  }
  Abort(absl::CancelledError("nobody reads any more"));
}

bool StreamBuffer::is_closed() const {
  MutexLock lock(mu_);
  return is_closed_;
}

Future<StreamBuffer::Batch> StreamBuffer::Pull() {
  std::optional<Batch> batch;
  std::optional<Future<Batch>> next;
  std::vector<Promise<void>> told;
  {
    MutexLock lock(mu_);
    if (!aborted_.ok()) return MakeReady<Batch>(aborted_, driver_);
    if (reader_.has_value() && !reader_->IsDone()) {
      return MakeReady<Batch>(
          absl::FailedPreconditionError("two pull from one stream"), driver_);
    }
    batch = Take(&told);
    if (!batch.has_value()) next = reader_.emplace(driver_).future();
  }
  for (Promise<void>& promise : told) promise.Set(absl::OkStatus());
  if (next.has_value()) return *std::move(next);
  return MakeReady<Batch>(*std::move(batch), driver_);
}

}  // namespace weft::rpc
