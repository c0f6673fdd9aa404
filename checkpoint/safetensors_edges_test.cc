// What the format leaves at its edges: layout, odd tensors, other writers'
// names.

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/little_endian.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Keeps what is appended; fails from the append numbered `fails_at` on.
class Memory final : public WritableFile {
 public:
  explicit Memory(int fails_at = std::numeric_limits<int>::max())
      : fails_at_(fails_at) {}
  absl::Status Append(absl::string_view bytes) override {
    if (appends_++ >= fails_at_) return absl::DataLossError("broken");
    absl::StrAppend(&bytes_, bytes);
    return absl::OkStatus();
  }
  absl::Status Sync() override { return absl::OkStatus(); }
  const std::string& bytes() const { return bytes_; }

 private:
  const int fails_at_;
  int appends_ = 0;
  std::string bytes_;
};

// `content` as it comes back.
absl::StatusOr<Safetensors> Again(const Safetensors& content) {
  Memory file;
  const absl::Status status = WriteSafetensors(content, file);
  if (!status.ok()) return status;
  return ParseSafetensors(file.bytes(), "f");
}

std::string File(const std::string& json, const std::string& elements) {
  return LittleEndian64(json.size()) + json + elements;
}

TEST(WriteSafetensors, ElementsOfEachTensorAreAligned) {
  Safetensors content;
  content.tensors["a.bool"] = Tensor::FromVector<bool>({true, false, true});
  content.tensors["b.f64"] = Tensor::FromVector<double>({1, 2, 3});
  content.tensors["c.f16"] = Tensor::Ones({5}, DType::kF16);
  content.tensors["d.f32"] = Tensor::FromVector<float>({1});
  content.tensors["e.none"] = Tensor::Zeros({0}, DType::kI64);
  content.tensors["f.u8"] = Tensor::FromVector<uint8_t>({7});
  for (const char* name : {"", "x", "xy", "xyz", "xyzw"}) {
    content.metadata["pads"] = name;
    Memory file;
    ASSERT_THAT(WriteSafetensors(content, file), IsOk());
    const auto header = ParseSafetensorsHeader(file.bytes(), "f");
    ASSERT_THAT(header, IsOk());
    EXPECT_EQ(header->bytes % 8, 0);
    int64_t end = 0;
    for (const TensorEntry& entry : header->entries) {
      EXPECT_EQ(entry.begin % ItemSize(entry.dtype), 0) << entry.name;
      EXPECT_EQ(entry.begin, end) << entry.name;
      end = entry.end;
    }
    EXPECT_EQ(header->bytes + end, static_cast<int64_t>(file.bytes().size()));
  }
}

TEST(WriteSafetensors, PartsOfOtherTensorsAreWrittenRowByRow) {
  const Tensor whole = Tensor::Arange(24).View({2, 3, 4});
  Safetensors content;
  content.tensors["middle"] = whole.Slice(1, 1, 2);
  content.tensors["column"] = whole.Select(2, 3);
  content.tensors["turned"] = whole.Permute({2, 0, 1});
  content.tensors["wide"] = whole.Select(0, 0).Select(0, 0).Expand({2, 4});
  content.tensors["nothing"] = whole.Slice(0, 1, 1);
  const auto found = Again(content);
  ASSERT_THAT(found, IsOk());
  for (const auto& [name, tensor] : content.tensors) {
    const Tensor& read = found->tensors.at(name);
    EXPECT_EQ(read.shape(), tensor.shape()) << name;
    EXPECT_EQ(read.ToVector<int64_t>(), tensor.ToVector<int64_t>()) << name;
  }
}

TEST(WriteSafetensors, LongestNamesAndMostDimensionsComeBack) {
  Safetensors content;
  content.tensors[std::string(kMaxNameBytes, 'n')] = Tensor::Scalar<float>(1);
  content.tensors["quote \" slash \\ line \n tab \t"] = Tensor::Ones({1});
  content.tensors["\xc3\xa9"] = Tensor::Ones({1});
  content.tensors["dims"] = Tensor::Ones(Shape(kMaxDims, 1));
  content.metadata = {{"", ""}, {"k\n", std::string("a\0b", 3)}};
  const auto found = Again(content);
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->metadata, content.metadata);
  ASSERT_EQ(found->tensors.size(), content.tensors.size());
  for (const auto& [name, tensor] : content.tensors) {
    EXPECT_EQ(found->tensors.at(name).shape(), tensor.shape()) << name;
  }
}

