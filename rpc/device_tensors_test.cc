// Tensors of devices in calls, under 20 orders of what is not ordered: each
// worker has simulated devices of its own.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/device/current.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/batch.h"
#include "weft/rpc/detail.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/stream.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rpc/testing/simulated_agents.h"
#include "weft/sim/fault_plan.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::weft::device::testing::SimulatedDevices;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// A Status of `code` whose message has all `parts`.
template <typename... Parts>
auto Says(absl::StatusCode code, const Parts&... parts) {
  return AllOf(StatusIs(code, parts)...);
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr device::Device kFirst = device::Device::Simulated(0);
constexpr device::Device kSecond = device::Device::Simulated(1);

Tensor Twice(const Tensor& x) { return Mul(x, 2.0); }
WEFT_RPC(Twice);

Tensor Same(const Tensor& x) { return x; }
WEFT_RPC(Same);
Tensor SameInline(const Tensor& x) { return x; }
WEFT_RPC_INLINE(SameInline);

std::string Where(const Tensor& x) { return Name(x.device()); }
WEFT_RPC(Where);

std::vector<Tensor> All(const std::vector<Tensor>& some, const Tensor& more) {
  std::vector<Tensor> all = some;
  all.push_back(more);
  return all;
}
WEFT_RPC(All);

// Makes a tensor on one of its devices, whatever the caller knows.
Tensor Own(CallContext& context, double value) {
  auto* const devices = context.Local<SimulatedDevices>();
  return Tensor::Full({3}, value, DType::kF32, Device(devices->context(), 1));
}
WEFT_RPC(Own);

// The order in which they came.
struct Log {
  Mutex mu;
  std::vector<float> seen ABSL_GUARDED_BY(mu);
};
void Append(CallContext& context, const Tensor& x) {
  const float value = x.To(Device::Cpu()).data<float>()[0];
  auto* const log = context.Local<Log>();
  MutexLock lock(log->mu);
  log->seen.push_back(value);
}
WEFT_RPC(Append);

absl::Status Numbers(Writer<Tensor> out, const Tensor& x) {
  return out.Write(x);
}
WEFT_RPC_STREAM(Numbers);

absl::StatusOr<int64_t> CountTensors(Reader<Tensor> in) {
  for (int64_t count = 0;; ++count) {
    WEFT_ASSIGN_OR_RETURN(const auto value, in.Next());
    if (!value.has_value()) return count;
  }
}
WEFT_RPC_STREAM(CountTensors);

absl::Status FailWith(const Tensor& x) {
  return WithDetail(absl::OutOfRangeError("as it was asked to"), x);
}
WEFT_RPC(FailWith);

std::vector<Tensor> TwiceEach(std::vector<Tensor> all) {
  for (Tensor& x : all) x = Mul(x, 2.0);
  return all;
}
WEFT_RPC_BATCHED(TwiceEach, 2, absl::Milliseconds(1));

int64_t Plus(int64_t a, int64_t b) { return a + b; }
WEFT_RPC(Plus);

// Two workers with two devices each. Those of w0 are mapped crosswise.
class DeviceTensorsTest : public ::testing::TestWithParam<int> {
 protected:
  DeviceTensorsTest() {
    EXPECT_THAT(ranks_[0].SetDevices(CallerOptions()), IsOk());
    EXPECT_THAT(ranks_[1].SetDevices(Both(callee_)), IsOk());
    ranks_[1].SetLocal(&callee_);
    ranks_[1].SetLocal(&log_);
  }

  static DeviceOptions Both(SimulatedDevices& devices) {
    DeviceOptions options;
    options.devices = {Device(devices.context(), 0),
                       Device(devices.context(), 1)};
    return options;
  }
  DeviceOptions CallerOptions() {
    DeviceOptions options = Both(caller_);
    options.device_maps["w1"] = {{on(0), kSecond}, {on(1), kFirst}};
    return options;
  }
  Device on(int index) { return Device(caller_.context(), index); }
  Tensor Full(double value, int64_t count = 2000, int index = 0) {
    return Tensor::Full({count}, value, DType::kF32, on(index));
  }
  Target peer() { return ranks_[0].To("w1", absl::Seconds(30)); }
  int64_t UsedBytes(SimulatedDevices& devices) {
    int64_t used = 0;
    for (int i = 0; i < 2; ++i) {
      used += devices.context().allocator(i).statistics().allocated_bytes;
    }
    return used;
  }

  SimulatedDevices caller_{static_cast<uint64_t>(GetParam()) * 2, 2};
  SimulatedDevices callee_{static_cast<uint64_t>(GetParam()) * 2 + 1, 2};
  Log log_;
  Ranks ranks_{2};
};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceTensorsTest, ::testing::Range(0, 20));

