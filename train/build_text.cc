#include "weft/train/build_text.h"

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "weft/base/version.h"

namespace weft::train {
namespace {

size_t Aligned(size_t bytes) { return (bytes + 3) / 4 * 4; }

// The id among these notes; empty: it is not there.
std::string IdIn(absl::string_view notes) {
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) head;
    std::memcpy(&head, notes.data(), sizeof(head));
    const size_t name = Aligned(head.n_namesz);
    const size_t whole = sizeof(head) + name + Aligned(head.n_descsz);
    if (whole > notes.size()) return "";
    if (head.n_type == NT_GNU_BUILD_ID &&
        notes.substr(sizeof(head), head.n_namesz) ==
            absl::string_view("GNU\0", 4)) {
      return absl::BytesToHexString(
          notes.substr(sizeof(head) + name, head.n_descsz));
    }
    notes.remove_prefix(whole);
  }
  return "";
}

// Of the first object, which is the program.
int TakeId(dl_phdr_info* program, size_t, void* id) {
  for (int i = 0; i < program->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = program->dlpi_phdr[i];
    if (part.p_type != PT_NOTE) continue;
    const std::string found =
        IdIn({reinterpret_cast<const char*>(program->dlpi_addr + part.p_vaddr),
              part.p_memsz});
    if (!found.empty()) *static_cast<std::string*>(id) = found;
  }
  return 1;  // no other object
}

}  // namespace

std::string BuildText() {
  std::string id;
  dl_iterate_phdr(&TakeId, &id);
  return absl::StrCat("weft ", kVersion, ", program ",
                      id.empty() ? "of unknown build" : id);
}

}  // namespace weft::train
