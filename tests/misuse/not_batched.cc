// WANTED: this is no function of WEFT_RPC_BATCHED

#include "weft/rpc/batch.h"

namespace {

double Half(double x) { return x / 2; }
WEFT_RPC(Half);

}  // namespace

bool Halves(const weft::rpc::Target& target) {
  weft::Future<double> half = weft::rpc::CallOneAsync(target, Half, 1.0);
  return half.IsReady();
}
