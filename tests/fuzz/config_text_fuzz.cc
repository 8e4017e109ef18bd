// A configuration file: its text, the values in it, and the checks of the whole.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/config/config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gdpcache::config;  // NOLINT(google-build-using-namespace): the entry has to be outside
  const int file = memfd_create("config", MFD_CLOEXEC);
  // Of anybody's to change, as a memfd is, it would not be read.
  if (file < 0 || fchmod(file, S_IRUSR | S_IWUSR) != 0 || write(file, data, size) != static_cast<ssize_t>(size))
    std::abort();
  const std::string flag = absl::StrCat("--config=/proc/self/fd/", file);
  const std::array<const char*, 1> arguments = {flag.c_str()};
  const Invocation invocation = ParseCommandLine(arguments);
  close(file);
  // Either something to run with, or words for the user that say what is wrong.
  const bool accepted = invocation.config.has_value();
  if (accepted != invocation.errors.empty() || (!accepted && invocation.exit_code != 2)) {
    std::fprintf(stderr, "accepted %d, exit code %d, errors '%s'\n", accepted, invocation.exit_code,
                 invocation.errors.c_str());
    std::abort();
  }
  return 0;
}
