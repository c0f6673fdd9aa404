// Bytes: an immutable, reference-counted run of bytes; a slice of one shares
// it.
//
// What travels is a list of them (Slices), so that a header and the frozen
// storage of a tensor go out together without a copy.
//
// Thread-safety: as for an int; the bytes themselves never change.

#ifndef WEFT_BASE_BYTES_H_
#define WEFT_BASE_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft {

class Bytes {
 public:
  Bytes() = default;

  static Bytes Copy(absl::string_view bytes);
  static Bytes Copy(absl::Span<const uint8_t> bytes);

  // Takes the memory over; no copy.
  static Bytes Own(std::string bytes);
  template <typename T>
  static Bytes Own(std::vector<T> elements) {
    static_assert(std::is_trivially_copyable_v<T>);
    auto owner = std::make_shared<const std::vector<T>>(std::move(elements));
    const void* begin = owner->data();
    const size_t size = owner->size() * sizeof(T);
    return Wrap(begin, size, std::move(owner));
  }

  // `owner` keeps [begin, begin + size) alive and unchanged.
  static Bytes Wrap(const void* begin, size_t size,
                    std::shared_ptr<const void> owner) {
    return Bytes(static_cast<const uint8_t*>(begin), size, std::move(owner));
  }

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const uint8_t* begin() const { return data_; }
  const uint8_t* end() const { return data_ + size_; }
  uint8_t operator[](size_t i) const { return data_[i]; }
  absl::string_view view() const {
    return {reinterpret_cast<const char*>(data_), size_};
  }
  absl::Span<const uint8_t> span() const { return {data_, size_}; }
  const std::shared_ptr<const void>& owner() const { return owner_; }

  // The part from `offset`, of `size` bytes or what there is; no copy.
  // REQUIRES: offset <= size().
  Bytes subspan(size_t offset, size_t size = SIZE_MAX) const;

  friend bool operator==(const Bytes& a, const Bytes& b) {
    return a.view() == b.view();
  }
  friend bool operator!=(const Bytes& a, const Bytes& b) { return !(a == b); }

 private:
  Bytes(const uint8_t* data, size_t size, std::shared_ptr<const void> owner)
      : data_(data), size_(size), owner_(std::move(owner)) {}

  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  std::shared_ptr<const void> owner_;
};

// Some Bytes, in order. Most are of one slice, which needs no memory beside: a
// move or the end of such a list costs a few instructions.
//
// Thread-safety: as for std::vector.
class Slices {
 public:
  using value_type = Bytes;
  using iterator = Bytes*;
  using const_iterator = const Bytes*;

  Slices() = default;
  Slices(std::initializer_list<Bytes> slices) {
    for (const Bytes& slice : slices) push_back(slice);
  }
  Slices(const Slices&) = default;
  Slices& operator=(const Slices&) = default;
  // What was moved from is empty.
  Slices(Slices&& other) noexcept
      : only_(std::move(other.only_)),
        several_(std::move(other.several_)),
        size_(std::exchange(other.size_, 0)) {}
  Slices& operator=(Slices&& other) noexcept {
    only_ = std::move(other.only_);
    several_ = std::move(other.several_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Bytes* begin() { return size_ > 1 ? several_.data() : &only_; }
  Bytes* end() { return begin() + size_; }
  const Bytes* begin() const { return size_ > 1 ? several_.data() : &only_; }
  const Bytes* end() const { return begin() + size_; }
  // REQUIRES: i < size().
  Bytes& operator[](size_t i) { return begin()[i]; }
  const Bytes& operator[](size_t i) const { return begin()[i]; }
  Bytes& front() { return *begin(); }
  const Bytes& front() const { return *begin(); }

  void push_back(Bytes slice) {
    if (size_ == 0) {
      only_ = std::move(slice);
    } else {
      if (size_ == 1) several_.push_back(std::move(only_));
      several_.push_back(std::move(slice));
    }
    ++size_;
  }
  void clear() { *this = Slices(); }

 private:
  Bytes only_;                  // if size_ is 1
  std::vector<Bytes> several_;  // if it is more
  size_t size_ = 0;
};

inline size_t TotalSize(const Slices& slices) {
  size_t total = 0;
  for (const Bytes& slice : slices) total += slice.size();
  return total;
}

// All in one; copies unless there is one slice or none.
Bytes Flatten(const Slices& slices);

}  // namespace weft

#endif  // WEFT_BASE_BYTES_H_
