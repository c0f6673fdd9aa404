// StateParts: the tensors of a training, cut into parts that are sent, hashed
// and asked for one by one (core/state_handover.h).
//
// A large tensor is several parts, and small ones are packed into one. Ranks
// that have tensors of the same shapes and dtypes in the same order have the
// same parts. Hashes are those of pieces, the slices of tensors of which a part
// consists, so that a tensor can be named; XXH3 of 64 bits.
//
// Thread-safety: one thread at a time; the constant functions, several.

#ifndef WEFT_TRAIN_STATE_PARTS_H_
#define WEFT_TRAIN_STATE_PARTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::train {

class StateParts {
 public:
  struct NamedTensor {
    std::string name;
    Tensor tensor;  // whose elements are the state
  };

  // Tensors of a device are copied to the host, and back by WriteBack.
  explicit StateParts(std::vector<NamedTensor> tensors);

  int size() const { return static_cast<int>(parts_.size()); }
  size_t pieces() const { return pieces_.size(); }
  // Of parts [begin, end).
  size_t pieces_of(int begin, int end) const;
  // Whether some elements belong to two tensors.
  bool share_memory() const;
  // The size of each part.
  std::vector<int64_t> bytes() const;

  // The tensor to send for a part: the elements themselves, or a copy of small
  // ones.
  Tensor Outgoing(int part) const;
  // The tensor into which a part is received; Place puts it where it belongs.
  Tensor Incoming(int part) const;
  void Place(int part, const Tensor& incoming) const;

  // The hash of each piece, in the order of the parts.
  std::vector<uint64_t> Hashes() const { return HashesOf(0, size()); }
  // Of those of parts [begin, end).
  std::vector<uint64_t> HashesOf(int begin, int end) const;
  // Those of `parts` with a piece that has another hash, in the same order.
  // REQUIRES: `hashes` has those of all pieces of them; here and below the
  // first is that of the first piece of part 0.
  std::vector<int> Differing(const std::vector<int>& parts,
                             const std::vector<uint64_t>& hashes) const;
  // The same of parts [begin, end) that have the hashes `own`.
  std::vector<int> DifferingOf(int begin, int end,
                               const std::vector<uint64_t>& own,
                               const std::vector<uint64_t>& hashes) const;
  // "parameter hidden.weight with bits of hash ..., found ...": the first
  // tensor of `part` that has another hash.
  std::string Difference(int part, const std::vector<uint64_t>& wanted) const;
  // All parts.
  std::vector<int> All() const;

  // Writes the state back to the tensors that are on a device. Throws as
  // Tensor::CopyFrom.
  void WriteBack() const;

 private:
  struct Piece {
    size_t tensor = 0;
    int64_t begin = 0, end = 0;  // elements
  };
  struct Part {
    size_t first = 0, last = 0;  // pieces [first, last)
    int64_t bytes = 0;
  };

  void Cut();
  void AddPart(int64_t bytes);
  Tensor Of(const Piece& piece) const;
  uint64_t HashOf(const Piece& piece) const;

  std::vector<NamedTensor> tensors_;
  std::vector<Tensor> flat_;  // of each, on the host
  std::vector<Piece> pieces_;
  std::vector<Part> parts_;
};

}  // namespace weft::train

#endif  // WEFT_TRAIN_STATE_PARTS_H_
