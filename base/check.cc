#include "weft/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace weft::internal {

CheckFailure::CheckFailure(const char* file, int line,
                           const std::string& what) {
  stream_ << file << ":" << line << ": check failed: " << what << " ";
}

CheckFailure::~CheckFailure() {
  std::fprintf(stderr, "%s\n", stream_.str().c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace weft::internal
