#ifndef GDPCACHE_TESTS_SUPPORT_TEMPORARY_DIRECTORY_H_
#define GDPCACHE_TESTS_SUPPORT_TEMPORARY_DIRECTORY_H_

#include <string>

namespace gdpcache::test {

/// A directory of its own, removed with all its content at the end. Its path is short enough for Unix sockets.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory();

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_TEMPORARY_DIRECTORY_H_
