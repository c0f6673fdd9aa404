// Data-parallel training of two ranks that share a GPU gives the CPU's numbers
// within a tolerance: of threads of one process, and of two processes. On the
// simulated device, too.

#include <cstdio>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/backends/same_device/same_device_backend.h"
#include "weft/collectives/process_group.h"
#include "weft/ddp/small_training.h"
#include "weft/device/current.h"
#include "weft/device/open.h"
#include "weft/nn/small_models.h"
#include "weft/tests/gpu/rank_processes.h"
#include "weft/tests/support/run_ranks.h"

namespace weft::testing {
namespace {

using ddp::testing::LargestDifference;
using ddp::testing::Numbers;
using ddp::testing::TrainSmallModel;
using ddp::testing::TrainSmallModelOnCpu;

constexpr int kRanks = 2;

// The simulated device has the CPU's bits. On a GPU sums of f32 have another
// order, which changes a sum of n terms by about n units of 6e-8; two steps,
// a batch norm of 16 elements and the softmax make more of that.
double ToleranceOn(const std::string& device) {
  return device == "simulated" ? 0 : 1e-4;
}

struct NamedModel {
  const char* name;
  nn::testing::MakeSmallModel make;
};

std::vector<NamedModel> Models() {
  return {{"two layers", nn::testing::MakeSmall<nn::testing::TwoLayers>()},
          {"CNN", nn::testing::MakeSmall<nn::testing::SmallCnn>()},
          {"transformer", nn::testing::MakeSmall<nn::testing::Transformer>()}};
}

// Whether the machine lacks a library of CUDA that products or convolutions
// need.
bool LacksALibrary(const absl::Status& status) {
  return absl::IsUnimplemented(status) &&
         (absl::StrContains(status.message(), "libcublasLt.so.13 of") ||
          absl::StrContains(status.message(), "libcudnn.so.9 of"));
}

// Trains each model on one rank, and compares its numbers.
RankEnd CompareModels(absl::string_view title,
                      std::unique_ptr<collectives::Backend> backend,
                      const device::OpenedDevice& opened, double tolerance) {
  const auto made = collectives::ProcessGroup::Create(std::move(backend));
  collectives::ProcessGroup& group = *made;
  device::Context& context = *opened.context;
  const auto compare = [&](const NamedModel& model) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(
        const device::Stream stream,
        context.runtime().CreateStream(context.device(opened.index)));
    const device::StreamScope scope(stream);
    const auto wanted = TrainSmallModelOnCpu(kRanks, model.make);
    const auto& own = wanted[group.rank()];
    WEFT_RETURN_IF_ERROR(own.status());
    WEFT_ASSIGN_OR_RETURN(
        const Numbers found,
        TrainSmallModel(group, Device(context, opened.index), model.make));
    WEFT_ASSIGN_OR_RETURN(const double largest,
                          LargestDifference(found, *own, tolerance));
    if (group.rank() == 0) {
      std::printf(
          "compared: ddp, %s, %s: %lld numbers, the largest "
          "difference is %.2g of a tolerance of %.2g\n",
          std::string(title).c_str(), model.name,
          static_cast<long long>(own->count()), largest, tolerance);
      std::fflush(stdout);
    }
    return group.Barrier();
  };
  for (const NamedModel& model : Models()) {
    const absl::Status status = CatchToStatus([&] { return compare(model); });
    if (!status.ok()) return {status, LacksALibrary(status)};
  }
  return {};
}

std::string TitleOf(absl::string_view kind,
                    const device::OpenedDevice& opened) {
  return absl::StrCat(kRanks, " ", kind, " on ",
                      Name(opened.context->device(opened.index)));
}

class DdpOn : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Devices, DdpOn, ::testing::Values("simulated", "cuda"),
                         [](const auto& info) { return info.param; });

TEST_P(DdpOn, TwoProcessesHaveTheNumbersOfTheCpu) {
  RankProcesses processes;
  processes.Run(kRanks, [&](int rank) -> RankEnd {
    const auto opened = device::OpenDevice(GetParam());
    if (!opened.ok()) return AbsentOrFailed(opened.status());
    auto backend = processes.Connect(rank, kRanks);
    if (!backend.ok()) return {backend.status()};
    collectives::SameDeviceOptions options;
    options.host_bytes = 0;
    auto shared =
        collectives::SharedDevice::Create(opened->context, opened->index);
    if (!shared.ok()) return {shared.status()};
    options.device = *shared;
    backend = collectives::ConnectSameDevice(options, *std::move(backend));
    if (!backend.ok()) return {backend.status()};
    return CompareModels(TitleOf("processes", *opened), *std::move(backend),
                         *opened, ToleranceOn(GetParam()));
  });
}

// In a process of its own: the other test forks, too.
TEST_P(DdpOn, TwoThreadsHaveTheNumbersOfTheCpu) {
  RankProcesses processes;
  processes.Run(1, [&](int) -> RankEnd {
    const auto opened = device::OpenDevice(GetParam());
    if (!opened.ok()) return AbsentOrFailed(opened.status());
    collectives::SameDeviceOptions options;
    options.host_bytes = 0;
    auto shared =
        collectives::SharedDevice::Create(opened->context, opened->index);
    if (!shared.ok()) return {shared.status()};
    options.device = *shared;
    collectives::LocalWorld host(kRanks);
    std::vector<RankEnd> ends(kRanks);
    RunRanks(kRanks, [&](int rank) {
      auto backend =
          collectives::ConnectSameDevice(options, host.Connect(rank));
      ends[rank] = backend.ok() ? CompareModels(TitleOf("threads", *opened),
                                                *std::move(backend), *opened,
                                                ToleranceOn(GetParam()))
                                : RankEnd{backend.status()};
      return absl::OkStatus();
    });
    for (const RankEnd& end : ends) {
      if (!end.status.ok()) return end;
    }
    return {};
  });
}

}  // namespace
}  // namespace weft::testing
