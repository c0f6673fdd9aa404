// NoGradScope: for its lifetime, operations on this thread record nothing.
// EnableGradScope: they record again, within such a scope too.

#ifndef WEFT_AUTOGRAD_GRAD_MODE_H_
#define WEFT_AUTOGRAD_GRAD_MODE_H_

#include <utility>

namespace weft {

// Thread-safety: lives on one thread; scopes nest.
class NoGradScope {
 public:
  NoGradScope() { ++depth_; }
  ~NoGradScope() { --depth_; }
  NoGradScope(const NoGradScope&) = delete;
  NoGradScope& operator=(const NoGradScope&) = delete;

  // Whether one is open on this thread.
  static bool IsOpen() { return depth_ > 0; }

 private:
  friend class EnableGradScope;
  static inline thread_local int depth_ = 0;
};

// Thread-safety: lives on one thread; scopes nest.
class EnableGradScope {
 public:
  EnableGradScope() : depth_(std::exchange(NoGradScope::depth_, 0)) {}
  ~EnableGradScope() { NoGradScope::depth_ = depth_; }
  EnableGradScope(const EnableGradScope&) = delete;
  EnableGradScope& operator=(const EnableGradScope&) = delete;

 private:
  const int depth_;
};

}  // namespace weft

#endif  // WEFT_AUTOGRAD_GRAD_MODE_H_
