#include "weft/bench/many_tables.h"

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
#include "weft/ps/many.h"
#include "weft/tensor/tensor.h"

namespace weft::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);
// Even: each way has every second one, so that none finds the cut of the other.
constexpr int kKeySets = 4;

class Fields {
 public:
  Fields(ps::Client& client, const ps::v1::TableSpec& spec, int tables,
         int64_t keys)
      : gradients_(Tensor::Ones({keys, spec.dim()})) {
    std::mt19937_64 random(1);
    for (int i = 0; i < tables; ++i) {
      ps::v1::TableSpec own = spec;
      own.set_name(absl::StrCat(spec.name(), i));
      tables_.push_back(*client.Sparse(own));
      for (std::vector<Tensor>& set : keys_) {
        std::vector<int64_t> drawn(keys);
        for (int64_t& key : drawn) key = static_cast<int64_t>(random());
        set.push_back(Tensor::FromVector(drawn));
      }
    }
  }

  void PullByCalls(int set) {
    std::vector<Future<Tensor>> rows;
    for (size_t i = 0; i < tables_.size(); ++i) {
      rows.push_back(tables_[i]->Pull(keys_[set][i]));
    }
    Check(WaitAll(std::move(rows), kTimeout));
  }
  void PushByCalls(int set) {
    std::vector<Future<void>> pushes;
    for (size_t i = 0; i < tables_.size(); ++i) {
      pushes.push_back(tables_[i]->Push(keys_[set][i], gradients_));
    }
    WEFT_CHECK(WaitAll(std::move(pushes), kTimeout).ok());
  }
  void PullMany(int set) {
    std::vector<ps::PullOf> pulls;
    for (size_t i = 0; i < tables_.size(); ++i) {
      pulls.push_back({tables_[i].get(), keys_[set][i]});
    }
    Check(ps::PullMany(std::move(pulls)).Wait(kTimeout));
  }
  void PushMany(int set) {
    std::vector<ps::PushOf> pushes;
    for (size_t i = 0; i < tables_.size(); ++i) {
      pushes.push_back({tables_[i].get(), keys_[set][i], gradients_});
    }
    WEFT_CHECK(ps::PushMany(std::move(pushes)).Wait(kTimeout).ok());
  }
  // Each row of the set was pushed to so often.
  void ExpectPushes(int pushes) { wanted_ = -static_cast<float>(pushes); }

 private:
  void Check(const absl::StatusOr<std::vector<Tensor>>& rows) {
    WEFT_CHECK(rows.ok()) << rows.status().ToString();
    if (wanted_ > 0) return;
    for (const Tensor& of_table : *rows) {
      for (float x : of_table.span<float>()) WEFT_CHECK_EQ(x, wanted_);
    }
    wanted_ = 1;
  }

  const Tensor gradients_;
  std::vector<std::unique_ptr<ps::SparseTable>> tables_;
  std::vector<Tensor> keys_[kKeySets];  // by table
  float wanted_ = 1;                    // above 0: anything
};

template <typename Operation>
void Time(std::vector<double>& times, Operation operation) {
  const double begin = Now();
  operation();
  times.push_back(Now() - begin);
}

double MedianUs(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + times.size() / 2,
                   times.end());
  return 1e6 * times[times.size() / 2];
}

}  // namespace

std::map<std::string, double> MeasureManyTables(ps::Client& client,
                                                const ps::v1::TableSpec& spec,
                                                int tables, int64_t keys,
                                                double seconds) {
  Fields fields(client, spec, tables, keys);
  for (int set = 0; set < kKeySets; ++set) {  // checked before it is timed
    fields.PushByCalls(set);
    fields.PushMany(set);
    fields.ExpectPushes(2);
    fields.PullMany(set);
    fields.ExpectPushes(2);
    fields.PullByCalls(set);
  }
  std::map<std::string, std::vector<double>> times;
  const double end = Now() + seconds;
  for (int i = 0; Now() < end || i < 4; i += 2) {
    const int set = i % kKeySets;
    Time(times["pull_calls_us"], [&] { fields.PullByCalls(set); });
    Time(times["push_calls_us"], [&] { fields.PushByCalls(set); });
    Time(times["pull_many_us"], [&] { fields.PullMany(set + 1); });
    Time(times["push_many_us"], [&] { fields.PushMany(set + 1); });
  }
  std::map<std::string, double> medians;
  for (auto& [name, all] : times) medians[name] = MedianUs(std::move(all));
  return medians;
}

}  // namespace weft::bench
