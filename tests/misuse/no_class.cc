// WANTED: T has no WEFT_RPC_CLASS

#include "weft/rpc/handle.h"

namespace {

struct Account {
  explicit Account(int64_t) {}
};
WEFT_RPC_CLASS(Account, int64_t);

struct Book {};

}  // namespace

bool Makes(const weft::rpc::Target& target) {
  return weft::rpc::Make<Book>(target).ok();
}
