// plain: no CallRequest harms the reader of untyped values, whatever the
// function takes, and what it passes on the function's own types can be read
// back from.

#include "absl/strings/str_cat.h"
#include "weft/proto/rpc.pb.h"
#include "weft/rpc/codec/signature.h"
#include "weft/rpc/gateway/untyped_value.h"
#include "weft/tensor/codec.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

using rpc::v1::CallRequest;
using rpc::v1::Value;

// The parameters of a function; the first byte of an input chooses.
constexpr const char* kParameters[] = {
    "bool, i8, u64, f32",
    "string, bytes, proto:weft.rpc.v1.Function",
    "tensor",
    "vector<i16>, vector<f32>, vector<bool>, vector<string>",
    "map<string, vector<optional<i32>>>",
    "(i32, (f64, string)), ()",
    "variant<none, i64, tensor>, none",
    "enum:u8, vector<enum:i32>"};

std::string Seed(size_t which, const CallRequest& request) {
  return static_cast<char>(which) + request.SerializeAsString();
}

void AddNumbers(CallRequest* request) {
  request->add_arguments()->set_boolean(true);
  request->add_arguments()->set_integer(-128);
  request->add_arguments()->set_natural(~uint64_t{0});
  request->add_arguments()->set_real(0.5);
}

void AddVectors(CallRequest* request) {
  request->add_arguments()->mutable_integers()->add_values(-7);
  request->add_arguments()->mutable_reals()->add_values(0.5);
  request->add_arguments()->mutable_list()->add_values()->set_boolean(true);
  request->add_arguments()->mutable_list()->add_values()->set_text("a");
}

void AddMap(CallRequest* request) {
  auto* entry = request->add_arguments()->mutable_map()->add_entries();
  entry->mutable_key()->set_text("k");
  auto* list = entry->mutable_value()->mutable_list();
  list->add_values()->set_integer(1);
  list->add_values();
}

void AddTuples(CallRequest* request) {
  auto* outer = request->add_arguments()->mutable_list();
  outer->add_values()->set_integer(1);
  auto* inner = outer->add_values()->mutable_list();
  inner->add_values()->set_real(2);
  inner->add_values()->set_text("b");
  request->add_arguments()->mutable_list();
}

std::vector<std::string> Seeds() {
  std::vector<CallRequest> requests(std::size(kParameters));
  AddNumbers(&requests[0]);
  requests[1].add_arguments()->set_text("gr\xc3\xbc\xc3\x9f");
  requests[1].add_arguments()->set_bytes("\xff");
  requests[1].add_arguments()->set_message(
      "\x0a\x01"
      "f");
  *requests[2].add_arguments()->mutable_tensor() =
      EncodeTensor(Tensor::FromVector<float>({1, 2}, {2, 1}));
  AddVectors(&requests[3]);
  AddMap(&requests[4]);
  AddTuples(&requests[5]);
  requests[6].add_arguments()->mutable_choice()->set_index(1);
  requests[6]
      .mutable_arguments(0)
      ->mutable_choice()
      ->mutable_value()
      ->set_integer(5);
  requests[6].add_arguments();
  requests[7].add_arguments()->set_integer(3);
  requests[7].add_arguments()->mutable_list()->add_values()->set_integer(-3);
  std::vector<std::string> seeds;
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].set_function("f");
    seeds.push_back(Seed(i, requests[i]));
  }
  return seeds;
}

std::vector<std::string> Words() {
  using std::string_literals::operator""s;
  // Values of each kind: tag, length, content.
  return {"\x12\x00"s,         "\x12\x02\x08\x01",  "\x12\x02\x10\x7f",
          "\x12\x02\x18\x01",  "\x12\x03\x2a\x01z", "\x12\x02\x62\x00"s,
          "\x12\x02\x6a\x00"s, "\x12\x02\x72\x00"s, "\xff\xff\xff\xff\x0f"};
}

void Run(absl::string_view input) {
  if (input.empty()) return;
  const char* parameters =
      kParameters[static_cast<uint8_t>(input[0]) % std::size(kParameters)];
  const auto signature =
      rpc::ParseSignature(absl::StrCat("(", parameters, ")(", parameters, ")"));
  Hold(signature.ok());
  CallRequest request;
  if (!rpc::ParseUntyped({Bytes::Copy(input.substr(1))}, &request).ok()) return;
  const auto body = rpc::EncodeUntyped(request, *signature);
  if (!body.ok()) return;
  // A tuple of them is encoded as they are, one after another.
  rpc::v1::CallReply reply;
  const absl::Status back =
      rpc::DecodeUntyped({*body, false}, *signature, &reply);
  Hold(back.ok());
}

WEFT_FUZZ_TARGET(plain, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