TEST_P(DeviceTensorsTest, LandWhereTheMapSaysAndComeBack) {
  EXPECT_THAT(Call(peer(), Where, Full(1, 3, 0)),
              testing::IsOkAndHolds("simulated:1"));
  EXPECT_THAT(Call(peer(), Where, Full(1, 3, 1)),
              testing::IsOkAndHolds("simulated:0"));
  EXPECT_THAT(Call(peer(), Where, Tensor::Ones({3})),
              testing::IsOkAndHolds("cpu"));
  for (int index = 0; index < 2; ++index) {
    const auto y = Call(peer(), Twice, Full(4, 2000, index));
    ASSERT_THAT(y, IsOk());
    EXPECT_EQ(y->device(), on(index));
    EXPECT_THAT(y->ToVector<float>(), Each(8));
  }
}

// What the caller's stream computed before is sent; what it writes later is
// not, though the call has not left yet.
TEST_P(DeviceTensorsTest, AreSentAsTheyWereWhenTheCallWasMade) {
  const device::Stream other = *caller_.runtime().CreateStream(on(0).id());
  const device::StreamScope scope(other);
  const Tensor x = Full(0);
  std::vector<Future<Tensor>> results;
  for (int i = 1; i <= 8; ++i) {
    x.Fill(i);
    results.push_back(CallAsync(peer(), Twice, x));
    x.Fill(-100);
  }
  for (int i = 1; i <= 8; ++i) {
    const auto y = results[i - 1].Wait(testing::kPatience);
    ASSERT_THAT(y, IsOk());
    // On the stream that was current when the call was made.
    EXPECT_THAT(Mul(*y, 3.0).ToVector<float>(), Each(6 * i)) << "call " << i;
  }
}

TEST_P(DeviceTensorsTest, OfAnyShapeAndTypeGoTogetherWithThoseOfTheCpu) {
  const Tensor matrix =
      Tensor::Arange(12).To(DType::kF32).View({3, 4}).To(on(0));
  const std::vector<Tensor> some = {
      matrix.Transpose(0, 1),
      Tensor::Empty({0, 3}, DType::kF64, on(1)),
      Tensor(),
      Tensor::Ones({5}),
      Tensor::Full({2}, 1, DType::kBool, on(1)),
      Tensor::Full({}, 7, DType::kI64, on(0)),
  };
  const auto all = Call(peer(), All, some, Full(2, 5000, 1));
  ASSERT_THAT(all, IsOk());
  ASSERT_EQ(all->size(), some.size() + 1);
  for (size_t i = 0; i < some.size(); ++i) {
    const Tensor& found = (*all)[i];
    ASSERT_EQ(found.defined(), some[i].defined()) << i;
    if (!found.defined()) continue;
    EXPECT_EQ(found.device(), some[i].device()) << i;
    EXPECT_EQ(found.shape(), some[i].shape()) << i;
    EXPECT_EQ(found.dtype(), some[i].dtype()) << i;
  }
  EXPECT_EQ((*all)[0].ToVector<float>(),
            matrix.Transpose(0, 1).Contiguous().ToVector<float>());
  EXPECT_THAT((*all)[3].ToVector<float>(), Each(1));
  EXPECT_THAT((*all)[4].ToVector<bool>(), Each(true));
  EXPECT_THAT((*all)[5].ToVector<int64_t>(), ElementsAre(7));
  EXPECT_THAT((*all)[6].ToVector<float>(), Each(2));
}

