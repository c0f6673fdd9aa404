#include "examples/cpp_client/functions.h"

#include <cmath>

namespace example {

weft::Tensor Scale(const weft::Tensor& x, double k) { return weft::Mul(x, k); }
WEFT_RPC(Scale);
WEFT_RPC_ROLES(Scale, "client", "trainer", "admin");

std::map<std::string, int64_t> CountWords(
    const std::vector<std::string>& words) {
  std::map<std::string, int64_t> counts;
  for (const std::string& word : words) ++counts[word];
  return counts;
}
WEFT_RPC(CountWords);
WEFT_RPC_ROLES(CountWords, "client", "trainer", "admin");

absl::StatusOr<double> SquareRoot(double x) {
  if (x < 0) {
    return absl::InvalidArgumentError(absl::StrCat("wanted x >= 0, found ", x));
  }
  return std::sqrt(x);
}
WEFT_RPC(SquareRoot);
WEFT_RPC_ROLES(SquareRoot, "client", "trainer", "admin");

}  // namespace example
