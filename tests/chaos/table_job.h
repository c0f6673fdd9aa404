// What tests read of the output of tests/chaos/table_worker, and tell it.

#ifndef WEFT_TESTS_CHAOS_TABLE_JOB_H_
#define WEFT_TESTS_CHAOS_TABLE_JOB_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

namespace weft::testing {

// The last step that `output` tells of after its first `offset` bytes; -1:
// none.
int64_t LastStep(const std::string& output, size_t offset);

// All workers that were given --end=`path` stop after `step`.
void WriteEnd(const std::string& path, int64_t step);

// The lines with which workers have ended, with hashes of model and table: one,
// if all agree.
std::set<std::string> ResultsIn(const std::string& output);

}  // namespace weft::testing

#endif  // WEFT_TESTS_CHAOS_TABLE_JOB_H_
