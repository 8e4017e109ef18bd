#include "client/command/top/signals.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace gdpcache::command::top {
namespace {

constexpr std::array<int, 6> kSignals = {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT, SIGWINCH};

// A handler knows nothing else.
std::array<int, 2> g_pipe = {-1, -1};                    // does not block; a full one has woken whoever reads it
std::array<struct sigaction, kSignals.size()> g_before;  // what each did

void Send(char number) {
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(g_pipe[1], &number, 1);
  errno = error;
}

extern "C" void OnSignal(int number) { Send(static_cast<char>(number)); }

}  // namespace

Signals::Signals() {
  if (pipe2(g_pipe.data(), O_CLOEXEC | O_NONBLOCK) != 0) return;  // without descriptors nothing else works, either
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &g_before[i]);
}

Signals::~Signals() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &g_before[i], nullptr);
  for (int& end : g_pipe) {
    close(end);
    end = -1;
  }
}

int Signals::descriptor() const { return g_pipe[0]; }

void Signals::Wake() const { Send(0); }

std::vector<int> Signals::Take() const {
  std::array<char, 64> numbers = {};
  const ssize_t count = read(g_pipe[0], numbers.data(), numbers.size());
  if (count <= 0) return {};
  return {numbers.begin(), numbers.begin() + count};
}

void Signals::Suspend() { raise(SIGSTOP); }

}  // namespace gdpcache::command::top