TEST_P(DeviceTensorsTest, OfAnOrderedQueueComeInOrder) {
  const Target queue = peer().Serialized();
  const Tensor x = Full(0);
  std::vector<Future<void>> calls;
  for (int i = 0; i < 6; ++i) {
    x.Fill(i);
    // Those of the CPU wait for nothing, and for their turn all the same.
    calls.push_back(
        CallAsync(queue, Append, i % 2 == 0 ? x : Tensor::Full({1}, i)));
  }
  for (auto& call : calls) EXPECT_THAT(call.Wait(testing::kPatience), IsOk());
  MutexLock lock(log_.mu);
  EXPECT_THAT(log_.seen, ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST_P(DeviceTensorsTest, AreLentRetriedKeptAndBatchedAsOthers) {
  const Tensor x = Full(3);
  EXPECT_THAT(Call(peer(), Twice, Borrow(x))->ToVector<float>(), Each(6));
  EXPECT_THAT(Call(peer().WithRetry({}), Twice, x)->ToVector<float>(), Each(6));
  EXPECT_THAT(CallOneAsync(peer(), TwiceEach, x)
                  .Wait(testing::kPatience)
                  ->ToVector<float>(),
              Each(6));
  const auto kept = Remote(peer(), Twice, x);
  ASSERT_THAT(kept, IsOk());
  const auto copy = Fetch(*kept);
  ASSERT_THAT(copy, IsOk());
  EXPECT_EQ(copy->device(), on(0));
  EXPECT_THAT(copy->ToVector<float>(), Each(6));
}

TEST_P(DeviceTensorsTest, OfAWorkerToItselfStayWhereTheyAre) {
  const Target self = ranks_[0].To("w0");
  for (int index = 0; index < 2; ++index) {
    const auto y = Call(self, Twice, Full(4, 300, index));
    ASSERT_THAT(y, IsOk());
    EXPECT_EQ(y->device(), on(index));
    EXPECT_THAT(y->ToVector<float>(), Each(8));
  }
}

// Memory is given back once the calls have ended: none is left with the agent.
TEST_P(DeviceTensorsTest, LeaveNoDeviceMemoryBehind) {
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(Call(peer(), Twice, Full(i)), IsOk());
  }
  EXPECT_TRUE(Becomes([&] { return UsedBytes(caller_) == 0; }));
  EXPECT_TRUE(Becomes([&] { return UsedBytes(callee_) == 0; }));
}

// ----- where a tensor has no place

class DeviceMapTest : public ::testing::Test {
 protected:
  DeviceOptions Options(SimulatedDevices& devices, int count) {
    DeviceOptions options;
    for (int i = 0; i < count; ++i) {
      options.devices.push_back(Device(devices.context(), i));
    }
    return options;
  }
  Device on(int index) { return Device(caller_.context(), index); }
  Tensor Ones(int index) { return Tensor::Ones({3}, DType::kF32, on(index)); }
  // The agent goes on.
  void ExpectUsable() {
    EXPECT_THAT(Call(ranks_[0].To("w1"), Plus, 1, 2), testing::IsOkAndHolds(3));
    EXPECT_THAT(Call(ranks_[0].To("w1"), Twice, Tensor::Ones({2})), IsOk());
  }

  SimulatedDevices caller_{1, 3};
  SimulatedDevices callee_{2, 2};
  Ranks ranks_{2};
};

TEST_F(DeviceMapTest, WithoutDevicesTheArgumentIsNamed) {
  const Tensor cpu = Tensor::Ones({1});
  EXPECT_THAT(
      Call(ranks_[0].To("w1"), All, std::vector<Tensor>{cpu}, Ones(0)),
      Says(kInvalid, "w1", "argument 2", "simulated:0", "Agent::SetDevices"));
  ExpectUsable();
}

TEST_F(DeviceMapTest, WithoutAMapWorkerArgumentAndDeviceAreNamed) {
  DeviceOptions options = Options(caller_, 2);
  options.device_maps["w1"] = {{on(0), kFirst}};
  ASSERT_THAT(ranks_[0].SetDevices(options), IsOk());
  EXPECT_THAT(
      Call(ranks_[0].To("w1"), Twice, Ones(1)),
      Says(kInvalid, "argument 1", "simulated:1 of w0", "device_maps[\"w1\"]"));
  EXPECT_THAT(Call(ranks_[0].To("w1"), Twice, Ones(2)),
              Says(kInvalid, "simulated:2", "it has simulated:0, simulated:1",
                   "DeviceOptions::devices"));
  ExpectUsable();
}

TEST_F(DeviceMapTest, DeviceThatTheCalleeLacksIsNamed) {
  DeviceOptions options = Options(caller_, 1);
  options.device_maps["w1"] = {{on(0), device::Device::Simulated(7)}};
  ASSERT_THAT(ranks_[0].SetDevices(options), IsOk());
  EXPECT_THAT(
      Call(ranks_[0].To("w1"), Twice, Ones(0)),
      Says(kInvalid, "argument 1", "w0", "simulated:7", "Agent::SetDevices"));
  ASSERT_THAT(ranks_[1].SetDevices(Options(callee_, 2)), IsOk());
  EXPECT_THAT(Call(ranks_[0].To("w1"), Twice, Ones(0)),
              Says(kInvalid, "w0 maps it to simulated:7",
                   "simulated:0, simulated:1", "device_maps[\"w1\"] at w0"));
  ExpectUsable();
}

// As a client that has no maps: the result is refused, not awaited for ever.
TEST_F(DeviceMapTest, ResultForACallerWithoutMapsIsRefused) {
  ranks_[1].SetLocal(&callee_);
  EXPECT_THAT(Call(ranks_[0].To("w1"), Own, 1.0),
              Says(kInvalid, "w1", "the result", "simulated:1"));
  ASSERT_THAT(ranks_[1].SetDevices(Options(callee_, 2)), IsOk());
  EXPECT_THAT(Call(ranks_[0].To("w1"), Own, 1.0),
              Says(kInvalid, "simulated:1", "w1 sends", "device_maps"));
  ASSERT_THAT(ranks_[0].SetDevices(Options(caller_, 2)), IsOk());
  EXPECT_THAT(Call(ranks_[0].To("w1"), Own, 1.0),
              Says(kInvalid, "simulated:1 of w1", "no device of w0",
                   "device_maps[\"w1\"]"));
  ExpectUsable();
}

TEST_F(DeviceMapTest, MapToTheCpuLandsThere) {
  DeviceOptions options = Options(caller_, 2);
  options.device_maps["w1"] = {{on(0), device::Device::Cpu()},
                               {on(1), device::Device::Cpu()}};
  ASSERT_THAT(ranks_[0].SetDevices(options), IsOk());
  EXPECT_THAT(Call(ranks_[0].To("w1"), Where, Ones(1)),
              testing::IsOkAndHolds("cpu"));
  const auto y = Call(ranks_[0].To("w1"), Twice, Ones(1));
  ASSERT_THAT(y, IsOk());
  EXPECT_TRUE(y->device().is_cpu());
  EXPECT_THAT(y->ToVector<float>(), Each(2));
}

TEST_F(DeviceMapTest, InlineResultsAndValuesOfStreamsAreRefused) {
  DeviceOptions options = Options(caller_, 1);
  options.device_maps["w1"] = {{on(0), kFirst}};
  ASSERT_THAT(ranks_[0].SetDevices(options), IsOk());
  ASSERT_THAT(ranks_[1].SetDevices(Options(callee_, 2)), IsOk());
  EXPECT_THAT(Call(ranks_[0].To("w1"), SameInline, Ones(0)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "WEFT_RPC"));
  auto numbers = OpenStream(ranks_[0].To("w1"), Numbers, Ones(0));
  EXPECT_THAT(numbers.Next(), StatusIs(kInvalid, "simulated:0"));
  ExpectUsable();
}

TEST_F(DeviceMapTest, ValuesOfUploadsAreRefusedAndTheUploadGoesOn) {
  DeviceOptions options = Options(caller_, 1);
  options.device_maps["w1"] = {{on(0), kFirst}};
  ASSERT_THAT(ranks_[0].SetDevices(options), IsOk());
  ASSERT_THAT(ranks_[1].SetDevices(Options(callee_, 2)), IsOk());
  auto upload = OpenStream(ranks_[0].To("w1"), CountTensors);
  EXPECT_THAT(upload.Write(Tensor::Ones({3})), IsOk());
  EXPECT_THAT(upload.Write(Ones(0)), StatusIs(kInvalid, "simulated:0"));
  EXPECT_THAT(upload.Write(Tensor::Ones({3})), IsOk());
  EXPECT_THAT(upload.Finish(), testing::IsOkAndHolds(2));
  ExpectUsable();
}

// As any detail that cannot be encoded: the error itself comes as it is.
TEST_F(DeviceMapTest, DetailOfAnErrorIsLeftOut) {
  DeviceOptions options = Options(caller_, 1);
  options.device_maps["w1"] = {{on(0), kFirst}};
  ASSERT_THAT(ranks_[0].SetDevices(options), IsOk());
  ASSERT_THAT(ranks_[1].SetDevices(Options(callee_, 2)), IsOk());
  for (const bool is_on_device : {false, true}) {
    const Tensor x = is_on_device ? Ones(0) : Tensor::Ones({3});
    const absl::Status failed = Call(ranks_[0].To("w1"), FailWith, x);
    EXPECT_THAT(failed, StatusIs(absl::StatusCode::kOutOfRange, "asked to"));
    EXPECT_EQ(DetailOf<Tensor>(failed).has_value(), !is_on_device);
  }
  ExpectUsable();
}

TEST_F(DeviceMapTest, OptionsThatMakeNoSenseAreRefused) {
  const auto refused = [&](const DeviceOptions& options, const char* what) {
    EXPECT_THAT(ranks_[0].SetDevices(options), StatusIs(kInvalid, what));
  };
  DeviceOptions options;
  options.devices = {Device::Cpu()};
  refused(options, "cpu");
  options.devices = {on(0), on(0)};
  refused(options, "simulated:0 twice");
  options.devices = {on(0), Device(callee_.context(), 0)};
  refused(options, "simulated:0 of two contexts");
  options.devices = {on(0), on(1)};
  options.device_maps["w1"] = {{on(2), kFirst}};
  refused(options, "maps simulated:2, which is not among devices");
  options.device_maps["w1"] = {{on(0), kFirst}, {on(0), kSecond}};
  refused(options, "maps simulated:0 twice");
  options.device_maps["w1"] = {{on(0), kFirst}, {on(1), kFirst}};
  refused(options, "simulated:0 and simulated:1 to simulated:0");
  options.device_maps["w1"] = {{on(0), kFirst}};
  EXPECT_THAT(ranks_[0].SetDevices(options), IsOk());
  EXPECT_THAT(ranks_[0].SetDevices(options),
              StatusIs(absl::StatusCode::kFailedPrecondition, "w0"));
}

// ----- devices that fail

TEST_P(DeviceTensorsTest, CallersDeviceThatFailsEndsTheCall) {
  const Tensor x = Full(1);
  ASSERT_THAT(caller_.runtime().Synchronize(on(0).id(), testing::kPatience),
              IsOk());
  caller_.runtime().FailKernel(on(0).id(), "Fill");
  x.Fill(2);
  EXPECT_THAT(Call(peer(), Twice, x),
              StatusIs(absl::StatusCode::kInternal, "simulated:0"));
  EXPECT_THAT(Call(peer(), Twice, x),
              Says(absl::StatusCode::kInternal, "argument 1", "simulated:0"));
  EXPECT_THAT(Call(peer(), Plus, 1, 2), testing::IsOkAndHolds(3));
  EXPECT_THAT(Call(peer(), Twice, Full(4, 100, 1))->ToVector<float>(), Each(8));
  EXPECT_THAT(ranks_[0].OpenCalls(), IsEmpty());
}

// At the callee it keeps its code, in the function and while it is decoded.
TEST_P(DeviceTensorsTest, CalleesDeviceThatFailsEndsTheCall) {
  callee_.runtime().FailKernel(kSecond, "MulNumber");
  const auto y = Call(peer(), Twice, Full(1));
  EXPECT_THAT(y, StatusIs(absl::StatusCode::kInternal, "simulated:1"));
  EXPECT_THAT(
      Call(peer(), Same, Full(1)),
      Says(absl::StatusCode::kInternal, "w1", "argument 1", "simulated:1"));
  EXPECT_THAT(Call(peer(), Twice, Full(4, 100, 1))->ToVector<float>(), Each(8));
  EXPECT_TRUE(Becomes([&] { return UsedBytes(caller_) == 0; }));
}

TEST_P(DeviceTensorsTest, DeviceThatHangsEndsTheCallByItsDeadline) {
  const device::Stream stream = *caller_.context().CurrentStream(0);
  const Tensor x = Full(1);
  caller_.runtime().SetHangs(stream, true);
  x.Fill(2);
  EXPECT_THAT(Call(peer().WithTimeout(absl::Milliseconds(50)), Twice, x),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "simulated:0"));
  caller_.runtime().SetHangs(stream, false);
  EXPECT_THAT(Call(peer(), Twice, x)->ToVector<float>(), Each(4));
}

