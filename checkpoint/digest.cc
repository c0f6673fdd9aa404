#include "weft/checkpoint/digest.h"

#include <openssl/evp.h>
#include <xxhash.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"

namespace weft::checkpoint {

struct DigestingFile::Hashes {
  Hashes() : sha(EVP_MD_CTX_new()), xxh(XXH3_createState()) {
    WEFT_CHECK(sha != nullptr && xxh != nullptr);
    WEFT_CHECK_EQ(EVP_DigestInit_ex(sha, EVP_sha256(), nullptr), 1);
    WEFT_CHECK_EQ(XXH3_64bits_reset(xxh), XXH_OK);
  }
  ~Hashes() {
    EVP_MD_CTX_free(sha);
    XXH3_freeState(xxh);
  }

  void Add(absl::string_view part) {
    bytes += static_cast<int64_t>(part.size());
    WEFT_CHECK_EQ(EVP_DigestUpdate(sha, part.data(), part.size()), 1);
    WEFT_CHECK_EQ(XXH3_64bits_update(xxh, part.data(), part.size()), XXH_OK);
  }

  Digest Finish() {
    std::string raw(32, '\0');
    auto* const out = reinterpret_cast<uint8_t*>(raw.data());
    WEFT_CHECK_EQ(EVP_DigestFinal_ex(sha, out, nullptr), 1);
    return {bytes, absl::BytesToHexString(raw),
            absl::StrFormat("%016x", XXH3_64bits_digest(xxh))};
  }

  EVP_MD_CTX* const sha;
  XXH3_state_t* const xxh;
  int64_t bytes = 0;
};

DigestingFile::DigestingFile(std::unique_ptr<WritableFile> file)
    : file_(std::move(file)), hashes_(std::make_unique<Hashes>()) {}

DigestingFile::~DigestingFile() = default;

absl::Status DigestingFile::Append(absl::string_view bytes) {
  WEFT_RETURN_IF_ERROR(file_->Append(bytes));
  hashes_->Add(bytes);
  return absl::OkStatus();
}

Digest DigestingFile::Finish() { return hashes_->Finish(); }

Digest DigestOf(absl::string_view bytes) {
  // A file that goes nowhere, so that there is one way to digest.
  class Nowhere final : public WritableFile {
    absl::Status Append(absl::string_view) override { return absl::OkStatus(); }
    absl::Status Sync() override { return absl::OkStatus(); }
  };
  DigestingFile file(std::make_unique<Nowhere>());
  WEFT_CHECK(file.Append(bytes).ok());
  return file.Finish();
}

}  // namespace weft::checkpoint