TEST(WriteSafetensors, FileWithoutTensorsIsOne) {
  const auto found = Again({});
  ASSERT_THAT(found, IsOk());
  EXPECT_THAT(found->tensors, IsEmpty());
  EXPECT_THAT(found->metadata, IsEmpty());
}

TEST(WriteSafetensors, ErrorOfTheFileIsThatOfTheWriterWhereverItIs) {
  Safetensors content;
  content.tensors["a"] = Tensor::Ones({2});
  content.tensors["b"] = Tensor::Ones({2});
  for (int fails_at : {0, 1, 2}) {
    Memory file(fails_at);
    EXPECT_THAT(WriteSafetensors(content, file),
                StatusIs(absl::StatusCode::kDataLoss, "broken"))
        << fails_at;
  }
  Memory file(3);
  EXPECT_THAT(WriteSafetensors(content, file), IsOk());
}

TEST(WriteSafetensors, NamesAndMetadataOfNoReaderAreRefused) {
  for (const std::string& name :
       {std::string(), std::string(kMaxNameBytes + 1, 'n'),
        std::string("__metadata__")}) {
    EXPECT_THAT(Again({{{name, Tensor::Ones({1})}}, {}}),
                StatusIs(kInvalid, "1 to 256 bytes"))
        << name;
  }
  EXPECT_THAT(Again({{}, {{"k", "\xff"}}}), StatusIs(kInvalid, "not UTF-8"));
  EXPECT_THAT(Again({{}, {{"\xc3", "v"}}}), StatusIs(kInvalid, "not UTF-8"));
  EXPECT_THAT(Again({{}, {{"k", std::string(kMaxHeaderBytes, 'x')}}}),
              StatusIs(kInvalid, "16 MiB"));
}

TEST(SafetensorsFront, GivesThePlacesInTheOrderOfTheFile) {
  std::vector<TensorEntry> entries = {{"u8", DType::kU8, {3}},
                                      {"f32", DType::kF32, {2, 2}},
                                      {"none", DType::kF32, {0, 7}},
                                      {"i64", DType::kI64, {}}};
  const auto front = SafetensorsFront(entries, {{"k", "v"}});
  ASSERT_THAT(front, IsOk());
  std::vector<std::string> places;
  for (const TensorEntry& entry : entries) {
    places.push_back(
        absl::StrCat(entry.name, " ", entry.begin, "-", entry.end));
  }
  EXPECT_THAT(places,
              ElementsAre("i64 0-8", "f32 8-24", "none 24-24", "u8 24-27"));
  const auto header =
      ParseSafetensorsHeader(*front + std::string(27, '\0'), "f");
  ASSERT_THAT(header, IsOk());
  EXPECT_EQ(header->bytes, static_cast<int64_t>(front->size()));
  EXPECT_EQ(header->entries.size(), entries.size());
}

TEST(SafetensorsFront, RefusesWhatAReaderWould) {
  const auto front = [](std::vector<TensorEntry> entries) {
    return SafetensorsFront(entries, {});
  };
  EXPECT_THAT(front({{"a", DType::kF32, {1}}, {"a", DType::kF32, {1}}}),
              StatusIs(kInvalid, "two tensors are called \"a\""));
  EXPECT_THAT(front({{"a", DType::kF32, Shape(kMaxDims + 1, 1)}}),
              StatusIs(kInvalid, "dimensions"));
  EXPECT_THAT(front({{"a", DType::kF32, {2, -1}}}),
              StatusIs(kInvalid, "negative"));
  EXPECT_THAT(front({{"a", DType::kF32, {int64_t{1} << 62, 4}}}),
              StatusIs(kInvalid));
  // So many elements may be, but not so many bytes.
  EXPECT_THAT(front({{"a", DType::kF64, {int64_t{1} << 45}}}),
              StatusIs(kInvalid, "bytes"));
  EXPECT_THAT(front({{"a", DType::kU8, {int64_t{1} << 45}}}), IsOk());
}

