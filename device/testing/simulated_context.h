// SimulatedDevices: a Context of simulated devices for tests.

#ifndef WEFT_DEVICE_TESTING_SIMULATED_CONTEXT_H_
#define WEFT_DEVICE_TESTING_SIMULATED_CONTEXT_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "weft/base/check.h"
#include "weft/device/context.h"
#include "weft/device/simulated/runtime.h"

namespace weft::device::testing {

class SimulatedDevices {
 public:
  // What is given back is filled with NaN, so that a use of it shows.
  explicit SimulatedDevices(uint64_t seed, int devices = 1) {
    SimulatedRuntime::Options options;
    options.seed = seed;
    options.devices = devices;
    auto runtime = SimulatedRuntime::Create(options);
    WEFT_CHECK(runtime.ok()) << runtime.status();
    runtime_ = runtime->get();
    Context::Options context_options;
    context_options.memory.poison = true;
    auto context = Context::Create(*std::move(runtime), context_options);
    WEFT_CHECK(context.ok()) << context.status();
    context_ = *std::move(context);
  }

  Context& context() { return *context_; }
  SimulatedRuntime& runtime() { return *runtime_; }

 private:
  SimulatedRuntime* runtime_;
  std::shared_ptr<Context> context_;
};

}  // namespace weft::device::testing

#endif  // WEFT_DEVICE_TESTING_SIMULATED_CONTEXT_H_
