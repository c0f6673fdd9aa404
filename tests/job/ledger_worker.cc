// ledger_worker: a trainer that keeps a ledger of what it pushes to a table of
// durability LOGGED, for power_loss_test.cc.
//
//   ledger_worker DIR
//
// Each batch adds 1 to keys of its own, and 1 to some counters. DIR/batches has
// a byte for each batch: b once it has begun, a once it is acknowledged. A
// worker that finds some there compares first: the keys of a batch that was
// acknowledged have 1, those of one that only began have 0 or 1, and keep what
// an earlier worker has seen (DIR/seen); each counter has what was
// acknowledged, and no more than has begun. Then it goes on until DIR/end is
// there, and compares again, that each batch was acknowledged. It tells
// "compared N", and at the end "counted N".

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/status_macros.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/client.h"
#include "weft/tensor/tensor.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/table_client.h"
#include "weft/worker/worker.h"

namespace weft::worker {
namespace {

constexpr int64_t kKeys = 16;  // of a batch
constexpr int64_t kCounters = 64;
constexpr int64_t kFirstCounter = int64_t{1} << 40;
constexpr size_t kUnderWay = 6;
constexpr int64_t kMostPulled = 8192;  // keys at a time
constexpr absl::Duration kLong = absl::Minutes(2);
constexpr char kBegun = 'b';
constexpr char kAcknowledged = 'a';

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

class Ledger {
 public:
  Ledger(const std::string& directory, ps::SparseTable* table)
      : seen_path_(directory + "/seen"),
        table_(*table),
        batches_(ReadAll(directory + "/batches")),
        seen_(ReadAll(seen_path_)),
        fd_(open((directory + "/batches").c_str(),
                 O_WRONLY | O_CREAT | O_CLOEXEC, 0600)) {}
  ~Ledger() {
    if (fd_ >= 0) close(fd_);
  }
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  absl::Status Compare() {
    std::string values;
    const int64_t keys = static_cast<int64_t>(batches_.size()) * kKeys;
    for (int64_t at = 0; at < keys; at += kMostPulled) {
      const int64_t count = std::min(kMostPulled, keys - at);
      WEFT_ASSIGN_OR_RETURN(const Tensor rows, Pull(at, count));
      for (int64_t i = 0; i < count; ++i) {
        WEFT_RETURN_IF_ERROR(CompareKey(at + i, rows.data<float>()[i]));
        values.push_back(rows.data<float>()[i] == 0 ? '0' : '1');
      }
    }
    WEFT_ASSIGN_OR_RETURN(const Tensor counts, Pull(kFirstCounter, kCounters));
    for (int64_t i = 0; i < kCounters; ++i) {
      const float found = counts.data<float>()[i];
      if (found >= static_cast<float>(acknowledged()) &&
          found <= static_cast<float>(batches_.size())) {
        continue;
      }
      return absl::InternalError(
          absl::StrCat("counter ", i, ": wanted ", acknowledged(), " to ",
                       batches_.size(), ", found ", found));
    }
    // As a whole, or as it was.
    std::ofstream(seen_path_ + ".new", std::ios::binary) << values;
    std::filesystem::rename(seen_path_ + ".new", seen_path_);
    seen_ = std::move(values);
    std::printf("compared %lld\n", static_cast<long long>(batches_.size()));
    std::fflush(stdout);
    return absl::OkStatus();
  }

  // All that begin here are acknowledged.
  absl::Status PushUntil(const std::string& end) {
    while (!std::filesystem::exists(end)) {
      WEFT_RETURN_IF_ERROR(Begin());
      if (under_way_.size() >= kUnderWay) WEFT_RETURN_IF_ERROR(Acknowledge());
    }
    while (!under_way_.empty()) WEFT_RETURN_IF_ERROR(Acknowledge());
    return absl::OkStatus();
  }

  int64_t acknowledged() const {
    return std::count(batches_.begin(), batches_.end(), kAcknowledged);
  }