TEST(Safetensors, WhatFollowsTheHeadersObjectIsRefused) {
  for (const char* json : {"{}{}", "{} x", "{},", "{}\n[1]", "{}}"}) {
    EXPECT_THAT(ParseSafetensors(File(json, ""), "f"), StatusIs(kInvalid))
        << json;
  }
  EXPECT_THAT(ParseSafetensors(File("{}  \n\t ", ""), "f"), IsOk());
}

TEST(Safetensors, FieldsThatAreTwiceUnknownOrOfAnotherTypeAreRefused) {
  const std::string dtype = "\"dtype\":\"U8\"", shape = "\"shape\":[1]",
                    offsets = "\"data_offsets\":[0,1]";
  const auto parse = [](const std::vector<std::string>& fields) {
    return ParseSafetensors(
        File(absl::StrCat("{\"a\":{", absl::StrJoin(fields, ","), "}}"), "x"),
        "f");
  };
  ASSERT_THAT(parse({dtype, shape, offsets}), IsOk());
  EXPECT_THAT(parse({offsets, shape, dtype}), IsOk());
  const std::vector<std::vector<std::string>> wrong = {
      {dtype, shape},
      {dtype, offsets},
      {shape, offsets},
      {dtype, dtype, shape, offsets},
      {dtype, shape, shape, offsets},
      {dtype, shape, offsets, offsets},
      {dtype, shape, offsets, "\"strides\":[1]"},
      {"\"dtype\":null", shape, offsets},
      {"\"dtype\":1", shape, offsets},
      {"\"dtype\":[\"U8\"]", shape, offsets},
      {dtype, "\"shape\":1", offsets},
      {dtype, "\"shape\":[true]", offsets},
      {dtype, "\"shape\":[1.0]", offsets},
      {dtype, "\"shape\":{}", offsets},
      {dtype, shape, "\"data_offsets\":[]"},
      {dtype, shape, "\"data_offsets\":[1,0]"},
      {dtype, shape, "\"data_offsets\":[0,18446744073709551616]"},
  };
  for (const auto& fields : wrong) {
    EXPECT_THAT(parse(fields), StatusIs(kInvalid))
        << absl::StrJoin(fields, ",");
  }
}

// A flip may leave another file that can be read, but none that is not whole.
TEST(Safetensors, EveryByteOfTheHeaderMayBeAnythingElse) {
  Safetensors content;
  content.tensors["weight"] = Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2});
  content.tensors["mask"] = Tensor::FromVector<bool>({true, false});
  content.metadata["step"] = "7";
  Memory file;
  ASSERT_THAT(WriteSafetensors(content, file), IsOk());
  std::string bytes = file.bytes();
  const auto header = ParseSafetensorsHeader(bytes, "f");
  ASSERT_THAT(header, IsOk());
  int refused = 0;
  for (int64_t i = 0; i < header->bytes; ++i) {
    const char kept = bytes[i];
    for (int value = 0; value < 256; ++value) {
      bytes[i] = static_cast<char>(value);
      const auto found = ParseSafetensors(bytes, "f");
      if (!found.ok()) {
        EXPECT_EQ(found.status().code(), kInvalid);
        ++refused;
        continue;
      }
      int64_t elements = 0;
      for (const auto& [name, tensor] : found->tensors) {
        elements += tensor.bytes();
      }
      EXPECT_EQ(elements, 18) << "byte " << i << " is " << value;
    }
    bytes[i] = kept;
  }
  EXPECT_GT(refused, 128 * header->bytes);
}

TEST(Safetensors, NamesOfOthersAreNotEchoedAsRawBytes) {
  const std::string entry =
      R"({"\u001b[2J":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}})";
  const absl::Status refused =
      ParseSafetensors(File(entry, "\x02"), "f").status();
  EXPECT_THAT(refused, StatusIs(kInvalid, "BOOL"));
  EXPECT_EQ(refused.message().find('\x1b'), absl::string_view::npos);
  const absl::Status unwritten = Again({{{"\x1b[2J", Tensor()}}, {}}).status();
  EXPECT_THAT(unwritten, StatusIs(kInvalid, "undefined"));
  EXPECT_EQ(unwritten.message().find('\x1b'), absl::string_view::npos);
}

}  // namespace
}  // namespace weft::checkpoint
