#include "weft/worker/group_backend.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/nccl/simulated_nccl.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/worker/join_group.h"
#include "weft/worker/test_workers.h"

namespace weft::worker {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::weft::device::testing::SimulatedDevices;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotSo = absl::StatusCode::kFailedPrecondition;

BackendOffer Gpu(std::string host, std::string gpu,
                 std::string wanted = "auto") {
  return {std::move(wanted), std::move(host), std::move(gpu), "", ""};
}
const std::vector<std::string>& Names() {
  static const auto* const names =
      new std::vector<std::string>{"trainer0", "trainer1"};
  return *names;
}

TEST(ChooseBackend, TakesNcclWhereEachRankHasItsOwnGpu) {
  const auto one_host = ChooseBackend({Gpu("a", "0"), Gpu("a", "1")}, Names(),
                                      /*is_insecure=*/false);
  ASSERT_THAT(one_host, IsOk());
  EXPECT_EQ(one_host->name, "nccl");
  EXPECT_THAT(one_host->why, HasSubstr("2 ranks"));
  // The same number on another host is another GPU.
  EXPECT_EQ(ChooseBackend({Gpu("a", "0"), Gpu("b", "0")}, Names(), true)->name,
            "nccl");
}

TEST(ChooseBackend, AutoSaysWhyItIsNotNccl) {
  const auto why = [](BackendOffer a, BackendOffer b) {
    const auto choice = ChooseBackend({a, b}, Names(), false);
    EXPECT_THAT(choice, IsOk());
    EXPECT_EQ(choice->name, "host");
    return choice->why;
  };
  EXPECT_THAT(why(Gpu("a", "0"), Gpu("a", "0")),
              AllOf(HasSubstr("trainer0 and trainer1"), HasSubstr("GPU 0")));
  EXPECT_THAT(why(Gpu("a", "0"), Gpu("b", "0")),
              AllOf(HasSubstr("two hosts"), HasSubstr("--insecure")));
  BackendOffer without = Gpu("a", "");
  without.why_not = "NCCL was not found";
  EXPECT_THAT(why(Gpu("a", "0"), without),
              HasSubstr("trainer1: NCCL was not found"));
}

TEST(ChooseBackend, RanksOnTheCpuHaveNoChoiceToSpeakOf) {
  GroupBackend unset;
  unset.name = "auto";
  const BackendOffer cpu = OfferOf(unset, "a");
  const auto choice = ChooseBackend({cpu, cpu}, Names(), false);
  ASSERT_THAT(choice, IsOk());
  EXPECT_EQ(choice->name, "host");
  EXPECT_EQ(choice->why, "");
  // Beside one that has a device it is.
  const auto mixed = ChooseBackend({Gpu("a", "0"), cpu}, Names(), false);
  ASSERT_THAT(mixed, IsOk());
  EXPECT_THAT(mixed->why, HasSubstr("trainer1: its tensors lie on the CPU"));
}

TEST(ChooseBackend, WhatIsWantedAndCannotBeIsNamed) {
  BackendOffer without = Gpu("a", "", "nccl");
  without.why_not = "NCCL was not found";
  const std::vector<BackendOffer> offers = {Gpu("a", "0", "nccl"), without};
  EXPECT_THAT(ChooseBackend(offers, Names(), false),
              StatusIs(kNotSo, "trainer1: NCCL was not found"));
  const std::vector<BackendOffer> two = {Gpu("a", "0", "nccl"), Gpu("a", "1")};
  EXPECT_THAT(
      ChooseBackend(two, Names(), false),
      StatusIs(kInvalid, "trainer0 wants the backend nccl and trainer1 auto"));
  EXPECT_THAT(CheckBackendName("gloo"), StatusIs(kInvalid, "host, nccl"));
}

TEST(ChooseBackend, TakesTheDeviceThatAllRanksShare) {
  const auto sharing = [](std::string token, std::string wanted) {
    BackendOffer offer = Gpu("a", "0", std::move(wanted));
    offer.shared = std::move(token);
    return offer;
  };
  for (const char* wanted : {"auto", "same_device"}) {
    const auto choice = ChooseBackend(
        {sharing("x", wanted), sharing("x", wanted)}, Names(), false);
    ASSERT_THAT(choice, IsOk());
    EXPECT_EQ(choice->name, "same_device");
    EXPECT_THAT(choice->why, HasSubstr("2 ranks share one device"));
  }
  // Who wants NCCL gets no other.
  EXPECT_THAT(ChooseBackend({sharing("x", "nccl"), sharing("x", "nccl")},
                            Names(), false),
              StatusIs(kNotSo, "share the GPU 0"));
  EXPECT_EQ(ChooseBackend({sharing("x", "auto"), sharing("y", "auto")}, Names(),
                          false)
                ->name,
            "host");
  EXPECT_THAT(
      ChooseBackend({sharing("x", "same_device"), sharing("y", "same_device")},
                    Names(), false),
      StatusIs(kNotSo, "trainer0 and trainer1 do not share a device"));
  EXPECT_THAT(
      ChooseBackend({sharing("x", "same_device"), sharing("", "same_device")},
                    Names(), false),
      StatusIs(kNotSo, "trainer1 has no device that it shares"));
}

TEST(ChooseBackend, TakesTheDeviceThatProcessesShare) {
  const auto process = [](std::string place, std::string pid,
                          std::string wanted) {
    BackendOffer offer = Gpu("a", "0", std::move(wanted));
    offer.place = std::move(place);
    offer.process = std::move(pid);
    return offer;
  };
  for (const char* wanted : {"auto", "same_device"}) {
    const auto choice = ChooseBackend(
        {process("gpu0@a", "1", wanted), process("gpu0@a", "2", wanted)},
        Names(), false);
    ASSERT_THAT(choice, IsOk());
    EXPECT_EQ(choice->name, "same_device");
  }
  const auto why_not = [&](BackendOffer a, BackendOffer b) {
    const auto choice = ChooseBackend({a, b}, Names(), false);
    EXPECT_THAT(choice, StatusIs(kNotSo, "backend same_device: "));
    return std::string(choice.status().message());
  };
  EXPECT_THAT(why_not(process("gpu0@a", "1", "same_device"),
                      process("gpu1@a", "2", "same_device")),
              HasSubstr("trainer0 is on the device gpu0@a and trainer1 on "
                        "gpu1@a"));
  EXPECT_THAT(why_not(process("gpu0@a", "1", "same_device"),
                      process("gpu0@a", "1", "same_device")),
              HasSubstr("trainer0 and trainer1 are of one process"));
  EXPECT_THAT(why_not(process("gpu0@a", "1", "same_device"),
                      process("", "", "same_device")),
              HasSubstr("trainer1 has no device whose memory"));
  // One that has a GPU of its own takes NCCL.
  EXPECT_EQ(ChooseBackend({process("gpu0@a", "1", "auto")}, {"trainer0"}, false)
                ->name,
            "nccl");
}

TEST(BackendOffer, ReadsWhatItWrites) {
  BackendOffer offer = Gpu("a b", "0000:1b:00.0", "nccl");
  offer.why_not = "two\nlines of it";
  offer.shared = "0123abcd";
  offer.place = "0000:1b:00.0@x/pid:[1]/0";
  offer.process = "77";
  const auto read = DecodeOffer(Encode(offer));
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->wanted, "nccl");
  EXPECT_EQ(read->host, "a_b");
  EXPECT_EQ(read->gpu, "0000:1b:00.0");
  EXPECT_EQ(read->why_not, "two lines of it");
  EXPECT_EQ(read->shared, "0123abcd");
  EXPECT_EQ(read->place, offer.place);
  EXPECT_EQ(read->process, "77");
  const auto unshared = DecodeOffer(Encode(Gpu("a", "0")));
  ASSERT_THAT(unshared, IsOk());
  EXPECT_EQ(unshared->shared, "");
  for (const char* text : {"", "nccl", "nccl a b c d e", "tpu a b c d e f"}) {
    EXPECT_THAT(DecodeOffer(text), StatusIs(kInvalid, "")) << text;
  }
}

