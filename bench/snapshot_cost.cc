#include "weft/bench/snapshot_cost.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/check.h"
#include "weft/base/future.h"
#include "weft/bench/measure.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/tensor/tensor.h"

namespace weft::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(2);
constexpr int64_t kFillKeys = 20'000;
constexpr int kKeySets = 64;

// What the windows of one kind have together.
struct Windows {
  double seconds = 0;
  int64_t steps = 0;
  std::vector<double> push_us;
  std::vector<double> pull_us;

  double rate() const { return static_cast<double>(steps) / seconds; }
};

double PercentileOf(std::vector<double> values, double part) {
  WEFT_CHECK(!values.empty());
  const auto last = static_cast<double>(values.size() - 1);
  const auto at = static_cast<ptrdiff_t>(part * last);
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[at];
}

class Table {
 public:
  Table(ps::Client& client, ps::v1::TableSpec spec, const SnapshotCase& of)
      : client_(client),
        gradients_(Tensor::Ones({of.keys, spec.dim()})),
        path_(of.directory) {
    checkpoint::CheckpointDirectory::Options options;
    options.path = of.directory;
    options.keep_last = 1;
    directory_ = *checkpoint::CheckpointDirectory::Open(options);
    const int64_t dim = spec.dim();
    table_ = *client.Sparse(std::move(spec));
    for (int64_t begin = 0; begin < of.rows; begin += kFillKeys) {
      const int64_t n = std::min(kFillKeys, of.rows - begin);
      std::vector<int64_t> all(n);
      for (int64_t i = 0; i < n; ++i) all[i] = begin + i;
      WEFT_CHECK(table_->Push(Tensor::FromVector(all), Tensor::Ones({n, dim}))
                     .Wait(kTimeout)
                     .ok());
    }
    std::mt19937_64 random(1);
    for (int i = 0; i < kKeySets; ++i) {
      std::vector<int64_t> drawn(of.keys);
      for (int64_t& key : drawn) {
        key = static_cast<int64_t>(random() % static_cast<uint64_t>(of.rows));
      }
      keys_.push_back(Tensor::FromVector(drawn));
    }
  }

  void Step(Windows& window) {
    const Tensor& keys = keys_[next_++ % keys_.size()];
    const double begin = Now();
    WEFT_CHECK(table_->Push(keys, gradients_).Wait(kTimeout).ok());
    const double pushed = Now();
    const auto rows = table_->Pull(keys).Wait(kTimeout);
    const double pulled = Now();
    WEFT_CHECK(rows.ok()) << rows.status().ToString();
    window.push_us.push_back((pushed - begin) * 1e6);
    window.pull_us.push_back((pulled - pushed) * 1e6);
    ++window.steps;
  }

  struct Snapshot {
    std::string attempt;
    Future<std::vector<checkpoint::FileRecord>> files;
    double began = 0;
  };
  Snapshot Begin() {
    Snapshot snapshot{*directory_->Begin(static_cast<int64_t>(next_)),
                      MakeReady<std::vector<checkpoint::FileRecord>>(
                          std::vector<checkpoint::FileRecord>()),
                      Now()};
    auto written = client_.Snapshot(path_, snapshot.attempt, -1, kTimeout);
    WEFT_CHECK(written.ok()) << written.status().ToString();
    snapshot.files = *std::move(written);
    return snapshot;
  }
  // Its bytes. It is one that can be read.
  int64_t End(const Snapshot& snapshot) {
    const auto files = snapshot.files.Wait(kTimeout);
    WEFT_CHECK(files.ok()) << files.status().ToString();
    int64_t bytes = 0;
    for (const checkpoint::FileRecord& file : *files) {
      bytes += static_cast<int64_t>(file.digest.bytes);
    }
    const auto name = directory_->Commit(snapshot.attempt, *files, {});
    WEFT_CHECK(name.ok()) << name.status().ToString();
    WEFT_CHECK(directory_->Verify(*name).ok());
    return bytes;
  }

 private:
  ps::Client& client_;
  const Tensor gradients_;
  const std::string path_;
  std::unique_ptr<checkpoint::CheckpointDirectory> directory_;
  std::unique_ptr<ps::SparseTable> table_;
  std::vector<Tensor> keys_;
  size_t next_ = 0;
};

void Add(const std::string& kind, const Windows& window,
         std::map<std::string, double>& figures) {
  figures[absl::StrCat("steps_per_s", kind)] = window.rate();
  for (const auto& [way, us] : {std::pair("push", &window.push_us),
                                std::pair("pull", &window.pull_us)}) {
    figures[absl::StrCat(way, "_p50_us", kind)] = PercentileOf(*us, 0.5);
    figures[absl::StrCat(way, "_p999_us", kind)] = PercentileOf(*us, 0.999);
    figures[absl::StrCat(way, "_most_us", kind)] = PercentileOf(*us, 1);
  }
}

}  // namespace

std::map<std::string, double> MeasureSnapshots(ps::Client& client,
                                               ps::v1::TableSpec spec,
                                               const SnapshotCase& of) {
  Table table(client, std::move(spec), of);
  Windows warm, without, with;
  for (const double end = Now() + of.seconds; Now() < end;) table.Step(warm);
  double writing = 0;
  int64_t bytes = 0;
  for (int i = 0; i < of.windows; ++i) {
    double begin = Now();
    while (Now() < begin + of.seconds) table.Step(without);
    without.seconds += Now() - begin;
    begin = Now();
    const Table::Snapshot snapshot = table.Begin();
    double written = 0;
    while (written == 0 || Now() < begin + of.seconds) {
      table.Step(with);
      if (written == 0 && snapshot.files.IsReady()) {
        written = Now() - snapshot.began;
      }
    }
    with.seconds += Now() - begin;
    writing += written;
    bytes = table.End(snapshot);  // commits, and reads all of it back
  }
  std::map<std::string, double> figures;
  Add("_without", without, figures);
  Add("_with", with, figures);
  figures["snapshot_s"] = writing / of.windows;
  figures["mb"] = static_cast<double>(bytes) / 1e6;
  const double lost =
      (with.seconds - static_cast<double>(with.steps) / without.rate()) /
      of.windows;
  figures["lost_ms"] = lost * 1e3;
  figures["minute_rate"] = 1 - lost / 60;
  return figures;
}

}  // namespace weft::bench
