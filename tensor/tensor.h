// Tensor: a handle on shared storage with shape, strides, dtype and device.
//
// Copying a Tensor copies no elements; so do the views (View, Transpose, Slice,
// ...), which share storage: a write through one is seen through all.
//
//   Tensor x = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {2, 3});
//   Tensor row = x.Select(0, 1);              // [3], shares x's elements
//   Tensor y = MatMul(x, x.Transpose(0, 1));  // weft/tensor/ops/matmul.h
//
// Elements lie on the CPU or on a device (weft/tensor/device.h). Operations run
// where their arguments lie: on a device later, on the current stream of the
// thread (weft/device/current.h). What needs the elements on the host (data,
// span) throws for a tensor of a device: take To(Device::Cpu()) first.
//
// A wrong shape, dtype or device throws weft::Error with INVALID_ARGUMENT; an
// operation that a device lacks UNIMPLEMENTED; a failed allocation
// RESOURCE_EXHAUSTED; a device that has failed with the errors of
// weft/device/runtime.h. Any use of an undefined Tensor but defined(),
// assignment and destruction throws FAILED_PRECONDITION.
//
// Thread-safety: as for std::shared_ptr; elements: many readers or one writer.
// On a device, work on one stream is in order; between two streams the caller
// orders it by events.

#ifndef WEFT_TENSOR_TENSOR_H_
#define WEFT_TENSOR_TENSOR_H_

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/tensor/device.h"
#include "weft/tensor/dtype.h"
#include "weft/tensor/intrusive_ptr.h"
#include "weft/tensor/shape.h"
#include "weft/tensor/storage.h"
#include "weft/tensor/tensor_index.h"

namespace weft {

class Tensor {
 public:
  Tensor() = default;  // Undefined.

  // Elements of Empty are not initialised.
  static Tensor Empty(const Shape& shape, DType dtype = DType::kF32,
                      Device device = Device::Cpu());
  static Tensor Zeros(const Shape& shape, DType dtype = DType::kF32,
                      Device device = Device::Cpu());
  static Tensor Ones(const Shape& shape, DType dtype = DType::kF32,
                     Device device = Device::Cpu());
  // `value` must be representable in `dtype`.
  static Tensor Full(const Shape& shape, double value,
                     DType dtype = DType::kF32, Device device = Device::Cpu());
  static Tensor EmptyLike(const Tensor& like) {
    return Empty(like.shape(), like.dtype(), like.device());
  }
  static Tensor ZerosLike(const Tensor& like) {
    return Zeros(like.shape(), like.dtype(), like.device());
  }

  // 0, 1, ..., n - 1.
  static Tensor Arange(int64_t n, DType dtype = DType::kI64);

  // Copies. values.size() must be the number of elements of `shape`.
  template <typename T>
  static Tensor FromVector(const std::vector<T>& values, const Shape& shape);
  template <typename T>
  static Tensor FromVector(const std::vector<T>& values) {
    return FromVector<T>(values, {static_cast<int64_t>(values.size())});
  }

  // Shape [].
  template <typename T>
  static Tensor Scalar(T value);

  // Row-major elements at `memory` of `device`, which `owner` keeps alive
  // (null: the caller does). No copy; in-place operations write there.
  static Tensor FromBlob(void* memory, const Shape& shape, DType dtype,
                         std::shared_ptr<const void> owner,
                         Device device = Device::Cpu());

  // The general view: element (i, j, ...) is at offset + i * strides[0] + ...
  // elements. Throws if one lies outside of `storage`.
  static Tensor FromStorage(IntrusivePtr<Storage> storage, int64_t offset,
                            const Shape& shape, const Shape& strides,
                            DType dtype);

