#ifndef GDPCACHE_TESTS_SUPPORT_FILE_CONTENT_H_
#define GDPCACHE_TESTS_SUPPORT_FILE_CONTENT_H_

#include <fstream>
#include <iterator>
#include <string>

namespace gdpcache::test {

/// All bytes of a file; none of one that cannot be read.
inline std::string FileContent(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_FILE_CONTENT_H_