// Trainers in one process, with devices and an NCCL that are simulated.
class JoinNcclTest : public ::testing::Test {
 protected:
  // The backend that each rank got.
  std::vector<absl::Status> Join(
      int size, const std::function<void(int, JoinGroupOptions&)>& change,
      const std::string& wanted) {
    TestWorkers::Options options;
    options.trainers = size;
    auto workers = TestWorkers::Start(options);
    if (!workers.ok()) return {workers.status()};
    std::vector<std::unique_ptr<SimulatedDevices>> devices;
    for (int r = 0; r < size; ++r) {
      devices.push_back(std::make_unique<SimulatedDevices>(r, 2));
    }
    auto shared = collectives::SharedDevice::Create(
        devices[0]->context().shared_from_this(), 1);
    if (!shared.ok()) return {shared.status()};
    shared_ = *shared;
    collectives::SimulatedNccl nccl(7);
    auto statuses = testing::RunRanks(size, [&](int rank) -> absl::Status {
      JoinGroupOptions join;
      join.arena_bytes = 1 << 20;
      join.backend.name = "auto";
      join.backend.devices = devices[rank]->context().shared_from_this();
      join.backend.device = Device(devices[rank]->context(), 1);
      join.backend.nccl = nccl.Library(rank);
      change(rank, join);
      WEFT_ASSIGN_OR_RETURN(
          const auto group,
          JoinGroup((*workers)->Get(absl::StrCat("trainer", rank)), join));
      if (group->backend_name() != wanted) {
        return absl::InternalError(
            absl::StrCat("the backend is ", group->backend_name()));
      }
      const Tensor x =
          Tensor::Full({1000}, rank + 1, DType::kF32, join.backend.device);
      WEFT_RETURN_IF_ERROR(group->AllReduce(x));
      const float sum = x.ToVector<float>()[999];
      if (sum == size * (size + 1) / 2) return absl::OkStatus();
      return absl::InternalError(absl::StrCat("the sum is ", sum));
    });
    (*workers)->Shutdown().IgnoreError();
    return statuses;
  }
  // Has the rank share the first rank's device with those for which this is
  // called.
  void Share(JoinGroupOptions& join) const {
    join.backend.shared = shared_;
    join.backend.devices = shared_->context();
    join.backend.device = Device(*shared_->context(), 1);
  }

