// ExportTable: a table of a checkpoint as one safetensors file, for programs
// that only read it: exported_table.h, or any reader of the format.
//
//   keys    i64 [n]       SPARSE: as 64 bits without a sign, they ascend
//   weight  f32 [n, dim]  their rows; of a dense table f32 [elements]
// Metadata: format, name, kind, dim, rows, version, step, checkpoint,
// initializer (of rows that are not there), key_order, table (the spec), and
// content_xxh3 and checksum, by which a reader finds damage.
//
// Thread-safety: functions without state.

#ifndef WEFT_PS_EXPORT_EXPORT_TABLE_H_
#define WEFT_PS_EXPORT_EXPORT_TABLE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/ps/export/saved_checkpoint.h"

namespace weft::ps {

inline constexpr absl::string_view kExportFormat = "weft.ps.export/1";
inline constexpr char kExportKeys[] = "keys";
inline constexpr char kExportWeight[] = "weight";

// "NORMAL scale=0.01 seed=7".
std::string InitializerText(const v1::Initializer& initializer);

// The value of `checksum`: the XXH3 of all other metadata, as hexadecimal.
std::string ExportChecksum(const checkpoint::Metadata& metadata);

// Writes the file `path`; one that is there is replaced at once, by a rename,
// so that a reader has the old one or the new one. The rows of the partitions
// are merged by their keys, twice (for the hash, then for the file), each time
// for the keys and for the weights: time n log(partitions) comparisons, memory
// 200 bytes for each partition and a buffer of 256 KiB. After an error `path`
// is as it was.
//   kNotFound  there is no such table, or no directory for the file
//   kInvalidArgument  the file would lie in the checkpoint itself, or take the
//                     place of what is no regular file
//   kResourceExhausted  the disk is full
absl::Status ExportTable(const SavedCheckpoint& from, const std::string& table,
                         const std::string& path);

}  // namespace weft::ps

#endif  // WEFT_PS_EXPORT_EXPORT_TABLE_H_
