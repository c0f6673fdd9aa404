#include "weft/device/device.h"

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::device {
namespace {

using testing::IsOkAndHolds;
using testing::StatusIs;

TEST(Device, IsParsedFromItsName) {
  for (const Device device : {Device::Cpu(), Device::Cuda(0), Device::Cuda(12),
                              Device::Simulated(0), Device::Simulated(3)}) {
    EXPECT_THAT(ParseDevice(Name(device)), IsOkAndHolds(device));
  }
}

TEST(Device, HasIndexZeroWhereNoneIsGiven) {
  EXPECT_THAT(ParseDevice("cuda"), IsOkAndHolds(Device::Cuda(0)));
  EXPECT_THAT(ParseDevice("simulated"), IsOkAndHolds(Device::Simulated(0)));
}

TEST(Device, IsNotParsedFromAnythingElse) {
  for (const char* text :
       {"", "tpu", "CPU", "cpu:0", "cuda:", "cuda:-1", "cuda:+1", "cuda: 1",
        "cuda0", "cuda:1x", "cuda:99999999999", "simulated:", "simulatedx"}) {
    EXPECT_THAT(ParseDevice(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                            "wanted cpu, cuda, cuda:N"))
        << text;
  }
}

}  // namespace
}  // namespace weft::device
