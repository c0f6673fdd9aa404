#include "weft/rpc/function.h"

#include <algorithm>
#include <utility>

#include "weft/base/check.h"
#include "weft/base/reworded.h"
#include "weft/base/said_by.h"
#include "weft/rpc/codec/device_tensors.h"
#include "xxhash.h"

namespace weft::rpc {

Registry& Registry::Global() {
  static auto* const registry = new Registry();
  return *registry;
}

void Registry::Add(Function function) {
  const std::string name = function.name;
  const Function::Address address = function.address;
  const std::string signature = function.signature;
  const bool is_idempotent = function.is_idempotent;
  auto owned = std::make_unique<Function>(std::move(function));
  const auto [it, is_new] = by_name_.emplace(name, std::move(owned));
  if (!is_new && it->second->address == address &&
      it->second->signature == signature) {
    WEFT_CHECK(it->second->is_idempotent == is_idempotent)
        << name << " is registered as idempotent and as not: use one of "
        << "WEFT_RPC and WEFT_RPC_IDEMPOTENT";
    return;
  }
  WEFT_CHECK(is_new) << "WEFT_RPC: two functions are named " << name;
  it->second->index = by_name_.size();
  by_address_.emplace(it->second->address, it->second.get());
  if (!it->second->method.empty()) {
    by_method_.emplace(it->second->method, it->second.get());
  }
}

void Registry::SetRoles(absl::string_view name, net::Roles roles) {
  const auto it = by_name_.find(name);
  WEFT_CHECK(it != by_name_.end())
      << "WEFT_RPC_ROLES: no function is named " << name;
  it->second->roles = std::move(roles);
}

const Function* Registry::FindName(absl::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second.get();
}

const Function* Registry::FindAddress(Function::Address address) const {
  const auto it = by_address_.find(address);
  return it == by_address_.end() ? nullptr : it->second;
}

const Function* Registry::FindMethod(absl::string_view key) const {
  const auto it = by_method_.find(key);
  return it == by_method_.end() ? nullptr : it->second;
}

uint64_t Registry::Digest() const {
  std::string text;
  for (const std::string& name : Names()) {
    absl::StrAppend(&text, name, " ", FindName(name)->signature, "\n");
  }
  return internal::DigestOf(text);
}

std::vector<std::string> Registry::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, function] : by_name_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

Encoder ServedCall::ReplyEncoder() {
  const CodecContext& request = incoming_.arguments.context;
  const CodecContext context{
      CodecContext::Message::kReply,        &agent(),        peer().key,
      incoming_.has_attachments ? id() : 0, request.devices, request.peer_name};
  return Encoder(context, incoming_.has_attachments ? &staged_ : nullptr,
                 "the call has no session: a client makes it in untyped form");
}

namespace internal {

uint64_t DigestOf(absl::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

namespace {

// There was no memory for it, or it is of a device.
bool KeepsCode(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || IsOfDevices(status);
}

// The code of a result that cannot be written or read: it says whose fault it
// is.
absl::StatusCode CodeOfResult(const absl::Status& status) {
  return KeepsCode(status) ? status.code() : absl::StatusCode::kInternal;
}

}  // namespace

absl::Status DecodeError(const absl::Status& status) {
  if (KeepsCode(status)) return status;
  return Reworded(status, absl::StatusCode::kInvalidArgument, status.message());
}

absl::Status EncodeError(const absl::Status& status) {
  return Reworded(status, CodeOfResult(status),
                  absl::StrCat("the result: ", status.message()));
}

absl::Status ResultError(const std::string& worker, const std::string& function,
                         const absl::Status& status) {
  const absl::Status named = NameFailure(
      Reworded(status, CodeOfResult(status),
               absl::StrCat("its result cannot be read: ", status.message())),
      worker, function, Phase::kDecode);
  return Reworded(named, SaidBy(worker, SaidBy(function, named.message())));
}

absl::Status ArgumentError(size_t index, absl::string_view type,
                           const absl::Status& status) {
  return Reworded(status,
                  index == 0
                      ? absl::StrCat("after the arguments: ", status.message())
                      : absl::StrCat("argument ", index, " (", type,
                                     "): ", status.message()));
}

}  // namespace internal
}  // namespace weft::rpc
