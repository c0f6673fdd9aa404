// Digest: what a checkpoint knows of each of its files.

#ifndef WEFT_CHECKPOINT_DIGEST_H_
#define WEFT_CHECKPOINT_DIGEST_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "weft/checkpoint/file_system.h"

namespace weft::checkpoint {

struct Digest {
  int64_t bytes = 0;
  std::string sha256;  // 64 hexadecimal digits
  std::string xxh3;    // 16: XXH3 of 64 bits, for readers that want no crypto

  friend bool operator==(const Digest& a, const Digest& b) {
    return a.bytes == b.bytes && a.sha256 == b.sha256 && a.xxh3 == b.xxh3;
  }
  friend bool operator!=(const Digest& a, const Digest& b) { return !(a == b); }
};

Digest DigestOf(absl::string_view bytes);

// Digests bytes that come in parts. Thread-safety: one thread at a time.
class Digester {
 public:
  Digester();
  ~Digester();
  Digester(const Digester&) = delete;
  Digester& operator=(const Digester&) = delete;

  void Add(absl::string_view part);
  // Of all parts so far.
  int64_t bytes() const { return bytes_; }
  // REQUIRES: called once, last.
  Digest Finish();

 private:
  struct Hashes;

  const std::unique_ptr<Hashes> hashes_;
  int64_t bytes_ = 0;
};

// Passes all on to `file` and digests it. Thread-safety: one thread at a time.
class DigestingFile final : public WritableFile {
 public:
  explicit DigestingFile(std::unique_ptr<WritableFile> file);

  absl::Status Append(absl::string_view bytes) override;
  absl::Status Sync() override { return file_->Sync(); }

  // Returns the digest of all that was appended. REQUIRES: called once, last.
  Digest Finish() { return digester_.Finish(); }

 private:
  const std::unique_ptr<WritableFile> file_;
  Digester digester_;
};

}  // namespace weft::checkpoint

#endif  // WEFT_CHECKPOINT_DIGEST_H_
