// WANTED: too few arguments: a call gives all

#include "weft/rpc/handle.h"

namespace {

struct Account {
  int64_t Add(weft::rpc::CallContext&, int64_t x = 1) { return x; }
};
WEFT_RPC_CLASS(Account);
WEFT_RPC_METHOD(Account, Add);

}  // namespace

bool Adds(const weft::rpc::Handle<Account>& account) {
  return weft::rpc::CallAsync(account, &Account::Add).IsReady();
}
