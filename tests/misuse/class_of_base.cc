// WANTED: T has no WEFT_RPC_CLASS

#include "weft/rpc/handle.h"

namespace {

struct Account {};
WEFT_RPC_CLASS(Account);

struct Savings : Account {};

}  // namespace

bool Makes(const weft::rpc::Target& target) {
  return weft::rpc::Make<Savings>(target).ok();
}
