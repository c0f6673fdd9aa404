// IDX: the array format of MNIST and its kin.
//
// Two zero bytes, the element type, the number of dimensions, each dimension as
// a big-endian 32-bit word, then the elements, big-endian, row-major.

#ifndef WEFT_INPUT_IDX_H_
#define WEFT_INPUT_IDX_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/input/dataset.h"
#include "weft/tensor/tensor.h"

namespace weft::input {

// u8 as u8; i8, i16, i32 as i64; f32 as f32; f64 as f64. Nothing is allocated
// before the header fits the number of bytes. kInvalidArgument says what was
// wanted, what was found, and `where`.
absl::StatusOr<Tensor> ParseIdx(absl::string_view bytes,
                                absl::string_view where);

// The content of a gzipped IDX file. Its header is unpacked first: content that
// is longer than the header says is refused once one byte too many is unpacked
// (kInvalidArgument), and a header that says more than `max_bytes` before its
// elements are (kResourceExhausted).
absl::StatusOr<std::string> GunzipIdx(absl::string_view packed,
                                      int64_t max_bytes,
                                      absl::string_view where);

// Reads `path`, gzipped or not, of at most ReadFileOptions::max_bytes. Errors
// as of ReadFile, GunzipIdx and ParseIdx.
absl::StatusOr<Tensor> ReadIdx(const std::string& path);

// Images [n, height, width] and their labels [n], both u8, as a Dataset. An
// example is {image f32 [1, height, width] = (pixel / 255 - mean) / deviation,
// label i64 []}.
class IdxDataset final : public Dataset {
 public:
  struct Options {
    std::string images;  // paths
    std::string labels;
    int64_t classes = 10;  // a label must be below
    float mean = 0.0f;
    float deviation = 1.0f;  // > 0
    int64_t limit = 0;       // use only the first; 0: all
  };

  // kNotFound, kInvalidArgument: as ReadIdx, and if images and labels do not
  // fit each other.
  static absl::StatusOr<IdxDataset> Open(const Options& options);

  int64_t size() const override { return labels_.numel(); }
  int64_t height() const { return images_.size(1); }
  int64_t width() const { return images_.size(2); }
  // XXH3 of 64 bits of the labels, seeded by that of the images.
  uint64_t Checksum() const;

  absl::StatusOr<Example> Get(int64_t index) const override;
  absl::StatusOr<Example> GetBatch(
      absl::Span<const int64_t> indices) const override;

 private:
  IdxDataset(Tensor images, Tensor labels, const Options& options);

  Tensor images_;  // u8 [n, height, width]
  Tensor labels_;  // u8 [n]
  float of_pixel_[256];
};

}  // namespace weft::input

#endif  // WEFT_INPUT_IDX_H_
