#include "weft/base/catch_to_status.h"

#include <exception>
#include <new>

#include "absl/strings/str_cat.h"
#include "weft/base/error.h"

namespace weft::internal {

absl::Status CurrentExceptionToStatus() {
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

}  // namespace weft::internal
