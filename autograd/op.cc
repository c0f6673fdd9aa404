#include "weft/autograd/op.h"

#include <utility>

namespace weft {
namespace {

// Never destroyed: operations may be used until the process ends.
std::vector<const Op*>& Registry() {
  static auto* registry = new std::vector<const Op*>;
  return *registry;
}

}  // namespace

Op::Op(const char* name, std::vector<OpCase> cases)
    : name_(name), cases_(std::move(cases)) {
  Registry().push_back(this);
}

absl::Span<const Op* const> Op::Registered() { return Registry(); }

}  // namespace weft
