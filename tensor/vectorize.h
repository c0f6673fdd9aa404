// WEFT_VECTORIZE: compiles a loop for several instruction sets; the one that
// runs is chosen when the program starts.
//
// Only for loops: what they call must be inline. Empty where the choice does
// not work: clang 14 has it for no template, and ThreadSanitizer is not yet up
// when the choice is made; with AddressSanitizer it would only treble minutes
// of compiling. The results are the same but for contraction of a * b + c.
//
// A function of a header must be static: of one that two shared libraries
// define the dynamic linker says "Relink ... for IFUNC symbol" at each start
// of a program, and it may call what is not relocated yet.

#ifndef WEFT_TENSOR_VECTORIZE_H_
#define WEFT_TENSOR_VECTORIZE_H_

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define WEFT_VECTORIZE \
  __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#else
#define WEFT_VECTORIZE
#endif

#endif  // WEFT_TENSOR_VECTORIZE_H_