  std::shared_ptr<collectives::SharedDevice> shared_;
};

TEST_F(JoinNcclTest, AutoTakesNccl) {
  EXPECT_THAT(Join(
                  3, [](int, JoinGroupOptions&) {}, "nccl"),
              Each(IsOk()));
}

TEST_F(JoinNcclTest, NcclIsTaken) {
  const auto wanted = [](int, JoinGroupOptions& join) {
    join.backend.name = "nccl";
  };
  EXPECT_THAT(Join(2, wanted, "nccl"), Each(IsOk()));
}

TEST_F(JoinNcclTest, HostIsTheDefault) {
  const auto unset = [](int, JoinGroupOptions& join) {
    join.backend.name = JoinGroupOptions().backend.name;
  };
  EXPECT_THAT(Join(2, unset, "host"), Each(IsOk()));
}

TEST_F(JoinNcclTest, RankWithoutTheLibraryTakesAllToTheHost) {
  const auto without = [](int rank, JoinGroupOptions& join) {
    if (rank == 1) join.backend.nccl = nullptr;  // and it is no CUDA device
  };
  EXPECT_THAT(Join(2, without, "host"), Each(IsOk()));
  EXPECT_THAT(Join(
                  2,
                  [&](int rank, JoinGroupOptions& join) {
                    join.backend.name = "nccl";
                    without(rank, join);
                  },
                  "nccl"),
              Each(StatusIs(kNotSo, "trainer1: simulated:1 is no CUDA")));
}

TEST_F(JoinNcclTest, RanksThatShareADeviceKeepTheirTensorsThere) {
  for (const char* name : {"auto", "same_device"}) {
    EXPECT_THAT(Join(
                    3,
                    [&](int, JoinGroupOptions& join) {
                      join.backend.name = name;
                      Share(join);
                    },
                    "same_device"),
                Each(IsOk()));
  }
}

TEST_F(JoinNcclTest, RankThatSharesNoDeviceIsNamedOnAll) {
  const auto one_apart = [&](int rank, JoinGroupOptions& join) {
    join.backend.name = "same_device";
    if (rank == 0) Share(join);
  };
  EXPECT_THAT(Join(2, one_apart, "same_device"),
              Each(StatusIs(kNotSo, "trainer1 has no device that it shares")));
}

TEST_F(JoinNcclTest, SharedDeviceOfAnotherDeviceIsRefused) {
  const auto other = [&](int, JoinGroupOptions& join) {
    join.backend.name = "same_device";
    join.backend.shared = shared_;
    join.backend.device = Device(*join.backend.devices, 0);
  };
  EXPECT_THAT(Join(2, other, ""),
              Each(StatusIs(kInvalid, "wanted the shared device")));
}

TEST_F(JoinNcclTest, HostsWithoutTrustTakeTheHostBackend) {
  const auto apart = [](int rank, JoinGroupOptions& join) {
    join.host_id = absl::StrCat("host", rank);
  };
  EXPECT_THAT(Join(2, apart, "host"), Each(IsOk()));
}

TEST_F(JoinNcclTest, RanksThatDifferAreNamedOnAll) {
  const auto differ = [](int rank, JoinGroupOptions& join) {
    if (rank == 1) join.backend.name = "host";
  };
  EXPECT_THAT(Join(2, differ, ""),
              Each(StatusIs(kInvalid, "trainer1 host: give all the same")));
}

}  // namespace
}  // namespace weft::worker