 private:
  absl::StatusOr<Tensor> Pull(int64_t first, int64_t count) {
    Tensor keys = Tensor::Empty({count}, DType::kI64);
    for (int64_t i = 0; i < count; ++i) keys.data<int64_t>()[i] = first + i;
    Result<Tensor> rows = table_.Pull(keys).Wait(kLong);
    if (!rows.ok()) return rows.status();
    return *std::move(rows);
  }

  absl::Status CompareKey(int64_t key, float found) const {
    const bool is_due = batches_[key / kKeys] == kAcknowledged;
    const bool has_been_seen = key < static_cast<int64_t>(seen_.size());
    const float seen = has_been_seen && seen_[key] == '1' ? 1 : 0;
    if ((found == 1 || (found == 0 && !is_due)) &&
        (!has_been_seen || found == seen)) {
      return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat(
        "key ", key, " of a batch that ", is_due ? "was acknowledged" : "began",
        has_been_seen ? absl::StrCat(", seen to be ", seen) : std::string(),
        ": found ", found));
  }

  absl::Status Write(int64_t batch, char state) {
    if (pwrite(fd_, &state, 1, batch) != 1) {
      return absl::InternalError("cannot write what has begun");
    }
    batches_.resize(std::max<size_t>(batches_.size(), batch + 1));
    batches_[batch] = state;
    return absl::OkStatus();
  }

  absl::Status Begin() {
    const auto batch = static_cast<int64_t>(batches_.size());
    WEFT_RETURN_IF_ERROR(Write(batch, kBegun));
    Tensor keys = Tensor::Empty({kKeys + kCounters}, DType::kI64);
    for (int64_t i = 0; i < kKeys; ++i) {
      keys.data<int64_t>()[i] = batch * kKeys + i;
    }
    for (int64_t i = 0; i < kCounters; ++i) {
      keys.data<int64_t>()[kKeys + i] = kFirstCounter + i;
    }
    under_way_.emplace_back(
        batch, table_.Push(keys, Tensor::Full({kKeys + kCounters, 1}, -1)));
    return absl::OkStatus();
  }

  absl::Status Acknowledge() {
    WEFT_RETURN_IF_ERROR(under_way_.front().second.Wait(kLong));
    WEFT_RETURN_IF_ERROR(Write(under_way_.front().first, kAcknowledged));
    under_way_.pop_front();
    return absl::OkStatus();
  }

  const std::string seen_path_;
  ps::SparseTable& table_;
  std::string batches_;
  std::string seen_;  // of each key: 0 or 1
  const int fd_;
  std::deque<std::pair<int64_t, Future<void>>> under_way_;
};

absl::Status Run(Worker& worker, const std::string& directory) {
  ps::Client client(TableClientOptions(worker, kLong));
  ps::v1::TableSpec spec;
  spec.set_name("ledger");
  spec.set_kind(ps::v1::TableSpec::SPARSE);
  spec.set_mode(ps::v1::TableSpec::ASYNC);
  spec.set_dim(1);
  spec.mutable_rule()->mutable_sgd()->set_lr(1);
  spec.set_durability(ps::v1::TableSpec::LOGGED);
  WEFT_ASSIGN_OR_RETURN(const auto table, client.Sparse(spec));
  Ledger ledger(directory, table.get());
  WEFT_RETURN_IF_ERROR(ledger.Compare());
  WEFT_RETURN_IF_ERROR(ledger.PushUntil(directory + "/end"));
  WEFT_RETURN_IF_ERROR(ledger.Compare());
  std::printf("counted %lld\n", static_cast<long long>(ledger.acknowledged()));
  return absl::OkStatus();
}

}  // namespace
}  // namespace weft::worker

int main(int argc, char** argv) {
  auto worker = weft::worker::Worker::Start(
      weft::worker::Options::FromFlags(&argc, argv));
  weft::ExitIfError(worker);
  if (argc != 2) return 2;
  weft::ExitIfError(weft::worker::Run(**worker, argv[1]));
  weft::ExitIfError((*worker)->Shutdown().status());
  return 0;
}
