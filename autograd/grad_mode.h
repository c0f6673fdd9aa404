// NoGradScope: for its lifetime, operations on this thread record nothing.

#ifndef WEFT_AUTOGRAD_GRAD_MODE_H_
#define WEFT_AUTOGRAD_GRAD_MODE_H_

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
  static inline thread_local int depth_ = 0;
};

}  // namespace weft

#endif  // WEFT_AUTOGRAD_GRAD_MODE_H_
