#ifndef GDPCACHE_CLIENT_COMMAND_BENCH_PROGRESS_H_
#define GDPCACHE_CLIENT_COMMAND_BENCH_PROGRESS_H_

#include <cstddef>
#include <string>

namespace gdpcache::bench {

/// One line on stderr that tells what is being done, where that is a terminal; nothing elsewhere. Gone with the object.
class Progress {
 public:
  explicit Progress(std::size_t steps);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  /// The next of the steps.
  void Step(const std::string& name);

 private:
  const bool shown_;
  const std::size_t steps_;
  std::size_t step_ = 0;
};

}  // namespace gdpcache::bench

#endif  // GDPCACHE_CLIENT_COMMAND_BENCH_PROGRESS_H_
