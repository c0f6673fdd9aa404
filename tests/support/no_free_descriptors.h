// Takes all descriptors of this process that are free, until it ends.

#ifndef WEFT_TESTS_SUPPORT_NO_FREE_DESCRIPTORS_H_
#define WEFT_TESTS_SUPPORT_NO_FREE_DESCRIPTORS_H_

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace weft::testing {

class NoFreeDescriptors {
 public:
  NoFreeDescriptors() {
    getrlimit(RLIMIT_NOFILE, &former_);
    rlimit limit = former_;
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_cur, 1024);
    setrlimit(RLIMIT_NOFILE, &limit);
    for (int fd; (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) {
      taken_.push_back(fd);
    }
  }
  ~NoFreeDescriptors() {
    for (const int fd : taken_) close(fd);
    setrlimit(RLIMIT_NOFILE, &former_);
  }
  NoFreeDescriptors(const NoFreeDescriptors&) = delete;
  NoFreeDescriptors& operator=(const NoFreeDescriptors&) = delete;

 private:
  rlimit former_ = {};
  std::vector<int> taken_;
};

}  // namespace weft::testing

#endif  // WEFT_TESTS_SUPPORT_NO_FREE_DESCRIPTORS_H_
