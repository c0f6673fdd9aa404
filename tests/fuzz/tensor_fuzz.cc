// tensor: no message harms the reader of tensors, and what it makes is as large
// as the message said.

#include "weft/proto/tensor.pb.h"
#include "weft/tensor/codec.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const Tensor& tensor :
       {Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2}),
        Tensor::FromVector<int64_t>({-1}), Tensor::Ones({3}, DType::kBool),
        Tensor::Zeros({0, 5}, DType::kU8), Tensor::Full({}, 2, DType::kF64)}) {
    seeds.push_back(EncodeTensor(tensor).SerializeAsString());
  }
  return seeds;
}

std::vector<std::string> Words() {
  using std::string_literals::operator""s;
  return {"\x08\x00"s, "\x08\x05", "\x12\x01\x00"s,
          "\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "\x18\x00"s};
}

void Run(absl::string_view input) {
  tensor::v1::Tensor message;
  if (!message.ParseFromArray(input.data(), static_cast<int>(input.size()))) {
    return;
  }
  (void)CheckHeader(message.header());
  const auto tensor = DecodeTensor(message);
  if (!tensor.ok()) return;
  Hold(tensor->bytes() == static_cast<int64_t>(message.elements().size()));
  const auto again = DecodeTensor(EncodeTensor(*tensor));
  Hold(again.ok() && again->shape() == tensor->shape());
}

WEFT_FUZZ_TARGET(tensor, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
