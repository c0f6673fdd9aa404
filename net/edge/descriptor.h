// Descriptor: an open file of this process, closed with its owner.

#ifndef WEFT_NET_EDGE_DESCRIPTOR_H_
#define WEFT_NET_EDGE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace weft::net {

// Thread-safety: one thread at a time.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }

  int get() const { return fd_; }
  // The caller closes it.
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

}  // namespace weft::net

#endif  // WEFT_NET_EDGE_DESCRIPTOR_H_
