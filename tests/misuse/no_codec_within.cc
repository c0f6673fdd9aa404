// WANTED: T cannot travel

#include "weft/rpc/function.h"

namespace {

double Norm(const std::vector<int*>&) { return 0; }
WEFT_RPC(Norm);

}  // namespace
