// All differentiable operations.

#ifndef WEFT_AUTOGRAD_OPS_H_
#define WEFT_AUTOGRAD_OPS_H_

#include "weft/autograd/ops/attention.h"    // IWYU pragma: export
#include "weft/autograd/ops/conv.h"         // IWYU pragma: export
#include "weft/autograd/ops/elementwise.h"  // IWYU pragma: export
#include "weft/autograd/ops/index.h"        // IWYU pragma: export
#include "weft/autograd/ops/loss.h"         // IWYU pragma: export
#include "weft/autograd/ops/matmul.h"       // IWYU pragma: export
#include "weft/autograd/ops/norm.h"         // IWYU pragma: export
#include "weft/autograd/ops/reduce.h"       // IWYU pragma: export
#include "weft/autograd/ops/scan.h"         // IWYU pragma: export
#include "weft/autograd/ops/shape.h"        // IWYU pragma: export

#endif  // WEFT_AUTOGRAD_OPS_H_
