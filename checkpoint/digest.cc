#include "weft/checkpoint/digest.h"

#include <openssl/evp.h>
#include <xxhash.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"

namespace weft::checkpoint {

struct Digester::Hashes {
  Hashes() : sha(EVP_MD_CTX_new()), xxh(XXH3_createState()) {
    WEFT_CHECK(sha != nullptr && xxh != nullptr);
    WEFT_CHECK_EQ(EVP_DigestInit_ex(sha, EVP_sha256(), nullptr), 1);
    WEFT_CHECK_EQ(XXH3_64bits_reset(xxh), XXH_OK);
  }
  ~Hashes() {
    EVP_MD_CTX_free(sha);
    XXH3_freeState(xxh);
  }

  EVP_MD_CTX* const sha;
  XXH3_state_t* const xxh;
};

Digester::Digester() : hashes_(std::make_unique<Hashes>()) {}
Digester::~Digester() = default;

void Digester::Add(absl::string_view part) {
  bytes_ += static_cast<int64_t>(part.size());
  WEFT_CHECK_EQ(EVP_DigestUpdate(hashes_->sha, part.data(), part.size()), 1);
  WEFT_CHECK_EQ(XXH3_64bits_update(hashes_->xxh, part.data(), part.size()),
                XXH_OK);
}

Digest Digester::Finish() {
  std::string raw(32, '\0');
  auto* const out = reinterpret_cast<uint8_t*>(raw.data());
  WEFT_CHECK_EQ(EVP_DigestFinal_ex(hashes_->sha, out, nullptr), 1);
  return {bytes_, absl::BytesToHexString(raw),
          absl::StrFormat("%016x", XXH3_64bits_digest(hashes_->xxh))};
}

DigestingFile::DigestingFile(std::unique_ptr<WritableFile> file)
    : file_(std::move(file)) {}

absl::Status DigestingFile::Append(absl::string_view bytes) {
  WEFT_RETURN_IF_ERROR(file_->Append(bytes));
  digester_.Add(bytes);
  return absl::OkStatus();
}

Digest DigestOf(absl::string_view bytes) {
  Digester digester;
  digester.Add(bytes);
  return digester.Finish();
}

}  // namespace weft::checkpoint
