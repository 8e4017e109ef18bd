#include "server/observe/out_of_memory.h"

#include <unistd.h>

#include <cstdlib>
#include <new>

namespace gdpcache::observe {

void EndWhenOutOfMemory() {
  std::set_new_handler([] {
    constexpr char kLine[] = "gdpcached: the heap has no memory left, ending\n";  // a log line would take some
    static_cast<void>(!write(STDERR_FILENO, kLine, sizeof(kLine) - 1));
    std::abort();
  });
}

}  // namespace gdpcache::observe
