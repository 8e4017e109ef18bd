#include "client/command/bench/progress.h"

#include <unistd.h>

#include <iostream>

namespace gdpcache::bench {
namespace {

constexpr char kClearLine[] = "\r\x1b[K";

}  // namespace

Progress::Progress(std::size_t steps) : shown_(isatty(STDERR_FILENO) == 1), steps_(steps) {}

Progress::~Progress() {
  if (shown_) std::cerr << kClearLine << std::flush;
}

void Progress::Step(const std::string& name) {
  ++step_;
  if (shown_) std::cerr << kClearLine << "[" << step_ << "/" << steps_ << "] " << name << std::flush;
}

}  // namespace gdpcache::bench
