#include "weft/device/device.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace weft::device {
namespace {

// ":7" is 7 and "" is 0. SimpleAtoi alone would accept "+7" and " 7" too.
bool ParseIndex(absl::string_view text, int* index) {
  *index = 0;
  if (text.empty()) return true;
  return absl::ConsumePrefix(&text, ":") && !text.empty() &&
         std::all_of(text.begin(), text.end(), absl::ascii_isdigit) &&
         absl::SimpleAtoi(text, index);
}

}  // namespace

std::string Name(Device device) {
  switch (device.kind) {
    case Device::Kind::kCpu:
      return "cpu";
    case Device::Kind::kCuda:
      return absl::StrCat("cuda:", device.index);
    case Device::Kind::kSimulated:
      return absl::StrCat("simulated:", device.index);
  }
  return absl::StrCat("device of kind ", static_cast<int>(device.kind));
}

absl::StatusOr<Device> ParseDevice(absl::string_view text) {
  if (text == "cpu") return Device::Cpu();
  absl::string_view rest = text;
  int index = 0;
  if (absl::ConsumePrefix(&rest, "cuda") && ParseIndex(rest, &index)) {
    return Device::Cuda(index);
  }
  rest = text;
  if (absl::ConsumePrefix(&rest, "simulated") && ParseIndex(rest, &index)) {
    return Device::Simulated(index);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("device \"", text,
                   "\": wanted cpu, cuda, cuda:N, simulated or simulated:N"));
}

std::ostream& operator<<(std::ostream& out, Device device) {
  return out << Name(device);
}

}  // namespace weft::device