  bool defined() const { return static_cast<bool>(body_); }
  DType dtype() const { return body().dtype; }
  Device device() const { return body().storage->device(); }
  const Shape& shape() const { return body().shape; }
  const Shape& strides() const { return body().strides; }  // In elements.
  int dim() const { return static_cast<int>(body().shape.size()); }
  int64_t size(int64_t dim) const;  // A negative `dim` counts from the end.
  int64_t numel() const { return body().numel; }
  int64_t bytes() const { return body().numel * ItemSize(body().dtype); }
  bool is_contiguous() const { return body().is_contiguous; }
  const IntrusivePtr<Storage>& storage() const { return body().storage; }
  int64_t storage_offset() const;  // In elements.
  // Whether no other Tensor and no other owner shares the elements: then no
  // code can change them once this handle is gone.
  bool is_sole_owner() const {
    return body_.get() != nullptr && body_->is_unique() &&
           body_->storage->is_unique() && !body_->storage->is_wrapped();
  }
  bool IsSameAs(const Tensor& other) const { return body_ == other.body_; }
  // Whether this handle is the only way to its elements: no copy of it, no
  // view, no memory of another owner. Then no other code sees writes to them.
  bool is_sole_handle() const {
    return body().is_unique() && body().storage->is_unique() &&
           body().storage->owns_memory();
  }

  // Element [0, 0, ...], on the CPU; the others lie where strides() say. T must
  // be that of dtype(). Call BumpVersion() after writing here into elements
  // that others may have seen.
  template <typename T>
  T* data() const {
    CheckOnHost(DTypeOf<T>);
    return static_cast<T*>(body_->memory);
  }
  void* raw() const {
    CheckOnHost(dtype());
    return body_->memory;
  }
  // As raw(), on any device: the host may not be able to touch the address.
  void* address() const { return body().memory; }

  // The elements, which must be contiguous and on the CPU.
  template <typename T>
  absl::Span<T> span() const {
    CheckContiguous();
    return absl::MakeSpan(data<T>(), numel());
  }

  // The only element, of any shape. From a device: waits for it, as To.
  template <typename T>
  T item() const {
    CheckOneElement();
    if (!device().is_cpu()) return To(Device::Cpu()).item<T>();
    return *data<T>();
  }

  // The elements in row-major order, copied. From a device: waits, as To.
  template <typename T>
  std::vector<T> ToVector() const;

  // --- Views: no copy. -----------------------------------------------------

  // One size may be -1: what remains. Throws if strides do not allow it.
  Tensor View(const Shape& shape) const;
  Tensor Transpose(int64_t a, int64_t b) const;
  Tensor Permute(absl::Span<const int64_t> dims) const;
  // Elements [begin, end) of `dim`; 0 <= begin <= end <= size(dim).
  Tensor Slice(int64_t dim, int64_t begin, int64_t end) const;
  Tensor Select(int64_t dim, int64_t index) const;  // Without `dim`.
  // Stretches sizes of 1 and adds leading dimensions, by strides of 0.
  Tensor Expand(const Shape& shape) const;
  Tensor Squeeze(int64_t dim) const;  // size(dim) must be 1.
  Tensor Unsqueeze(int64_t dim) const;
  // Joins dimensions [begin, dim()) into one; a copy if strides demand it.
  Tensor FlattenFrom(int64_t begin) const;

  // x(Slice(0, 2), 3): see weft/tensor/tensor_index.h.
  template <typename... Parts>
  Tensor operator()(const Parts&... parts) const {
    return Index({TensorIndex(parts)...});
  }
  // As many as dim(), or fewer: the rest is taken whole.
  Tensor Index(absl::Span<const TensorIndex> parts) const;

  // --- Copies (the first two only where needed). ----------------------------

  Tensor Contiguous() const;
  Tensor Reshape(const Shape& shape) const;  // View, of a copy if need be.
  Tensor Clone() const;                      // Always new, contiguous.
  // Itself if it is `dtype`. Float to integer truncates; to bool: is not 0.
  Tensor To(DType dtype) const;
  // Itself if it is on `device`; else a contiguous copy there, ordered as work
  // on the current streams of both devices. To the CPU: returns when the
  // elements are there, within the Runtime's `pageable_copy_timeout`.
  Tensor To(Device device) const;

