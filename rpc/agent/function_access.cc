#include "weft/rpc/agent/function_access.h"

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "weft/rpc/connection/wire.h"

namespace weft::rpc {
namespace {

bool Matches(const AccessRule& rule, absl::string_view function) {
  absl::string_view wanted = rule.functions;
  return absl::ConsumeSuffix(&wanted, "*") ? absl::StartsWith(function, wanted)
                                           : function == wanted;
}

}  // namespace

absl::StatusOr<const Function*> FunctionAccess::Find(const Request& request,
                                                     Refusal* refusal) const {
  const Function* function = registry_.FindName(request.function);
  if (function == nullptr) {
    *refusal = Refusal::kUnknownFunction;
    return absl::UnimplementedError(
        absl::StrCat(options_.name, " (build ", options_.build,
                     ") has no function ", request.function));
  }
  if (function->digest != request.signature) {
    *refusal = Refusal::kSignatureDiffers;
    return absl::FailedPreconditionError(function->signature);
  }
  return function;
}

absl::StatusOr<const Function*> FunctionAccess::FindOwn(
    Function::Address address) const {
  const Function* function = registry_.FindAddress(address);
  if (function != nullptr) return function;
  return absl::FailedPreconditionError(
      "the function is not registered in this program: put WEFT_RPC(function) "
      "beside its definition");
}

absl::StatusOr<const Function*> FunctionAccess::FindOwn(
    absl::string_view method) const {
  const Function* function = registry_.FindMethod(method);
  if (function != nullptr) return function;
  return absl::FailedPreconditionError(
      "the method is not registered in this program: put "
      "WEFT_RPC_METHOD(Class, Method) beside the class");
}

net::Roles FunctionAccess::RolesOf(const Function& function) const {
  if (function.is_of_maker) return net::Roles::Any();
  for (const AccessRule& rule : options_.access) {
    if (Matches(rule, function.name)) return rule.roles;
  }
  if (function.roles.has_value()) return *function.roles;
  const Function* constructor = registry_.FindName(function.constructor);
  return constructor == nullptr ? net::Roles::Members() : RolesOf(*constructor);
}

bool FunctionAccess::MayCall(const Function& function,
                             const Worker& caller) const {
  return caller.role.empty() || RolesOf(function).Allow(caller.role);
}

std::optional<FunctionTable> FunctionAccess::TableFor(
    const Worker& caller) const {
  FunctionTable table;
  for (const std::string& name : registry_.Names()) {
    const Function& function = *registry_.FindName(name);
    if (!MayCall(function, caller)) continue;
    table[name] = {function.signature, function.digest};
  }
  if (table.size() > kMaxFunctions) return std::nullopt;
  return table;
}

absl::Status FunctionAccess::Check(const Function& function,
                                   const Worker& caller) {
  if (caller.role.empty()) return absl::OkStatus();
  absl::Status allowed =
      RolesOf(function).Check(caller.name, caller.role, function.name);
  if (!allowed.ok())
    refusal_log_.Refused("function", caller.name, function.name,
                         allowed.message());
  return allowed;
}

}  // namespace weft::rpc
