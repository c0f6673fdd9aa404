// codec: no bytes harm the decoding of any type that a call may have; what is
// accepted is encoded and decoded again.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/proto/rpc.pb.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/codec/device_tensors.h"
#include "weft/rpc/codec/tensor_codec.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

using rpc::Decoder;
using rpc::Encoder;
using rpc::Received;

enum class Colour : uint8_t { kRed, kBlue };

template <typename T>
Slices Encoded(T&& value) {
  Encoder encoder;
  encoder.Write(std::forward<T>(value));
  return *std::move(encoder).Finish();
}

template <typename T>
void Decode(absl::string_view bytes, size_t cut, bool is_private) {
  // In two slices, as bytes of a connection may lie.
  const Received received{
      {Bytes::Copy(bytes.substr(0, cut)), Bytes::Copy(bytes.substr(cut))},
      is_private};
  Decoder decoder(received);
  T value{};
  if (!decoder.Read(value).ok() || !decoder.AtEnd().ok()) return;
  const Received again{Encoded(value), false};
  Decoder second(again);
  T copy{};
  Hold(second.Read(copy).ok() && second.AtEnd().ok());
  // What the caller gives away is encoded by other code than what it keeps.
  const Bytes kept = Flatten(Encoded(copy));
  Hold(Flatten(Encoded(std::move(copy))).view() == kept.view());
}

// Where tensors of a request arrive.
struct Devices {
  device::testing::SimulatedDevices simulated{/*seed=*/1};
  std::shared_ptr<rpc::DeviceTensors> tensors =
      *rpc::DeviceTensors::Create("w1", {{Device(simulated.context(), 0)}, {}});
  std::unique_ptr<const rpc::DeviceStreams> streams = tensors->CurrentStreams();
};

void DecodeOnDevice(absl::string_view bytes, size_t cut, bool has_none) {
  static auto* const devices = new Devices();
  Received received{
      {Bytes::Copy(bytes.substr(0, cut)), Bytes::Copy(bytes.substr(cut))},
      /*is_private=*/false};
  received.context.message = rpc::CodecContext::Message::kRequest;
  received.context.devices = has_none ? nullptr : devices->tensors.get();
  received.context.peer_name = "w0";
  received.context.streams = &devices->streams->streams;
  Decoder decoder(received);
  Tensor value;
  if (!decoder.Read(value).ok() || !decoder.AtEnd().ok()) return;
  if (!value.defined()) return;
  Hold(value.To(Device::Cpu()).numel() == value.numel());
}

// Tensors for device 0 of the simulated ones, and for one that is not there.
std::vector<std::string> SeedsOnDevice() {
  using std::string_literals::operator""s;
  std::vector<std::string> seeds;
  for (const Tensor& tensor :
       {Tensor::FromVector<float>({1, 2}, {2, 1}), Tensor::Zeros({0, 3}),
        Tensor::Ones({3}, DType::kBool), Tensor::Zeros({40, 32})}) {
    const Bytes bytes = Flatten(Encoded(tensor));
    for (const std::string& device :
         {"\xfe\x01\x02\x00"s, "\xfe\x01\x01\x05"s}) {
      seeds.push_back(absl::StrCat(device, bytes.view()));
    }
  }
  return seeds;
}

// A type of the table below: how its seeds are made and its bytes read.
struct Case {
  std::vector<std::string> (*seeds)();
  void (*decode)(absl::string_view bytes, size_t cut, bool is_private);
};

template <typename T>
std::vector<T>& Values() {
  static auto* const values = new std::vector<T>();
  return *values;
}

template <typename T>
Case Of(std::vector<T> values) {
  Values<T>() = std::move(values);
  return {[] {
            std::vector<std::string> seeds;
            for (const T& value : Values<T>()) {
              seeds.emplace_back(Flatten(Encoded(value)).view());
            }
            return seeds;
          },
          &Decode<T>};
}

rpc::v1::Hello Message() {
  rpc::v1::Hello hello;
  hello.set_job("job");
  hello.mutable_from()->set_epoch(7);
  return hello;
}

const std::vector<Case>& Cases() {
  using Nested = std::map<std::string, std::vector<std::optional<int32_t>>>;
  using Either = std::variant<std::monostate, int64_t, std::string>;
  static const auto* const cases = new std::vector<Case>{
      Of<bool>({true}),
      Of<int8_t>({-1}),
      Of<uint64_t>({7}),
      Of<double>({0.5}),
      Of<Colour>({Colour::kBlue}),
      Of<std::string>({"", "text"}),
      Of<Bytes>({Bytes::Copy("bytes")}),
      Of<Slices>({{Bytes::Copy("slices")}}),
      Of<rpc::v1::Hello>({Message()}),
      Of<std::vector<int16_t>>({{1, -2, 3}}),
      Of<std::vector<double>>({std::vector<double>(600, 0.5)}),
      Of<std::vector<bool>>({{true, false}}),
      Of<std::vector<std::string>>({{"a", "", "b"}}),
      Of<Nested>({{{"k", {1, std::nullopt}}}}),
      Of<std::unordered_map<uint8_t, bool>>({{{1, true}, {2, false}}}),
      Of<std::tuple<>>({{}}),
      Of<std::pair<int32_t, std::string>>({{5, "b"}}),
      Of<std::tuple<bool, double, std::vector<int8_t>>>({{true, 2.0, {3}}}),
      Of<Either>({int64_t{5}, std::string("b"), std::monostate()}),
      Of<Tensor>({Tensor(), Tensor::FromVector<float>({1, 2}, {2, 1}),
                  Tensor::Ones({3}, DType::kBool),
                  Tensor::Zeros({40, 32}, DType::kF32)}),
      Of<std::optional<Tensor>>({Tensor::FromVector<int64_t>({4})}),
      {&SeedsOnDevice, &DecodeOnDevice}};
  return *cases;
}

// The first byte chooses the type, the second where the bytes are cut.
std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (size_t i = 0; i < Cases().size(); ++i) {
    for (const std::string& seed : Cases()[i].seeds()) {
      seeds.push_back(std::string{static_cast<char>(i), '\1'} + seed);
    }
  }
  return seeds;
}

std::vector<std::string> Words() {
  using std::string_literals::operator""s;
  return {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x80\x20", "\x02",
          "\xff\x01", std::string(64, '\0')};
}

void Run(absl::string_view input) {
  if (input.size() < 2) return;
  const auto which = static_cast<uint8_t>(input[0]);
  const auto cut = static_cast<uint8_t>(input[1]);
  const absl::string_view bytes = input.substr(2);
  Cases()[which % Cases().size()].decode(bytes, cut % (bytes.size() + 1),
                                         cut % 2 == 0);
}

WEFT_FUZZ_TARGET(codec, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
