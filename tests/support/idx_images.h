// WriteIdxImages: small images in IDX files, the same on every machine.

#ifndef WEFT_TESTS_SUPPORT_IDX_IMAGES_H_
#define WEFT_TESTS_SUPPORT_IDX_IMAGES_H_

#include <cstdint>
#include <string>

namespace weft::testing {

// Writes `stem`-images-idx3-ubyte and `stem`-labels-idx1-ubyte: `images` images
// of `side` x `side` pixels, image i being of class i mod 10. Half of the
// pixels, the class says which, are bright, and all of them are noisy: a small
// model learns them in a few steps.
void WriteIdxImages(const std::string& stem, int64_t images, int side = 8);

}  // namespace weft::testing

#endif  // WEFT_TESTS_SUPPORT_IDX_IMAGES_H_
