#include "weft/checkpoint/safetensors.h"

#include <cstdio>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "weft/checkpoint/fake_file_system.h"
#include "weft/checkpoint/little_endian.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::checkpoint {
namespace {

using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Safetensors EveryDType() {
  Safetensors content;
  const Tensor matrix =
      Tensor::FromVector<float>({1.5f, -2, 3, 4, 5, 6}, {2, 3});
  content.tensors["f32"] = matrix;
  content.tensors["f32.transposed"] = matrix.Transpose(0, 1);
  content.tensors["f64"] = Tensor::FromVector<double>({0.1, 1e300});
  content.tensors["i64"] = Tensor::FromVector<int64_t>({-1, 1LL << 40}, {2, 1});
  content.tensors["u8"] = Tensor::FromVector<uint8_t>({0, 255, 7});
  content.tensors["bool"] = Tensor::FromVector<bool>({true, false});
  content.tensors["i32"] = Tensor::FromVector<int32_t>({-7, 1 << 30});
  content.tensors["i8"] = Tensor::FromVector<int8_t>({-128, 127, 3});
  content.tensors["f16"] = matrix.To(DType::kF16);
  content.tensors["bf16"] = matrix.To(DType::kBF16);
  content.tensors["scalar"] = Tensor::Scalar<float>(2.5f);
  content.tensors["empty"] = Tensor::Zeros({0, 3});
  content.metadata = {{"made_by", "a \"test\""}, {"step", "7"}};
  return content;
}

// The bytes of the file.
absl::StatusOr<std::string> Written(const Safetensors& content) {
  FakeFileSystem files;
  WEFT_EXPECT_OK(files.MakeDirectories("/d"));
  const auto file = files.Create("/d/f");
  if (!file.ok()) return file.status();
  const absl::Status status = WriteSafetensors(content, **file);
  if (!status.ok()) return status;
  return files.Content("/d/f");
}

// A file with this JSON header and so many bytes of elements.
std::string File(const std::string& json, size_t elements = 0) {
  return LittleEndian64(json.size()) + json + std::string(elements, '\0');
}

std::string Entry(const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

TEST(Safetensors, RestoresEveryDTypeAndShape) {
  const Safetensors content = EveryDType();
  const auto bytes = Written(content);
  WEFT_ASSERT_OK(bytes);
  const auto found = ParseSafetensors(*bytes, "f");
  WEFT_ASSERT_OK(found);
  EXPECT_EQ(found->metadata, content.metadata);
  ASSERT_EQ(found->tensors.size(), content.tensors.size());
  for (const auto& [name, tensor] : content.tensors) {
    const Tensor& read = found->tensors.at(name);
    EXPECT_EQ(read.Describe(), tensor.Describe()) << name;
    EXPECT_EQ(read.To(DType::kF64).ToVector<double>(),
              tensor.To(DType::kF64).ToVector<double>())
        << name;
  }
}

TEST(Safetensors, NumpyReadsTheSame) {
  const TempDir dir;
  {
    const auto file = LocalFiles().Create(dir.Path("f.safetensors"));
    WEFT_ASSERT_OK(file);
    WEFT_ASSERT_OK(WriteSafetensors(EveryDType(), **file));
  }
  const std::string command =
      "/usr/bin/python3 checkpoint/read_safetensors.py " +
      dir.Path("f.safetensors") + " 2>&1";
  std::string output;
  FILE* const pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  char part[256];
  while (fgets(part, sizeof(part), pipe) != nullptr) output += part;
  EXPECT_EQ(pclose(pipe), 0);
  EXPECT_EQ(output,
            "# made_by=a \"test\"\n"
            "# step=7\n"
            "bf16 float32 [2, 3] [1.5, -2.0, 3.0, 4.0, 5.0, 6.0]\n"
            "bool bool [2] [True, False]\n"
            "empty float32 [0, 3] []\n"
            "f16 float16 [2, 3] [1.5, -2.0, 3.0, 4.0, 5.0, 6.0]\n"
            "f32 float32 [2, 3] [1.5, -2.0, 3.0, 4.0, 5.0, 6.0]\n"
            "f32.transposed float32 [3, 2] [1.5, 4.0, -2.0, 5.0, 3.0, 6.0]\n"
            "f64 float64 [2] [0.1, 1e+300]\n"
            "i32 int32 [2] [-7, 1073741824]\n"
            "i64 int64 [2, 1] [-1, 1099511627776]\n"
            "i8 int8 [3] [-128, 127, 3]\n"
            "scalar float32 [] [2.5]\n"
            "u8 uint8 [3] [0, 255, 7]\n");
}

TEST(Safetensors, RefusesEveryCut) {
  const auto bytes = Written(EveryDType());
  WEFT_ASSERT_OK(bytes);
  for (size_t size = 0; size < bytes->size(); ++size) {
    EXPECT_THAT(ParseSafetensors(bytes->substr(0, size), "f"),
                StatusIs(kInvalid, "f is no safetensors file"))
        << size;
  }
  EXPECT_THAT(ParseSafetensors(*bytes + "x", "f"), StatusIs(kInvalid, "found"));
}

TEST(Safetensors, RefusesLengthsThatAreNotThere) {
  EXPECT_THAT(ParseSafetensors(LittleEndian64(~0ull) + "{}", "f"),
              StatusIs(kInvalid, "header length"));
  EXPECT_THAT(ParseSafetensors(LittleEndian64((16 << 20) + 1) +
                                   std::string((16 << 20) + 1, ' '),
                               "f"),
              StatusIs(kInvalid, "16 MiB"));
  EXPECT_THAT(ParseSafetensors(
                  File("{\"a\":" + Entry("F32", "[2]", "[0,8]") + "}", 4), "f"),
              StatusIs(kInvalid, "wanted 8 bytes of elements, found 4"));
}

TEST(Safetensors, RefusesShapesWithOverflowingSize) {
  for (const char* shape :
       {"[4294967296,4294967296]", "[9223372036854775807,4]",
        "[0,9223372036854775807,9223372036854775807]", "[4611686018427387904]",
        "[18446744073709551615]"}) {
    EXPECT_THAT(ParseSafetensors(File(std::string("{\"a\":") +
                                      Entry("F32", shape, "[0,0]") + "}"),
                                 "f"),
                StatusIs(kInvalid))
        << shape;
  }
}

TEST(Safetensors, RefusesOverlapsHolesAndDuplicates) {
  const std::string a = "\"a\":" + Entry("U8", "[4]", "[0,4]");
  EXPECT_THAT(
      ParseSafetensors(
          File("{" + a + ",\"b\":" + Entry("U8", "[4]", "[2,6]") + "}", 6),
          "f"),
      StatusIs(kInvalid, "\"b\" begins at byte 2, wanted 4"));
  EXPECT_THAT(
      ParseSafetensors(
          File("{" + a + ",\"b\":" + Entry("U8", "[4]", "[6,10]") + "}", 10),
          "f"),
      StatusIs(kInvalid, "\"b\" begins at byte 6, wanted 4"));
  EXPECT_THAT(ParseSafetensors(File("{" + a + "," + a + "}", 4), "f"),
              StatusIs(kInvalid, "\"a\" twice"));
  EXPECT_THAT(ParseSafetensors(
                  File("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}"), "f"),
              StatusIs(kInvalid, "\"k\" twice"));
  EXPECT_THAT(ParseSafetensors(
                  File("{\"a\":" + Entry("U8", "[4]", "[0,5]") + "}", 5), "f"),
              StatusIs(kInvalid, "has the bytes [0, 5)"));
}

TEST(Safetensors, RefusesEverythingElseThatIsNotTheFormat) {
  const std::string deep(1 << 16, '[');
  for (const std::string& header :
       {std::string(), std::string("[]"), std::string("{"),
        std::string("{\"a\":1}"), std::string("{\"a\":[]}"),
        std::string("{\"a\":{}}"), std::string("{}}"),
        std::string("{\"__metadata__\":{\"k\":1}}"), "{\"a\":" + deep,
        "{\"a\":{\"shape\":" + deep,
        "{\"a\":" + Entry("F8_E4M3", "[0]", "[0,0]") + "}",
        "{\"a\":" + Entry("F32", "[-1]", "[0,0]") + "}",
        "{\"a\":" + Entry("F32", "[0.5]", "[0,0]") + "}",
        "{\"a\":" + Entry("F32", "[0]", "[0]") + "}",
        "{\"a\":" + Entry("F32", "[0]", "[0,0,0]") + "}",
        "{\"a\":" + Entry("F32", "[[0]]", "[0,0]") + "}",
        "{\"\":" + Entry("F32", "[0]", "[0,0]") + "}",
        "{\"" + std::string(257, 'n') + "\":" + Entry("F32", "[0]", "[0,0]") +
            "}"}) {
    EXPECT_THAT(ParseSafetensors(File(header), "f"), StatusIs(kInvalid))
        << header.substr(0, 60);
  }
  EXPECT_THAT(
      ParseSafetensors(
          File("{\"a\":" + Entry("BOOL", "[1]", "[0,1]") + "}") + "\x02", "f"),
      StatusIs(kInvalid, "BOOL"));
  WEFT_EXPECT_OK(ParseSafetensors(File("{}"), "f"));
}

TEST(WriteSafetensors, RefusesUnreadableFiles) {
  Safetensors content;
  content.tensors["a"] = Tensor();
  EXPECT_THAT(Written(content), StatusIs(kInvalid, "\"a\" is undefined"));
  content.tensors = {{std::string(257, 'n'), Tensor::Zeros({1})}};
  EXPECT_THAT(Written(content), StatusIs(kInvalid, "1 to 256 bytes"));
  content.tensors = {{"\xff", Tensor::Zeros({1})}};
  EXPECT_THAT(Written(content), StatusIs(kInvalid, "not UTF-8"));
}

}  // namespace
}  // namespace weft::checkpoint
