#include "weft/checkpoint/manifest.h"

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::checkpoint {
namespace {

using ::testing::Not;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

Manifest Example() {
  return {1200,
          {{"epoch", "3"}, {"note", "a \"quote\",\n a line and \xc3\xa9"}},
          {{ShardName(0), "ps0", DigestOf("first")},
           {ShardName(7), "", DigestOf("")}}};
}

// A manifest with this text after its checksum, which is right.
std::string Sealed(const std::string& body) {
  return absl::StrCat("{\"checksum\":\"", DigestOf(body).sha256, "\",\n", body);
}

std::string BodyOf(const std::string& manifest) {
  return manifest.substr(manifest.find(",\n") + 2);
}

// That of Example() with `from`, which is there once, replaced.
std::string Changed(const std::string& from, const std::string& to) {
  std::string body = BodyOf(*FormatManifest(Example()));
  EXPECT_EQ(absl::StrReplaceAll({{from, to}}, &body), 1) << from;
  return Sealed(body);
}

TEST(Manifest, IsReadAsItWasWritten) {
  const Manifest manifest = Example();
  const auto text = FormatManifest(manifest);
  ASSERT_THAT(text, IsOk());
  const auto found = ParseManifest(*text, "m");
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->step, manifest.step);
  EXPECT_EQ(found->metadata, manifest.metadata);
  ASSERT_EQ(found->files.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(found->files[i].name, manifest.files[i].name);
    EXPECT_EQ(found->files[i].writer, manifest.files[i].writer);
    EXPECT_EQ(found->files[i].digest, manifest.files[i].digest);
  }
  EXPECT_EQ(*FormatManifest(*found), *text);
}

TEST(Manifest, EmptyOneAndTheLargestNumbersAreRead) {
  Manifest manifest;
  manifest.step = std::numeric_limits<int64_t>::max();
  auto found = ParseManifest(*FormatManifest(manifest), "m");
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->step, manifest.step);
  EXPECT_TRUE(found->files.empty());
  EXPECT_TRUE(found->metadata.empty());

  manifest.files = {{ShardName(99999), "ps0", DigestOf("")}};
  manifest.files[0].digest.bytes = std::numeric_limits<int64_t>::max();
  found = ParseManifest(*FormatManifest(manifest), "m");
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->files[0].digest, manifest.files[0].digest);
}

TEST(Manifest, EveryCutAndWhatFollowsItAreFound) {
  const std::string text = *FormatManifest(Example());
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_THAT(ParseManifest(text.substr(0, size), "the/path"),
                StatusIs(kDataLoss, "the/path is no manifest"))
        << size;
  }
  for (const char* more : {"\n", " ", "}", "{}"}) {
    EXPECT_THAT(ParseManifest(text + more, "m"), StatusIs(kDataLoss, "SHA-256"))
        << more;
  }
}

TEST(Manifest, EveryByteThatIsChangedIsFound) {
  std::string text = *FormatManifest(Example());
  for (size_t i = 0; i < text.size(); ++i) {
    for (const char flip : {'\x01', '\x20', '\x80'}) {
      text[i] = static_cast<char>(text[i] ^ flip);
      EXPECT_THAT(ParseManifest(text, "m"), StatusIs(kDataLoss)) << i;
      text[i] = static_cast<char>(text[i] ^ flip);
    }
  }
  EXPECT_THAT(ParseManifest(text, "m"), IsOk());
}

// From here on the checksum is right: another program wrote it.

TEST(Manifest, AnotherVersionIsToldFromAnotherFormat) {
  for (const char* version : {"0", "3", "18446744073709551615", "\"1\""}) {
    EXPECT_THAT(ParseManifest(Changed("\"version\":1",
                                      absl::StrCat("\"version\":", version)),
                              "m"),
                StatusIs(absl::StatusCode::kUnimplemented, version))
        << version;
  }
  EXPECT_THAT(
      ParseManifest(Changed("weft-checkpoint", "other-checkpoint"), "m"),
      StatusIs(kInvalid, "format"));
}

TEST(Manifest, MissingMembersAreRefused) {
  for (const char* member : {"files", "format", "metadata", "step", "version",
                             "sha256", "xxh3", "writer", "bytes"}) {
    std::string body = BodyOf(*FormatManifest(Example()));
    absl::StrReplaceAll({{absl::StrCat("\"", member, "\":"), "\"another\":"}},
                        &body);
    EXPECT_THAT(ParseManifest(Sealed(body), "m"), Not(IsOk())) << member;
  }
}

TEST(Manifest, MembersOfAnotherTypeAreRefused) {
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"\"epoch\":\"3\"", "\"epoch\":3"},
      {"\"epoch\":\"3\"", "\"epoch\":null"},
      {"\"writer\":\"ps0\"", "\"writer\":[]"},
      {"\"bytes\":5", "\"bytes\":-1"},
      {"\"bytes\":5", "\"bytes\":5.5"},
      {"\"bytes\":5", "\"bytes\":99999999999999999999"},
      {"shard-00000.safetensors", "../../x"},
      {"shard-00000.safetensors", "shard-00007.safetensors"},
      {"\"step\":1200", "\"step\":\"1200\""},
  };
  for (const auto& [from, to] : changes) {
    EXPECT_THAT(ParseManifest(Changed(from, to), "m"), StatusIs(kInvalid))
        << to;
  }
}

