#include "weft/bench/device_goals.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/check.h"
#include "weft/base/clock.h"
#include "weft/bench/measure.h"
#include "weft/bench/must.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/process_group.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/device/caching_allocator.h"
#include "weft/device/context.h"
#include "weft/device/simulated/runtime.h"
#include "weft/nn/layers.h"
#include "weft/tensor/on_device.h"
#include "weft/tensor/random.h"
#include "weft/tensor/tensor.h"

namespace weft::bench {
namespace {

// Nanoseconds of one call of each of two, which take turns: the best rounds.
std::pair<double, double> Compare(const std::function<void()>& a,
                                  const std::function<void()>& b, int count) {
  constexpr int kRounds = 61;
  double best[2] = {1e300, 1e300};
  const std::function<void()>* const both[2] = {&a, &b};
  for (int round = 0; round < 2 * kRounds; ++round) {
    // Each is first as often as the other.
    const int which = (round + round / 2) % 2;
    const double begin = Now();
    for (int i = 0; i < count; ++i) (*both[which])();
    best[which] = std::min(best[which], (Now() - begin) / count * 1e9);
  }
  return {best[0], best[1]};
}

// --- V1: an operation as those of tensor/ops are, and without OnDevice. ---

// Not inlined: the same code for both, so that they differ by the dispatch
// alone.
[[gnu::noinline]] void Loop(const Tensor& from, const Tensor& to) {
  const float* const in = from.data<float>();
  float* const out = to.data<float>();
  for (int64_t i = 0; i < from.numel(); ++i) out[i] = in[i] + 1;
}

Tensor MapWithoutDevices(const Tensor& x) {
  const Tensor y = Tensor::Empty(x.shape(), DType::kF32, x.device());
  const auto run = [](const Tensor& from, const Tensor& to) { Loop(from, to); };
  WEFT_CHECK(x.is_contiguous());
  run(x, y);
  return y;
}

Tensor MapWithDevices(const Tensor& x) {
  const Tensor y = Tensor::Empty(x.shape(), DType::kF32, x.device());
  const auto run = [](const Tensor& from, const Tensor& to) { Loop(from, to); };
  WEFT_CHECK(x.is_contiguous());
  internal::OnDevice("Next", run, x, y);
  return y;
}

void AddDispatch(GoalReport& report) {
  for (const int64_t elements : {int64_t{1}, int64_t{64}, int64_t{4096}}) {
    const Tensor x = Tensor::Zeros({elements});
    WEFT_CHECK(MapWithDevices(x).ToVector<float>() ==
               MapWithoutDevices(x).ToVector<float>());
    report.Begin();
    const auto [with, without] =
        Compare([&] { MapWithDevices(x); }, [&] { MapWithoutDevices(x); },
                elements > 1000 ? 4000 : 40'000);
    GoalCase row;
    row.goal = "V1";
    row.name = absl::StrCat("ns of an operation on ", elements, " elements");
    row.higher_is_better = false;
    row.weft = with;
    row.peer = without;
    row.peer_name = "the same without devices";
    // What two runs of one function differ by.
    row.must = 0.96;
    row.aim = 0.99;
    report.Add(row);
    report.End();
  }
}

// --- V2. ---------------------------------------------------------------------

void AddAllocator(GoalReport& report) {
  const std::unique_ptr<device::SimulatedRuntime> runtime =
      Must(device::SimulatedRuntime::Create({}));
  const device::Device gpu = {device::Device::Kind::kSimulated, 0};
  const device::Stream stream = Must(runtime->CreateStream(gpu));
  device::CachingAllocator allocator(*runtime, gpu, {});
  for (const int64_t bytes : {int64_t{512}, int64_t{1} << 20}) {
    const auto pair = [&] {
      allocator.Free(Must(allocator.Allocate(bytes, stream)));
    };
    pair();
    report.Begin();
    double best = 0;
    for (int round = 0; round < 21; ++round) {
      constexpr int kPairs = 50'000;
      const double begin = Now();
      for (int i = 0; i < kPairs; ++i) pair();
      best = std::max(best, kPairs / (Now() - begin));
    }
    GoalCase row;
    row.goal = "V2";
    row.name = absl::StrCat("pairs a second of ", bytes, " bytes");
    row.weft = best;
    row.peer = 5e6;
    row.peer_name = "the goal's number";
    row.aim = 1.2;
    report.Add(row);
    report.End();
  }
}

// --- V3. ---------------------------------------------------------------------

// Runs functions at their time, on a thread of its own.
class Timer {
 public:
  Timer() : thread_([this] { Run(); }) {}
  ~Timer() {
    {
      const std::lock_guard<std::mutex> lock(mu_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void RunAt(Instant when, std::function<void()> function) {
    {
      const std::lock_guard<std::mutex> lock(mu_);
      due_.emplace(when, std::move(function));
    }
    changed_.notify_all();
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> lock(mu_);
    while (!stopping_) {
      if (due_.empty()) {
        changed_.wait(lock);
        continue;
      }
      const auto first = due_.begin();
      const absl::Duration left = first->first - SteadyClock().Now();
      if (left > absl::ZeroDuration()) {
        changed_.wait_for(lock, absl::ToChronoNanoseconds(left));
        continue;
      }
      const std::function<void()> function = first->second;
      due_.erase(first);
      lock.unlock();
      function();
      lock.lock();
    }
  }

  std::mutex mu_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::multimap<Instant, std::function<void()>> due_;
  std::thread thread_;
};

// A simulated device whose tasks run on a thread of its own, one after the
// other, as those of a GPU do beside the host.
class RunningDevice {
 public:
  RunningDevice() {
    device::SimulatedRuntime::Options options;
    options.max_pending_tasks = 100'000;
    std::unique_ptr<device::SimulatedRuntime> runtime =
        Must(device::SimulatedRuntime::Create(options));
    context_ = Must(device::Context::Create(std::move(runtime), {}));
    thread_ = std::thread([this] {
      device::Runtime& running = context_->runtime();
      while (!stopping_) {
        running.Synchronize(context_->device(0), absl::Seconds(1))
            .IgnoreError();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
  }
  ~RunningDevice() {
    stopping_ = true;
    thread_.join();
  }
  Device device() const { return {*context_, 0}; }
  void Await() const {
    Must(context_->runtime().Synchronize(context_->device(0),
                                         absl::Seconds(60)));
  }

 private:
  std::shared_ptr<device::Context> context_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

constexpr int kRanks = 2;
constexpr int kLayers = 8;
constexpr int64_t kWidth = 512;  // 1 MiB of weights in a layer: a bucket
constexpr int64_t kRows = 128;

struct Net : nn::Module {
  explicit Net(Generator& random) {
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(std::make_unique<nn::Linear>(kWidth, kWidth, random));
      AddModule(absl::StrCat("layer", i), *layers.back());
    }
  }
  Variable Forward(Variable x) const {
    for (const auto& layer : layers) x = Relu(layer->Forward(x));
    return x;
  }
  std::vector<std::unique_ptr<nn::Linear>> layers;
};

// What one step takes, in seconds, of each kind.
struct StepTimes {
  double backward = 1e300;   // both ranks, without reductions
  double reduction = 1e300;  // of all gradients, alone
  double both = 1e300;       // DDP's step
};

// The best of some steps, each begun by both ranks together.
void MeasureRank(collectives::ProcessGroup& group, const RunningDevice& device,
                 StepTimes& times) {
  Generator random(7);
  Net model(random);
  model.To(device.device());
  const Variable x(Normal({kRows, kWidth}, 0, 1, random).To(device.device()));
  const auto time = [&](double& best, const std::function<void()>& body) {
    for (int i = 0; i < 9; ++i) {
      device.Await();
      Must(group.Barrier());
      const double begin = Now();
      body();
      device.Await();
      if (i > 1) best = std::min(best, Now() - begin);
    }
  };
  // Forward goes before the clock starts.
  const auto time_backward = [&](double& best) {
    for (int i = 0; i < 9; ++i) {
      const Variable loss = Sum(model.Forward(x));
      device.Await();
      Must(group.Barrier());
      const double begin = Now();
      loss.Backward();
      device.Await();
      if (i > 1) best = std::min(best, Now() - begin);
    }
  };
  time_backward(times.backward);
  std::vector<Tensor> gradients;
  for (const Variable& parameter : model.Parameters()) {
    gradients.push_back(parameter.grad());
  }
  time(times.reduction, [&] {
    for (const Tensor& gradient : gradients) Must(group.AllReduce(gradient));
  });
  ddp::ReducerOptions options;
  options.bucket_bytes = options.first_bucket_bytes =
      kWidth * kWidth * static_cast<int64_t>(sizeof(float));
  options.is_static_graph = true;
  const auto ddp =
      Must(ddp::DistributedDataParallel::Create(model, group, options));
  time_backward(times.both);
}

StepTimes MeasureSteps(double bytes_per_second) {
  Timer timer;
  collectives::LocalWorld::Options options;
  options.link.emplace();
  options.link->bytes_per_second = bytes_per_second;
  options.link->run_at = [&](Instant when, std::function<void()> function) {
    timer.RunAt(when, std::move(function));
  };
  StepTimes times[kRanks];
  {
    collectives::LocalWorld world(kRanks, options);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        const RunningDevice device;
        const auto group =
            collectives::ProcessGroup::Create(world.Connect(rank));
        MeasureRank(*group, device, times[rank]);
        Must(group->Barrier());
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
  StepTimes slower;
  slower.backward = std::max(times[0].backward, times[1].backward);
  slower.reduction = std::max(times[0].reduction, times[1].reduction);
  slower.both = std::max(times[0].both, times[1].both);
  return slower;
}

void AddHidden(GoalReport& report) {
  for (const double gigabytes : {1.0, 0.4}) {
    report.Begin();
    const StepTimes times = MeasureSteps(gigabytes * 1e9);
    GoalCase row;
    row.goal = "V3";
    row.name = absl::StrCat(
        "share of ", times.reduction * 1e3, " ms of reductions hidden by ",
        times.backward * 1e3, " ms of backward, ", gigabytes, " GB/s links");
    row.weft = 1 - (times.both - times.backward) / times.reduction;
    // What is reduced last can be hidden by nothing, nor more than backward
    // takes.
    row.peer =
        std::min(1.0, times.backward / times.reduction) * (1 - 1.0 / kLayers);
    row.peer_name = "all but the last bucket";
    row.must = 0.6;
    row.aim = 0.9;
    report.Add(row);
    report.End();
  }
}

}  // namespace

void AddDeviceGoals(GoalReport& report) {
  if (report.Wants("V1")) AddDispatch(report);
  if (report.Wants("V2")) AddAllocator(report);
  if (report.Wants("V3")) AddHidden(report);
}

}  // namespace weft::bench
