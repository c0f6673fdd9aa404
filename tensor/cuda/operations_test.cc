// Every operation that CUDA has, through the functions of tensors, by the
// bodies of its kernels on the CPU; and that docs/devices.md lists them.

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/error.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/tensor/cuda/kernels_on_host.h"
#include "weft/tensor/cuda/operation_cases.h"
#include "weft/tensor/ops/index.h"

namespace weft::internal::cuda {
namespace {

using ::testing::HasSubstr;

void ExpectSame(const OperationCase& one) {
  std::vector<Tensor> here;
  for (const Tensor& input : one.inputs) here.push_back(input.Clone());
  const std::vector<Tensor> wanted = one.run(here);
  device::testing::SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  std::vector<Tensor> there;
  for (const Tensor& input : one.inputs) there.push_back(input.To(device));
  const KernelsOnHost kernels;
  const std::vector<Tensor> found = one.run(there);
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].shape(), wanted[i].shape()) << i;
    ASSERT_EQ(found[i].dtype(), wanted[i].dtype()) << i;
    ASSERT_EQ(found[i].device(), device) << i;
    const auto f =
        found[i].To(Device::Cpu()).To(DType::kF64).ToVector<double>();
    const auto w = wanted[i].To(DType::kF64).ToVector<double>();
    for (size_t k = 0; k < f.size(); ++k) {
      ASSERT_LE(UlpsBetween(f[k], w[k], wanted[i].dtype()), one.ulps)
          << "result " << i << ", element " << k << ": found " << f[k]
          << ", wanted " << w[k];
    }
  }
}

class Operations : public ::testing::TestWithParam<size_t> {};

TEST_P(Operations, AreThoseOfTheCpu) {
  const OperationCase one = OperationCases()[GetParam()];
  SCOPED_TRACE(one.name);
  ExpectSame(one);
}

INSTANTIATE_TEST_SUITE_P(All, Operations,
                         ::testing::Range(size_t{0}, OperationCases().size()));

TEST(OperationsOnHost, AFailureNamesTheOperation) {
  device::testing::SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  const KernelsOnHost kernels;
  const Tensor x = Tensor::Zeros({2, 3}, DType::kI32, device);
  try {
    OnDevice(
        "Unheard", [](const Tensor&) {}, x);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(std::string(error.status().message()), HasSubstr("Unheard"));
  }
  EXPECT_EQ(IndexSelect(x, 0, Tensor::Arange(2).To(device)).shape(), x.shape());
}

// The lines between these two in docs/devices.md.
constexpr char kBegin[] = "<!-- operations of CUDA: begin -->\n";
constexpr char kEnd[] = "<!-- operations of CUDA: end -->\n";

std::string TableOfOperations() {
  std::string table = "| operation | dtypes | by |\n|---|---|---|\n";
  for (const CudaOperation& operation : CudaOperations()) {
    absl::StrAppend(&table, "| ", operation.name, " | ", operation.dtypes,
                    " | ", operation.by, " |\n");
  }
  return table;
}

TEST(OperationsOnHost, AreThoseThatTheDocumentLists) {
  std::stringstream text;
  text << std::ifstream("docs/devices.md").rdbuf();
  const std::string page = text.str();
  const size_t begin = page.find(kBegin);
  const size_t end = page.find(kEnd);
  ASSERT_NE(begin, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  const size_t first = begin + sizeof(kBegin) - 1;
  const std::string wanted = TableOfOperations();
  EXPECT_TRUE(page.substr(first, end - first) == wanted)
      << "tensor/cuda/operations.inc has changed: put these lines between the "
         "two marks in docs/devices.md\n"
      << wanted;
}

}  // namespace
}  // namespace weft::internal::cuda
