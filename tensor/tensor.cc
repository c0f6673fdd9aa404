#include "weft/tensor/tensor.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"
#include "weft/base/error.h"
#include "weft/tensor/cast.h"
#include "weft/tensor/on_device.h"
#include "weft/tensor/overlap.h"
#include "weft/tensor/strided_loop.h"
#include "weft/tensor/vectorize.h"

namespace weft {
namespace {

using ::weft::internal::CastElement;
using ::weft::internal::CheckedElement;
using ::weft::internal::LayoutOf;
using ::weft::internal::OnDevice;
using ::weft::internal::StridedLoop;

template <typename To, typename From>
WEFT_VECTORIZE void CastRun(const From* in, int64_t in_stride, To* out,
                            int64_t out_stride, int64_t n) {
  if (in_stride == 1 && out_stride == 1) {
    for (int64_t i = 0; i < n; ++i) out[i] = CastElement<To>(in[i]);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    out[i * out_stride] = CastElement<To>(in[i * in_stride]);
  }
}

template <typename T>
void FillRun(T value, T* out, int64_t stride, int64_t n) {
  if (stride == 1) {
    std::fill_n(out, n, value);
    return;
  }
  for (int64_t i = 0; i < n; ++i) out[i * stride] = value;
}

// REQUIRES: src broadcasts to dst's shape; they do not overlap, and are on the
// CPU.
void CopyOnHost(const Tensor& src, const Tensor& dst) {
  if (src.dtype() == dst.dtype() && src.is_contiguous() &&
      dst.is_contiguous() && src.numel() == dst.numel()) {
    if (dst.numel() > 0 && dst.raw() != src.raw())
      std::memcpy(dst.raw(), src.raw(), dst.bytes());
    return;
  }
  const StridedLoop<2> loop(dst.shape(), {LayoutOf(src), LayoutOf(dst)});
  VisitDType(src.dtype(), [&](auto from) {
    VisitDType(dst.dtype(), [&](auto to) {
      const auto* in = src.data<typename decltype(from)::Type>();
      auto* out = dst.data<typename decltype(to)::Type>();
      loop.ForEachRun([&](const auto& offsets, const auto& strides, int64_t n) {
        CastRun(in + offsets[0], strides[0], out + offsets[1], strides[1], n);
      });
    });
  });
}

// As CopyOnHost, on any devices.
void CopyElements(const Tensor& dst, const Tensor& src) {
  const bool is_on_host = dst.device().is_cpu() && src.device().is_cpu();
  if (is_on_host) return CopyOnHost(src, dst);
  if (src.dtype() == dst.dtype() && src.is_contiguous() &&
      dst.is_contiguous() && src.numel() == dst.numel()) {
    internal::CopyBytes(*dst.storage(), dst.address(), *src.storage(),
                        src.address(), dst.bytes());
    return;
  }
  if (dst.device() == src.device()) {
    OnDevice("Copy", CopyOnHost, src, dst);
    return;
  }
  // What is left of it, the strides, the dtype and the sizes, there.
  if (!dst.device().is_cpu()) return CopyElements(dst, src.To(dst.device()));
  CopyOnHost(src.To(Device::Cpu()), dst);
}

void CheckBroadcastsTo(const Tensor& src, const Shape& shape,
                       absl::string_view where) {
  const Shape& from = src.shape();
  bool fits = from.size() <= shape.size();
  for (size_t i = 1; fits && i <= from.size(); ++i) {
    const int64_t size = from[from.size() - i];
    fits = size == 1 || size == shape[shape.size() - i];
  }
  if (!fits) {
    ThrowInvalidArgument(where, ": ", ShapeText(from), " does not expand to ",
                         ShapeText(shape));
  }
}

// Replaces a -1 by what remains of `numel`; checks that the product fits.
Shape CompleteShape(const Shape& shape, int64_t numel, const char* where) {
  Shape result = shape;
  const auto free_size = std::find(result.begin(), result.end(), -1);
  if (free_size != result.end()) {
    *free_size = 1;
    if (std::find(free_size + 1, result.end(), -1) != result.end()) {
      ThrowInvalidArgument(where, ": shape ", ShapeText(shape),
                           " has more than one -1");
    }
    const int64_t others = NumElements(result, where);
    if (others == 0) {
      ThrowInvalidArgument(where, ": -1 in shape ", ShapeText(shape),
                           " could be any size");
    }
    *free_size = numel / others;
  }
  if (NumElements(result, where) != numel) {
    ThrowInvalidArgument(where, ": ", numel, " elements do not fill shape ",
                         ShapeText(shape));
  }
  return result;
}

// The strides that give `shape` on the elements of `tensor`, in its order.
// False if there are none. A new dimension must lie within a run of old ones
// that go on from each other.
bool ViewStrides(const Tensor& tensor, const Shape& shape, Shape* strides) {
  *strides = ContiguousStrides(shape);
  if (tensor.is_contiguous()) return true;
  const Shape& old_shape = tensor.shape();
  const Shape& old_strides = tensor.strides();
  int64_t next = static_cast<int64_t>(shape.size()) - 1;
  int64_t old_elements = 1;  // In the current run of old dimensions.
  int64_t new_elements = 1;  // How many of them new dimensions cover.
  int64_t run_stride = old_strides.empty() ? 1 : old_strides.back();
  for (int64_t d = static_cast<int64_t>(old_shape.size()) - 1; d >= 0; --d) {
    old_elements *= old_shape[d];
    const bool ends_run =
        d == 0 || (old_shape[d - 1] != 1 &&
                   old_strides[d - 1] != old_elements * run_stride);
    if (!ends_run) continue;
    while (next >= 0 && (new_elements < old_elements || shape[next] == 1)) {
      (*strides)[next] = new_elements * run_stride;
      new_elements *= shape[next];
      --next;
    }
    if (new_elements != old_elements) return false;
    if (d > 0) {
      run_stride = old_strides[d - 1];
      old_elements = 1;
      new_elements = 1;
    }
  }
  return next == -1;
}

}  // namespace

Tensor Tensor::Empty(const Shape& shape, DType dtype, Device device) {
  const int64_t numel = NumElements(shape, "Tensor");
  if (numel > kMaxTensorBytes / ItemSize(dtype)) {
    ThrowInvalidArgument("Tensor: ", Name(dtype), ShapeText(shape),
                         " has more than ", kMaxTensorBytes, " bytes");
  }
  return First(Storage::Allocate(numel * ItemSize(dtype), device), shape, numel,
               dtype);
}

Tensor Tensor::First(IntrusivePtr<Storage> storage, const Shape& shape,
                     int64_t numel, DType dtype) {
  static_assert(sizeof(Body) <= Storage::kHandleBytes);
  void* const memory = storage->memory();
  void* const room = storage->handle_room();
  return Tensor(IntrusivePtr<Body>(
      new (room) Body(std::move(storage), memory, shape,
                      ContiguousStrides(shape), numel, dtype, true)));
}

Tensor Tensor::Zeros(const Shape& shape, DType dtype, Device device) {
  Tensor result = Empty(shape, dtype, device);
  if (device.is_cpu()) {
    std::memset(result.raw(), 0, result.bytes());
  } else {
    result.Fill(0);
  }
  return result;
}

Tensor Tensor::Ones(const Shape& shape, DType dtype, Device device) {
  return Full(shape, 1, dtype, device);
}

Tensor Tensor::Full(const Shape& shape, double value, DType dtype,
                    Device device) {
  Tensor result = Empty(shape, dtype, device);
  result.Fill(value);
  return result;
}

Tensor Tensor::Arange(int64_t n, DType dtype) {
  const Tensor result = Empty({n}, dtype);
  VisitNumber(dtype, "Tensor::Arange", [&](auto type) {
    using T = typename decltype(type)::Type;
    if (n > 0) CheckedElement<T>(static_cast<double>(n - 1), "Tensor::Arange");
    T* const out = result.data<T>();
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(i);
  });
  return result;
}

Tensor Tensor::FromBlob(void* memory, const Shape& shape, DType dtype,
                        std::shared_ptr<const void> owner, Device device) {
  const int64_t numel = NumElements(shape, "Tensor::FromBlob");
  return First(
      Storage::Wrap(memory, numel * ItemSize(dtype), std::move(owner), device),
      shape, numel, dtype);
}

Tensor Tensor::FromStorage(IntrusivePtr<Storage> storage, int64_t offset,
                           const Shape& shape, const Shape& strides,
                           DType dtype) {
  const int64_t numel = NumElements(shape, "Tensor::FromStorage");
  if (shape.size() != strides.size() || offset < 0) {
    ThrowInvalidArgument("Tensor::FromStorage: shape ", ShapeText(shape),
                         ", strides ", ShapeText(strides), " and offset ",
                         offset, " do not fit together");
  }
  // The first and last elements; in 128 bits, since strides are anyone's.
  __int128 low = offset;
  __int128 high = offset;
  for (size_t i = 0; i < shape.size(); ++i) {
    const __int128 reach = static_cast<__int128>(shape[i] - 1) * strides[i];
    (reach < 0 ? low : high) += reach;
  }
  const int64_t item = ItemSize(dtype);
  if (numel > 0 && (low < 0 || high >= storage->bytes() / item)) {
    ThrowInvalidArgument("Tensor::FromStorage: shape ", ShapeText(shape),
                         " with strides ", ShapeText(strides), " at ", offset,
                         " lies outside of the storage's ", storage->bytes(),
                         " bytes");
  }
  void* const memory = storage->memory() + (numel > 0 ? offset * item : 0);
  return Tensor(MakeIntrusive<Body>(std::move(storage), memory, shape, strides,
                                    numel, dtype,
                                    IsContiguous(shape, strides)));
}

Tensor Tensor::EmptyForValues(const Shape& shape, DType dtype, size_t values) {
  const int64_t numel = NumElements(shape, "Tensor::FromVector");
  if (numel != static_cast<int64_t>(values)) {
    ThrowInvalidArgument("Tensor::FromVector: shape ", ShapeText(shape),
                         " has ", numel, " elements, the vector ", values);
  }
  return Empty(shape, dtype);
}

int64_t Tensor::size(int64_t dim) const {
  return shape()[WrapDim(dim, this->dim(), "Tensor::size")];
}

int64_t Tensor::storage_offset() const {
  return (static_cast<const char*>(address()) - storage()->memory()) /
         ItemSize(dtype());
}

Tensor Tensor::Alias(void* memory, const Shape& shape,
                     const Shape& strides) const {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  return Tensor(MakeIntrusive<Body>(storage(), memory, shape, strides, numel,
                                    dtype(), IsContiguous(shape, strides)));
}

void* Tensor::At(int64_t offset) const {
  if (numel() == 0) return address();
  return static_cast<char*>(address()) + offset * ItemSize(dtype());
}

Tensor Tensor::View(const Shape& shape) const {
  const Shape wanted = CompleteShape(shape, numel(), "Tensor::View");
  Shape strides;
  if (!ViewStrides(*this, wanted, &strides)) {
    ThrowInvalidArgument("Tensor::View: ", ShapeText(this->shape()),
                         " with strides ", ShapeText(this->strides()),
                         " cannot be seen as ", ShapeText(wanted),
                         "; use Reshape, which copies");
  }
  return Alias(address(), wanted, strides);
}

Tensor Tensor::Reshape(const Shape& shape) const {
  const Shape wanted = CompleteShape(shape, numel(), "Tensor::Reshape");
  Shape strides;
  if (ViewStrides(*this, wanted, &strides)) {
    return Alias(address(), wanted, strides);
  }
  const Tensor copy = Clone();
  return copy.Alias(copy.address(), wanted, ContiguousStrides(wanted));
}

Tensor Tensor::Transpose(int64_t a, int64_t b) const {
  const int first = WrapDim(a, dim(), "Tensor::Transpose");
  const int second = WrapDim(b, dim(), "Tensor::Transpose");
  Shape shape = this->shape();
  Shape strides = this->strides();
  std::swap(shape[first], shape[second]);
  std::swap(strides[first], strides[second]);
  return Alias(address(), shape, strides);
}

Tensor Tensor::Permute(absl::Span<const int64_t> dims) const {
  bool is_permutation = dims.size() == shape().size();
  Shape shape;
  Shape strides;
  uint64_t seen = 0;
  for (size_t i = 0; is_permutation && i < dims.size(); ++i) {
    const int d = WrapDim(dims[i], dim(), "Tensor::Permute");
    is_permutation = (seen >> d & 1) == 0;
    seen |= uint64_t{1} << d;
    shape.push_back(this->shape()[d]);
    strides.push_back(this->strides()[d]);
  }
  if (!is_permutation) {
    ThrowInvalidArgument("Tensor::Permute: ", ShapeText(dims),
                         " does not name each dimension of ",
                         ShapeText(this->shape()), " once");
  }
  return Alias(address(), shape, strides);
}

Tensor Tensor::Slice(int64_t dim, int64_t begin, int64_t end) const {
  const int d = WrapDim(dim, this->dim(), "Tensor::Slice");
  Shape shape = this->shape();
  if (begin < 0 || begin > end || end > shape[d]) {
    ThrowInvalidArgument("Tensor::Slice: [", begin, ", ", end,
                         ") is not a part of dimension ", d, " of ",
                         ShapeText(shape));
  }
  shape[d] = end - begin;
  return Alias(At(begin == end ? 0 : begin * strides()[d]), shape, strides());
}

Tensor Tensor::Select(int64_t dim, int64_t index) const {
  const int d = WrapDim(dim, this->dim(), "Tensor::Select");
  Shape shape = this->shape();
  Shape strides = this->strides();
  if (index < 0 || index >= shape[d]) {
    ThrowInvalidArgument("Tensor::Select: index ", index,
                         " is outside of dimension ", d, " of ",
                         ShapeText(shape));
  }
  void* const first = At(index * strides[d]);
  shape.erase(shape.begin() + d);
  strides.erase(strides.begin() + d);
  return Alias(first, shape, strides);
}

Tensor Tensor::Index(absl::Span<const TensorIndex> parts) const {
  if (static_cast<int64_t>(parts.size()) > dim()) {
    ThrowInvalidArgument("Tensor::Index: ", parts.size(), " indices for ",
                         Describe());
  }
  Tensor view = *this;
  int64_t d = 0;
  for (const TensorIndex& part : parts) {
    const int64_t size = view.shape()[d];
    const auto wrapped = [size](int64_t i) { return i < 0 ? i + size : i; };
    if (!part.is_range()) {
      view = view.Select(d, wrapped(part.number()));
      continue;
    }
    const IndexRange& range = part.range();
    const int64_t end = range.end == IndexRange::kToTheEnd ? size : range.end;
    view = view.Slice(d, wrapped(range.begin), wrapped(end));
    ++d;
  }
  return view;
}

Tensor Tensor::Expand(const Shape& shape) const {
  NumElements(shape, "Tensor::Expand");
  CheckBroadcastsTo(*this, shape, "Tensor::Expand");
  Shape strides(shape.size(), 0);
  const size_t lead = shape.size() - this->shape().size();
  for (size_t i = lead; i < shape.size(); ++i) {
    const bool is_stretched = this->shape()[i - lead] != shape[i];
    strides[i] = is_stretched ? 0 : this->strides()[i - lead];
  }
  return Alias(address(), shape, strides);
}

Tensor Tensor::Squeeze(int64_t dim) const {
  const int d = WrapDim(dim, this->dim(), "Tensor::Squeeze");
  Shape shape = this->shape();
  Shape strides = this->strides();
  if (shape[d] != 1) {
    ThrowInvalidArgument("Tensor::Squeeze: dimension ", d, " of ",
                         ShapeText(shape), " is not 1");
  }
  shape.erase(shape.begin() + d);
  strides.erase(strides.begin() + d);
  return Alias(address(), shape, strides);
}

Tensor Tensor::Unsqueeze(int64_t dim) const {
  const int d = WrapDim(dim, this->dim() + 1, "Tensor::Unsqueeze");
  Shape shape = this->shape();
  Shape strides = this->strides();
  shape.insert(shape.begin() + d, 1);
  strides.insert(strides.begin() + d, 1);
  NumElements(shape, "Tensor::Unsqueeze");
  return Alias(address(), shape, strides);
}

Tensor Tensor::FlattenFrom(int64_t begin) const {
  const int d = WrapDim(begin, dim(), "Tensor::FlattenFrom");
  Shape joined(shape().begin(), shape().begin() + d);
  int64_t size = 1;
  for (size_t i = d; i < shape().size(); ++i) size *= shape()[i];
  joined.push_back(size);
  return Reshape(joined);
}

Tensor Tensor::Contiguous() const { return is_contiguous() ? *this : Clone(); }

Tensor Tensor::Clone() const {
  Tensor result = Empty(shape(), dtype(), device());
  CopyElements(result, *this);
  return result;
}

Tensor Tensor::To(DType dtype) const {
  if (dtype == this->dtype()) return *this;
  Tensor result = Empty(shape(), dtype, device());
  CopyElements(result, *this);
  return result;
}

Tensor Tensor::To(Device device) const {
  if (device == this->device()) return *this;
  const Tensor result = Empty(shape(), dtype(), device);
  CopyElements(result, Contiguous());
  return result;
}

void Tensor::CopyFrom(const Tensor& src) const {
  CheckBroadcastsTo(src, shape(), "Tensor::CopyFrom");
  internal::CheckWritable(*this, "Tensor::CopyFrom");
  CopyElements(*this, internal::Unaliased(src, *this));
  BumpVersion();
}

void Tensor::Fill(double value) const {
  internal::CheckWritable(*this, "Tensor::Fill");
  VisitDType(dtype(), [&](auto type) {
    using T = typename decltype(type)::Type;
    const T element = CheckedElement<T>(value, "Tensor::Fill");
    OnDevice(
        {"Fill", {value}},
        [element](const Tensor& x) {
          T* const out = x.data<T>();
          const StridedLoop<1> loop(x.shape(), {LayoutOf(x)});
          loop.ForEachRun(
              [&](const auto& offsets, const auto& strides, int64_t n) {
                FillRun(element, out + offsets[0], strides[0], n);
              });
        },
        *this);
  });
  BumpVersion();
}

std::string Tensor::Describe() const {
  if (!defined()) return "undefined";
  return absl::StrCat(Name(dtype()), ShapeText(shape()),
                      device().is_cpu() ? "" : " on ",
                      device().is_cpu() ? "" : Name(device()));
}

void Tensor::ThrowUndefined() {
  ThrowFailedPrecondition("Tensor: used before a value was assigned to it");
}

void Tensor::ThrowDType(DType wanted) const {
  if (dtype() == wanted) {
    ThrowInvalidArgument("Tensor: elements wanted on the CPU, the tensor is ",
                         Describe(), "; take To(Device::Cpu())");
  }
  ThrowInvalidArgument("Tensor: elements wanted as ", Name(wanted),
                       ", the tensor is ", Describe());
}

void Tensor::CheckContiguous() const {
  if (!is_contiguous()) {
    ThrowInvalidArgument("Tensor::span: ", Describe(), " with strides ",
                         ShapeText(strides()),
                         " is not contiguous; take Contiguous()");
  }
}

void Tensor::CheckOneElement() const {
  if (numel() != 1) {
    ThrowInvalidArgument("Tensor::item: ", Describe(), " has ", numel(),
                         " elements; wanted 1");
  }
}

}  // namespace weft
