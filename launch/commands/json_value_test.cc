// Tests of JSON that people type, and of what it becomes.

#include "weft/launch/commands/json_value.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/codec.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::launch {
namespace {

using testing::IsOk;
using testing::StatusIs;

TEST(JsonValue, OfTooManyLevelsIsNone) {
  EXPECT_FALSE(
      ParseJson(std::string(64, '[') + std::string(64, ']')).is_discarded());
  EXPECT_TRUE(
      ParseJson(std::string(65, '[') + std::string(65, ']')).is_discarded());
  // So many levels would be too deep for the stack.
  const size_t deep = 1 << 20;
  EXPECT_TRUE(ParseJson(std::string(deep, '[') + std::string(deep, ']'))
                  .is_discarded());
  EXPECT_TRUE(ParseJson("[1").is_discarded());
  EXPECT_EQ(ParseJson("[1]"), nlohmann::json::array({1}));
}

TEST(JsonValue, OfAnI64TensorIsExact) {
  const std::vector<int64_t> values = {std::numeric_limits<int64_t>::max(),
                                       std::numeric_limits<int64_t>::min(),
                                       (int64_t{1} << 53) + 1};
  rpc::v1::Value value;
  *value.mutable_tensor() = EncodeTensor(Tensor::FromVector<int64_t>(values));
  rpc::Type type;
  type.kind = rpc::Type::Kind::kTensor;
  EXPECT_EQ(JsonFromValue(value, type)["values"], nlohmann::json(values));
}

absl::StatusOr<rpc::v1::Value> TensorOf(const std::string& shape) {
  rpc::Type type;
  type.kind = rpc::Type::Kind::kTensor;
  return ValueFromJson(
      ParseJson(R"({"shape": )" + shape + R"(, "values": [1, 2, 3, 4]})"),
      type);
}

TEST(JsonValue, ShapeThatIsNoneIsRefused) {
  for (const char* shape :
       {"[-1]", "[-2, -2]", "[-4611686018427387904]", "[1e300]", "[4.5]",
        "[18446744073709551615]", "[9223372036854775808]", "[true, 4]",
        "[\"4\"]", "[null]", "[[4]]", "{\"0\": 4}", "4", "null", "[3]", "[]",
        "[2, 0]", "[4294967296, 4294967296]",
        "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
        "4]"}) {
    EXPECT_THAT(TensorOf(shape).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, "shape"))
        << shape;
  }
  EXPECT_THAT(TensorOf("[2, 1, 2]"), IsOk());
}

TEST(JsonValue, NumberThatTheDtypeLacksIsRefused) {
  rpc::Type type;
  type.kind = rpc::Type::Kind::kTensor;
  const auto tensor_of = [&](const std::string& dtype,
                             const std::string& value) {
    return ValueFromJson(ParseJson(R"({"dtype": ")" + dtype +
                                   R"(", "values": [0, )" + value + "]}"),
                         type);
  };
  for (const auto& [dtype, value] :
       std::vector<std::pair<std::string, std::string>>{
           {"i64", "1.5"},
           {"i64", "1e300"},
           {"i64", "\"nan\""},
           {"i64", "\"inf\""},
           {"i64", "9007199254740993"},
           {"i32", "2147483648"},
           {"i8", "-129"},
           {"u8", "-1"},
           {"u8", "256"},
           {"bool", "2"}}) {
    EXPECT_THAT(
        tensor_of(dtype, value).status(),
        StatusIs(absl::StatusCode::kInvalidArgument, "in values of " + dtype))
        << value;
  }
  for (const auto& [dtype, value] :
       std::vector<std::pair<std::string, std::string>>{
           {"i64", "-9007199254740991"},
           {"i32", "-2147483648"},
           {"i8", "127"},
           {"u8", "255"},
           {"bool", "true"},
           {"f32", "\"nan\""}}) {
    EXPECT_THAT(tensor_of(dtype, value), IsOk()) << dtype << value;
  }
}

}  // namespace
}  // namespace weft::launch