  // --- Writes: each bumps the version. --------------------------------------

  // Throw for a tensor that has several elements in one place (an expanded
  // one). `src` is expanded to this shape, cast to this dtype and taken from
  // its device; it may overlap.
  void CopyFrom(const Tensor& src) const;
  void Fill(double value) const;  // Representable in dtype().

  uint64_t version() const { return body().storage->version(); }
  void BumpVersion() const { body().storage->BumpVersion(); }
  // In place of it, before a write that graphs which have saved the elements
  // are not to see: Storage::BeginUpdate.
  void BeginUpdate() const { body().storage->BeginUpdate(); }

  // "f32[2, 3]", or "f32[2, 3] on cuda:0", for messages.
  std::string Describe() const;

 private:
  struct Body : RefCounted<Body> {
    Body(IntrusivePtr<Storage> s, void* m, const Shape& sizes,
         const Shape& steps, int64_t elements, DType type, bool contiguous)
        : memory(m),
          numel(elements),
          dtype(type),
          is_on_host(s->device().is_cpu()),
          is_contiguous(contiguous),
          storage(std::move(s)),
          shape(sizes),
          strides(steps) {}

    // One that lies in its storage ends with it.
    static void Free(Body* body) {
      if (body->storage->handle_room() != body) return delete body;
      const IntrusivePtr<Storage> storage = std::move(body->storage);
      body->~Body();
    }

    void* const memory;
    const int64_t numel;
    const DType dtype;
    const bool is_on_host;
    const bool is_contiguous;
    IntrusivePtr<Storage> storage;  // constant
    const Shape shape;
    const Shape strides;
  };

  explicit Tensor(IntrusivePtr<Body> body) : body_(std::move(body)) {}
  // The first handle on `storage`, whose elements lie in row-major order.
  static Tensor First(IntrusivePtr<Storage> storage, const Shape& shape,
                      int64_t numel, DType dtype);
  // `memory` lies in the same storage as this tensor's.
  Tensor Alias(void* memory, const Shape& shape, const Shape& strides) const;
  void* At(int64_t offset) const;  // `offset` elements from the first.

  const Body& body() const {
    if (!body_) ThrowUndefined();
    return *body_;
  }
  [[noreturn]] static void ThrowUndefined();
  void CheckDType(DType wanted) const {
    if (body().dtype != wanted) ThrowDType(wanted);
  }
  void CheckOnHost(DType wanted) const {
    const Body& found = body();
    if (found.dtype != wanted || !found.is_on_host) ThrowDType(wanted);
  }
  [[noreturn]] void ThrowDType(DType wanted) const;
  void CheckContiguous() const;
  void CheckOneElement() const;
  static Tensor EmptyForValues(const Shape& shape, DType dtype, size_t values);

  IntrusivePtr<Body> body_;
};

template <typename T>
Tensor Tensor::FromVector(const std::vector<T>& values, const Shape& shape) {
  const Tensor result = EmptyForValues(shape, DTypeOf<T>, values.size());
  T* out = result.data<T>();
  for (const T value : values) *out++ = value;
  return result;
}

template <typename T>
Tensor Tensor::Scalar(T value) {
  const Tensor result = Empty({}, DTypeOf<T>);
  *result.data<T>() = value;
  return result;
}

template <typename T>
std::vector<T> Tensor::ToVector() const {
  CheckDType(DTypeOf<T>);
  const Tensor flat = To(Device::Cpu()).Contiguous();
  const T* begin = flat.data<T>();
  return std::vector<T>(begin, begin + flat.numel());
}

// "f32[2, 3]", then the elements in nested brackets, reals with six digits; of
// more than 1000 elements, the first and last three of each dimension.
std::string ToString(const Tensor& x);
std::ostream& operator<<(std::ostream& out, const Tensor& x);

}  // namespace weft

#endif  // WEFT_TENSOR_TENSOR_H_