TEST_P(DeviceTensorsTest, OutOfDeviceMemoryKeepsItsCode) {
  callee_.runtime().FailAllocations(kSecond, 100);
  EXPECT_THAT(Call(peer(), Twice, Full(1)),
              StatusIs(absl::StatusCode::kResourceExhausted, "simulated:1"));
  callee_.runtime().FailAllocations(kSecond, 0);
  EXPECT_THAT(Call(peer(), Twice, Full(1))->ToVector<float>(), Each(2));
}

// An executor whose tasks run when the test says so.
class HeldExecutor final : public Executor {
 public:
  void Schedule(Task task) override {
    MutexLock lock(mu_);
    held_.push_back(std::move(task));
  }
  void Release() {
    std::vector<Task> tasks;
    {
      MutexLock lock(mu_);
      tasks.swap(held_);
    }
    for (Task& task : tasks) std::move(task)();
  }

 private:
  Mutex mu_;
  std::vector<Task> held_ ABSL_GUARDED_BY(mu_);
};

// While the copies go on the call is one of the agent's: it is listed, can be
// cancelled, and ends with the agent.
class WaitingCallTest : public ::testing::Test {
 protected:
  WaitingCallTest() {
    for (int i = 0; i < 2; ++i) {
      const std::string name = absl::StrCat("w", i);
      directory_.Put(Worker{name, {static_cast<uint32_t>(i), 1}, name});
      transports_.push_back(network_.MakeTransport(name).value());
      AgentOptions options;
      options.job = "job";
      options.name = name;
      options.key = {static_cast<uint32_t>(i), 1};
      options.transport = transports_[i].get();
      options.directory = &directory_;
      if (i == 0) options.executor = &executor_;
      agents_.push_back(Agent::Create(options).value());
    }
    DeviceOptions options;
    options.devices = {device_};
    options.device_maps["w1"] = {{device_, device::Device::Cpu()}};
    EXPECT_THAT(agents_[0]->SetDevices(options), IsOk());
  }

