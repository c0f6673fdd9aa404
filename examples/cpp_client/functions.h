// What the worker of this example can be asked for.

#ifndef WEFT_EXAMPLES_CPP_CLIENT_FUNCTIONS_H_
#define WEFT_EXAMPLES_CPP_CLIENT_FUNCTIONS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "weft/weft.h"

namespace example {

// x * k.
weft::Tensor Scale(const weft::Tensor& x, double k);

// How often each word comes.
std::map<std::string, int64_t> CountWords(
    const std::vector<std::string>& words);

// kInvalidArgument for a negative `x`.
absl::StatusOr<double> SquareRoot(double x);

}  // namespace example

#endif  // WEFT_EXAMPLES_CPP_CLIENT_FUNCTIONS_H_
