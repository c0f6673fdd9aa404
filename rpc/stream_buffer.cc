#include "weft/rpc/stream_buffer.h"

#include <utility>

namespace weft::rpc {

void StreamBuffer::Open() {
  std::vector<Promise<void>> told;
  {
    MutexLock lock(mu_);
    is_open_ = true;
    if (HasRoom()) told.swap(writers_);
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
    bytes_ = 0;
    told->swap(writers_);
    return Batch(false, std::exchange(values_, {}));
  }
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
    if (reader_.has_value()) batch = Take(&told);
    if (batch.has_value()) reader.swap(reader_);
    if (!is_open_ || !HasRoom()) {
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
  std::vector<Slices> values;
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
  std::vector<Promise<void>> told;
  {
    MutexLock lock(mu_);
    if (!aborted_.ok()) return MakeReady<Batch>(aborted_, driver_);
    if (reader_.has_value() && !reader_->IsDone()) {
      return MakeReady<Batch>(
          absl::FailedPreconditionError("two pull from one stream"), driver_);
    }
    batch = Take(&told);
    if (!batch.has_value()) return reader_.emplace(driver_).future();
  }
  for (Promise<void>& promise : told) promise.Set(absl::OkStatus());
  return MakeReady<Batch>(*std::move(batch), driver_);
}

}  // namespace weft::rpc
