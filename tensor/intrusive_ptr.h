// IntrusivePtr: a shared pointer whose count lies in the object.
//
// Half the size and half the allocations of std::shared_ptr, which count where
// an operation on one element is to cost some hundred nanoseconds.

#ifndef WEFT_TENSOR_INTRUSIVE_PTR_H_
#define WEFT_TENSOR_INTRUSIVE_PTR_H_

#include <atomic>
#include <cstdint>
#include <utility>

namespace weft {

// The count. T derives from RefCounted<T> and need not be polymorphic. One that
// was not made by new says how it ends, by a Free of its own.
// Thread-safety: the count is thread-safe.
template <typename T>
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;

  void AddRef() const { refs_.fetch_add(1, std::memory_order_relaxed); }

  void Release() const {
    // One owner needs no locked decrement: nobody else can add to the count.
    if (refs_.load(std::memory_order_acquire) == 1 ||
        refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      T::Free(const_cast<T*>(static_cast<const T*>(this)));
    }
  }

  static void Free(T* object) { delete object; }

  bool is_unique() const { return refs_.load(std::memory_order_acquire) == 1; }

 protected:
  ~RefCounted() = default;

 private:
  mutable std::atomic<int32_t> refs_{0};
};

// Thread-safety: as for a raw pointer; distinct pointers to one object may be
// copied and destroyed by different threads.
template <typename T>
class IntrusivePtr {
 public:
  IntrusivePtr() = default;
  explicit IntrusivePtr(T* object) : object_(object) {
    if (object_ != nullptr) object_->AddRef();
  }
  IntrusivePtr(const IntrusivePtr& other) : IntrusivePtr(other.object_) {}
  IntrusivePtr(IntrusivePtr&& other) noexcept
      : object_(std::exchange(other.object_, nullptr)) {}
  IntrusivePtr& operator=(IntrusivePtr other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~IntrusivePtr() {
    if (object_ != nullptr) object_->Release();
  }

  T* get() const { return object_; }
  T& operator*() const { return *object_; }
  T* operator->() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }
  friend bool operator==(const IntrusivePtr& a, const IntrusivePtr& b) {
    return a.object_ == b.object_;
  }
  friend bool operator!=(const IntrusivePtr& a, const IntrusivePtr& b) {
    return a.object_ != b.object_;
  }

 private:
  T* object_ = nullptr;
};

template <typename T, typename... Args>
IntrusivePtr<T> MakeIntrusive(Args&&... args) {
  return IntrusivePtr<T>(new T(std::forward<Args>(args)...));
}

}  // namespace weft

#endif  // WEFT_TENSOR_INTRUSIVE_PTR_H_
