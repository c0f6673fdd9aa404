// TempDir: a folder of a test's own, removed with all in it at the end of
// scope.

#ifndef WEFT_TESTS_SUPPORT_TEMP_DIR_H_
#define WEFT_TESTS_SUPPORT_TEMP_DIR_H_

#include <string>

namespace weft::testing {

class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  // The path of a file in it.
  std::string Path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace weft::testing

#endif  // WEFT_TESTS_SUPPORT_TEMP_DIR_H_
