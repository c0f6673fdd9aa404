#include "weft/base/catch_to_status.h"

#include <exception>
#include <new>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/error.h"

namespace weft {
namespace {

// Filled before main, then constant.
std::vector<ThrownTranslator>& Translators() {
  static auto* const translators = new std::vector<ThrownTranslator>();
  return *translators;
}

}  // namespace

bool RegisterThrown(ThrownTranslator translator) {
  Translators().push_back(translator);
  return true;
}

namespace internal {

absl::Status CurrentExceptionToStatus() {
  for (const ThrownTranslator translate : Translators()) {
    if (std::optional<absl::Status> status = translate()) return *status;
  }
  try {
    throw;
  } catch (const Error& error) {
    return error.status();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory (std::bad_alloc)");
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("exception: ", error.what()));
  } catch (...) {
    return absl::InternalError("exception of a type not from std::exception");
  }
}

}  // namespace internal
}  // namespace weft