  SimulatedDevices devices_{3};
  const Device device_{devices_.context(), 0};
  HeldExecutor executor_;
  transport::LocalNetwork network_;
  FixedDirectory directory_;
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::vector<std::unique_ptr<Agent>> agents_;
};

TEST_F(WaitingCallTest, IsListedAndCanBeCancelled) {
  const Tensor x = Tensor::Ones({3}, DType::kF32, device_);
  Future<Tensor> y = CallAsync(agents_[0]->To("w1"), Twice, x);
  EXPECT_THAT(agents_[0]->OpenCalls(),
              ElementsAre("1 calls to w1 whose tensors are copied from a "
                          "device"));
  ASSERT_EQ(agents_[0]->Pending().size(), 1u);
  EXPECT_EQ(agents_[0]->Pending()[0].peer, "w1");
  EXPECT_EQ(agents_[0]->Metrics().client_active_calls, 1);
  y.Cancel();
  EXPECT_THAT(y.Wait(testing::kPatience),
              StatusIs(absl::StatusCode::kCancelled, ""));
  EXPECT_THAT(agents_[0]->OpenCalls(), IsEmpty());
  executor_.Release();
  Future<Tensor> z = CallAsync(agents_[0]->To("w1"), Twice, x);
  executor_.Release();
  EXPECT_THAT(z.Wait(testing::kPatience)->ToVector<float>(), Each(2));
}

