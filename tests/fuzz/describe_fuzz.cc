// describe: nothing that a worker says of itself, of its calls or of what a
// function returned harms who asks from a shell, nor do the arguments that
// people type there. The first byte chooses which, the second a signature.

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/bytes.h"
#include "weft/launch/commands/json_value.h"
#include "weft/launch/commands/question.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/proto/rpc.pb.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/codec/signature.h"
#include "weft/rpc/diagnostics/waits_for.h"
#include "weft/rpc/gateway/description.h"
#include "weft/rpc/gateway/untyped_value.h"
#include "weft/tensor/codec.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

using nlohmann::json;

constexpr char kAddress[] = "unix:/run/ps0.sock";

// A type, and what one may type for it.
constexpr const char* kTyped[][2] = {
    {"bool", "true"},
    {"i64", "-3"},
    {"u8", "7"},
    {"f64", "\"nan\""},
    {"enum:i32", "1"},
    {"string", "\"text\""},
    {"bytes", "\"AAE=\""},
    {"proto:weft.rpc.v1.Function", "\"CgFm\""},
    {"tensor", "[[1, 2.5], [true, \"-inf\"]]"},
    {"tensor",
     "{\"dtype\": \"i64\", \"shape\": [2, 2], \"values\": [1, 2, 3, 4]}"},
    {"vector<f32>", "[0.5, \"inf\"]"},
    {"map<string, vector<optional<i32>>>", "{\"k\": [1, null]}"},
    {"map<i32, bool>", "[[1, true]]"},
    {"(i32, (f64, string))", "[1, [2, \"b\"]]"},
    {"variant<none, i64>", "{\"index\": 1, \"value\": 5}"},
    {"void", "null"},
};

rpc::Type TypeOf(size_t which) {
  const auto signature = rpc::ParseSignature(
      absl::StrCat(kTyped[which % std::size(kTyped)][0], "()"));
  Hold(signature.ok());
  return signature->result;
}

std::string Text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// What `weft call` makes of a description.
void ReadDescription(absl::string_view input) {
  const auto reply = rpc::ParseDescription(kAddress, input);
  if (!reply.ok()) {
    Hold(absl::IsInternal(reply.status()));
    return;
  }
  Hold(!reply->name().empty() && reply->key().epoch() != 0);
  for (const rpc::v1::Function& function : reply->functions()) {
    const auto signature = rpc::ParseSignature(function.signature());
    if (!signature.ok()) continue;
    for (const rpc::Type& type : signature->parameters) {
      (void)launch::ValueFromJson(nullptr, type);
      (void)launch::ValueFromJson(json::array({1, 2}), type);
    }
  }
}

void ReadResult(const rpc::Type& type, absl::string_view input) {
  rpc::v1::CallReply reply;
  if (!reply.ParseFromArray(input.data(), input.size())) return;
  (void)Text(launch::JsonFromValue(reply.result(), type));
}

void ReadTyped(const rpc::Type& type, absl::string_view input) {
  const json typed = launch::ParseJson(std::string(input));
  if (typed.is_discarded()) return;
  const auto value = launch::ValueFromJson(typed, type);
  if (!value.ok()) return;
  const json again = launch::JsonFromValue(*value, type);
  Hold(!again.is_discarded());
  (void)Text(again);
}

void ReadPending(absl::string_view input) {
  const Bytes bytes = Bytes::Copy(input);
  const rpc::Received received{{bytes}, false};
  rpc::Decoder decoder(received);
  std::vector<rpc::PendingCall> calls;
  if (!decoder.Read(calls).ok()) return;
  rpc::WaitsFor waits;
  waits.Add("ps0", calls);
  waits.Add("ps1", calls);
  Hold(waits.Calls().size() <= 2 * calls.size());
  (void)waits.Tree();
  (void)waits.ToString();
}

std::string Encoded(const std::vector<rpc::PendingCall>& calls) {
  rpc::Encoder encoder;
  encoder.Write(calls);
  const auto bytes = std::move(encoder).Finish();
  Hold(bytes.ok());
  return std::string(Flatten(*bytes).view());
}

std::vector<std::string> Seeds() {
  rpc::v1::DescribeReply description;
  description.set_job("job");
  description.set_name("ps0");
  description.mutable_key()->set_epoch(1);
  for (const auto& typed : kTyped) {
    rpc::v1::Function* function = description.add_functions();
    function->set_name(absl::StrCat("f::", description.functions_size()));
    function->set_signature(absl::StrCat("void(", typed[0], ")"));
  }
  std::vector<std::string> seeds = {std::string(2, '\0') +
                                    description.SerializeAsString()};
  description.add_functions();  // which has no name
  seeds.push_back(std::string(2, '\0') + description.SerializeAsString());
  description.clear_key();
  seeds.push_back(std::string(2, '\0') + description.SerializeAsString());
  for (size_t i = 0; i < std::size(kTyped); ++i) {
    const std::string typed = kTyped[i][1];
    const char which = static_cast<char>(i);
    seeds.push_back(std::string{'\2', which} + typed);
    const auto value =
        launch::ValueFromJson(launch::ParseJson(typed), TypeOf(i));
    if (!value.ok()) continue;
    rpc::v1::CallReply reply;
    *reply.mutable_result() = *value;
    seeds.push_back(std::string{'\1', which} + reply.SerializeAsString());
  }
  rendezvous::v1::WatchReply watch;
  watch.mutable_view()->set_version(1);
  (*watch.mutable_view()->mutable_world()->mutable_roles())["ps"] = 2;
  watch.mutable_view()->add_members()->set_name("ps0");
  watch.mutable_view()->mutable_members(0)->set_role("ps");
  seeds.push_back(std::string{'\3', '\0'} + watch.SerializeAsString());
  rpc::PendingCall inner;
  inner.peer = "ps1";
  inner.id = 2;
  inner.function = "Pull";
  inner.for_peer = "ps1";
  inner.for_id = 1;
  rpc::PendingCall outer = inner;
  outer.is_served = true;
  outer.id = 1;
  seeds.push_back(std::string{'\4', '\0'} + Encoded({inner, outer}));
  return seeds;
}

std::vector<std::string> Words() {
  return {"[[[[",        "{\"",     "null",
          "1e999",       "1e300",   "-1",
          "\"shape\":[", "\\u0000", "\xff\xff\xff\xff\x0f"};
}

void Run(absl::string_view input) {
  if (input.size() < 2) return;
  const auto which = static_cast<uint8_t>(input[0]) % 5;
  const auto type = static_cast<uint8_t>(input[1]);
  input.remove_prefix(2);
  switch (which) {
    case 0:
      return ReadDescription(input);
    case 1:
      return ReadResult(TypeOf(type), input);
    case 2:
      return ReadTyped(TypeOf(type), input);
    case 3:
      return static_cast<void>(launch::ParseMembers(kAddress, input));
    default:
      return ReadPending(input);
  }
}

WEFT_FUZZ_TARGET(describe, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
