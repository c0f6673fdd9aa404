// WANTED: too few arguments: a call gives all

#include "weft/rpc/call.h"
#include "weft/rpc/function.h"

namespace {

double Scale(double x, double k = 2) { return k * x; }
WEFT_RPC(Scale);

}  // namespace

bool Scales(const weft::rpc::Target& target) {
  return weft::rpc::Call(target, Scale, 1.0).ok();
}