TEST(Manifest, TextThatIsNoJsonIsRefused) {
  const std::string deep(100000, '[');
  for (const std::string& body :
       {std::string(), std::string("}"), std::string("\n"), std::string("[]"),
        std::string("\"files\":"), std::string("\xff\xfe"),
        absl::StrCat("\"files\":", deep),
        absl::StrCat("\"step\":", std::string(100000, '9'), "}")}) {
    EXPECT_THAT(ParseManifest(Sealed(body), "m"), StatusIs(kInvalid))
        << body.substr(0, 20);
  }
}

TEST(Manifest, NamesOfOthersAreNotEchoedAsRawBytes) {
  const std::string body = BodyOf(*FormatManifest(Example()));
  const std::string file =
      absl::StrReplaceAll(body, {{"shard-00000.safetensors", "\\u001b[2J"}});
  const std::string writer = absl::StrReplaceAll(
      body, {{"shard-00000", "shard-x"}, {"\"ps0\"", "\"\\u001b[2J\""}});
  for (const std::string& changed : {file, writer}) {
    const absl::Status refused = ParseManifest(Sealed(changed), "m").status();
    EXPECT_THAT(refused, StatusIs(kInvalid, "\\x1b[2J"));
    EXPECT_EQ(refused.message().find('\x1b'), absl::string_view::npos)
        << refused.message();
  }
}

TEST(FormatManifest, RefusesWhatAReaderWould) {
  Manifest twice = Example();
  twice.files[1].name = twice.files[0].name;
  EXPECT_THAT(FormatManifest(twice), StatusIs(kInvalid, "each once"));

  Manifest negative = Example();
  negative.files[0].digest.bytes = -1;
  EXPECT_THAT(FormatManifest(negative), StatusIs(kInvalid, "shard-00000"));

  for (const std::string& digits :
       {std::string(), std::string(63, 'a'), std::string(65, 'a'),
        std::string(64, 'A'), std::string(64, 'g'), std::string(64, '\0')}) {
    Manifest manifest = Example();
    manifest.files[0].digest.sha256 = digits;
    EXPECT_THAT(FormatManifest(manifest), StatusIs(kInvalid, "sha256"));
  }
  Manifest short_hash = Example();
  short_hash.files[0].digest.xxh3.pop_back();
  EXPECT_THAT(FormatManifest(short_hash), StatusIs(kInvalid, "xxh3"));

  Manifest writer = Example();
  writer.files[0].writer = "\xff";
  EXPECT_THAT(FormatManifest(writer), StatusIs(kInvalid, "UTF-8"));
  Manifest metadata = Example();
  metadata.metadata["\xc3"] = "half of a letter";
  EXPECT_THAT(FormatManifest(metadata), StatusIs(kInvalid, "UTF-8"));
}

TEST(ShardName, HasFiveDigitsAndNothingElseIsOne) {
  EXPECT_EQ(ShardName(0), "shard-00000.safetensors");
  EXPECT_EQ(ShardName(99999), "shard-99999.safetensors");
  EXPECT_TRUE(IsShardName(ShardName(31)));
  for (const char* name :
       {"", "shard-0.safetensors", "shard-000000.safetensors",
        "shard-0000a.safetensors", "Shard-00000.safetensors",
        "shard-00000.safetensorsx", "./shard-00000.safetensors",
        "shard-00000/safetensors", "shard--0001.safetensors"}) {
    EXPECT_FALSE(IsShardName(name)) << name;
  }
}

// The numbers are those of sha256sum and of xxhsum -H3.
TEST(Digest, IsThatOfOtherPrograms) {
  const Digest empty = DigestOf("");
  EXPECT_EQ(empty.bytes, 0);
  EXPECT_EQ(empty.sha256,
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(empty.xxh3, "2d06800538d394c2");
  const Digest abc = DigestOf("abc");
  EXPECT_EQ(abc.bytes, 3);
  EXPECT_EQ(abc.sha256,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(abc.xxh3, "78af5f94892f3950");
  EXPECT_NE(abc, empty);
}

// Keeps what it is given, up to so many bytes.
class Bounded final : public WritableFile {
 public:
  Bounded(std::string* bytes, size_t max) : bytes_(bytes), max_(max) {}
  absl::Status Append(absl::string_view bytes) override {
    if (bytes_->size() + bytes.size() > max_) {
      return absl::ResourceExhaustedError("full");
    }
    absl::StrAppend(bytes_, bytes);
    return absl::OkStatus();
  }
  absl::Status Sync() override { return absl::UnavailableError("sync"); }

 private:
  std::string* const bytes_;
  const size_t max_;
};

TEST(DigestingFile, DigestsPartsAsTheWholeAndOnlyWhatWasWritten) {
  std::string whole;
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&whole, i, ",");
  std::string written;
  DigestingFile file(std::make_unique<Bounded>(&written, whole.size()));
  for (size_t at = 0, size = 0; at < whole.size(); at += size, ++size) {
    EXPECT_THAT(file.Append(whole.substr(at, size)), IsOk());
  }
  EXPECT_THAT(file.Append("more"),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(file.Sync(), StatusIs(absl::StatusCode::kUnavailable, "sync"));
  EXPECT_EQ(written, whole);
  EXPECT_EQ(file.Finish(), DigestOf(whole));
}

}  // namespace
}  // namespace weft::checkpoint
