// WANTED: too few arguments: a call gives all

#include "weft/rpc/stream.h"

namespace {

absl::Status Count(weft::rpc::Writer<int64_t> out, int64_t to = 10) {
  return out.Write(to);
}
WEFT_RPC_STREAM(Count);

}  // namespace

bool Counts(const weft::rpc::Target& target) {
  return weft::rpc::OpenStream(target, Count).Next().ok();
}