TEST_F(WaitingCallTest, EndsAtItsDeadlineThoughNoThreadIsFree) {
  const Tensor x = Tensor::Ones({3}, DType::kF32, device_);
  EXPECT_THAT(Call(agents_[0]->To("w1", absl::Milliseconds(20)), Twice, x),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "not copied from their device"));
  executor_.Release();
}

TEST_F(WaitingCallTest, EndsWithItsAgent) {
  const Tensor x = Tensor::Ones({3}, DType::kF32, device_);
  Future<Tensor> y = CallAsync(agents_[0]->To("w1"), Twice, x);
  EXPECT_THAT(agents_[0]->Shutdown(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "w1"));
  EXPECT_THAT(y.Wait(testing::kPatience),
              StatusIs(absl::StatusCode::kCancelled, ""));
  executor_.Release();
}

// ----- over a simulated network that loses, repeats and cuts

TEST(SimulatedDeviceTensors, ComeOnceUnderAllFaultsOfANetwork) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SimulatedDevices caller(2 * seed), callee(2 * seed + 1);
    SimulatedAgents::Options options;
    options.workers = 2;
    using sim::Fault;
    options.faults = sim::FaultPlan::Options::Of(
        {Fault::kLoss, Fault::kLostReply, Fault::kDuplication, Fault::kDelay,
         Fault::kReordering, Fault::kReset, Fault::kTwoWayPartition,
         Fault::kCorruption},
        0.02);
    SimulatedAgents agents(seed, options);
    agents.OnStart([&](int worker, Agent& agent) {
      DeviceOptions devices;
      devices.devices = {
          Device(worker == 0 ? caller.context() : callee.context(), 0)};
      if (worker == 0) {
        devices.device_maps["w1"] = {{devices.devices[0], kFirst}};
      }
      EXPECT_THAT(agent.SetDevices(devices), IsOk());
    });
    const auto statuses = agents.Run(1, [&](int) -> absl::Status {
      const Tensor x =
          Tensor::Zeros({2000}, DType::kF32, Device(caller.context(), 0));
      for (int i = 1; i <= 10; ++i) {
        x.Fill(i);
        Future<Tensor> y = CallAsync(agents[0].To("w1"), Twice, x);
        x.Fill(-1);
        WEFT_ASSIGN_OR_RETURN(const Tensor found, y.Wait(absl::Seconds(60)));
        EXPECT_THAT(found.ToVector<float>(), Each(2 * i)) << "seed " << seed;
      }
      return absl::OkStatus();
    });
    EXPECT_THAT(statuses, Each(IsOk())) << agents.faults().Replay();
  }
}

}  // namespace
}  // namespace weft::rpc
