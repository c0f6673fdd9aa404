// WANTED: T cannot travel

#include "weft/rpc/function.h"

namespace {

struct Point {};
double Norm(const Point&) { return 0; }
WEFT_RPC(Norm);

}  // namespace
