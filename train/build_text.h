// BuildText: which build a program is.

#ifndef WEFT_TRAIN_BUILD_TEXT_H_
#define WEFT_TRAIN_BUILD_TEXT_H_

#include <string>

namespace weft::train {

// "weft 0.1.0, program 7a415768530cfeb5...": the version of Weft, and the id
// that the linker gave this process's program (its note NT_GNU_BUILD_ID), or
// "program of unknown build".
std::string BuildText();

}  // namespace weft::train

#endif  // WEFT_TRAIN_BUILD_TEXT_H_
