#include "tests/support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/support/file_content.h"

namespace gdpcache::test {
namespace {

// False when nothing has happened on `descriptor` by `deadline`.
bool WaitReadable(int descriptor, absl::Time deadline) {
  while (true) {
    pollfd entry = {descriptor, POLLIN, 0};
    const absl::Duration left = deadline - absl::Now();
    if (left < absl::ZeroDuration()) return false;
    const int ready = poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

}  // namespace

Process::Process(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  argv.push_back(const_cast<char*>(program.c_str()));
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::array<int, 2> pipe_ends;
  EXPECT_EQ(pipe2(pipe_ends.data(), O_CLOEXEC), 0) << std::strerror(errno);
  const std::string errors_path = directory_.path() + "/stderr";
  const int errors = open(errors_path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
  EXPECT_GE(errors, 0) << std::strerror(errno);
  pid_ = fork();
  EXPECT_GE(pid_, 0) << std::strerror(errno);
  if (pid_ == 0) {  // nothing but system calls: other threads of the test may have held locks
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(pipe_ends[1], STDOUT_FILENO);
    dup2(errors, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(pipe_ends[1]);
  close(errors);
  stdout_ = pipe_ends[0];
}

Process::~Process() {
  if (!exit_.has_value()) {
    Signal(SIGKILL);
    Wait();
  }
  if (testing::Test::HasFailure()) std::fputs(Errors().c_str(), stderr);
  close(stdout_);
}

std::optional<std::string> Process::ReadLine(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    if (const std::size_t end = unread_.find('\n'); end != std::string::npos) {
      const std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    if (!WaitReadable(stdout_, deadline)) return std::nullopt;
    std::array<char, 4096> buffer;
    const ssize_t got = read(stdout_, buffer.data(), buffer.size());
    if (got <= 0) return std::nullopt;
    unread_.append(buffer.data(), got);
  }
}

void Process::Signal(int signal_number) const {
  if (exit_.has_value()) return;
  EXPECT_EQ(kill(pid_, signal_number), 0) << std::strerror(errno);
}

std::optional<int> Process::Wait(absl::Duration timeout) {
  if (exit_.has_value()) return exit_;
  const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  EXPECT_GE(descriptor, 0) << std::strerror(errno);
  const bool ended = WaitReadable(descriptor, absl::Now() + timeout);
  close(descriptor);
  if (!ended) return std::nullopt;
  int status = 0;
  EXPECT_EQ(waitpid(pid_, &status, 0), pid_) << std::strerror(errno);
  exit_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return exit_;
}

std::string Process::Errors() const { return FileContent(directory_.path() + "/stderr"); }

ProgramResult RunProgram(const std::string& program, const std::vector<std::string>& arguments) {
  Process process(program, arguments);
  ProgramResult result;
  while (const std::optional<std::string> line = process.ReadLine()) result.output += *line + "\n";
  const std::optional<int> exit_code = process.Wait();
  EXPECT_TRUE(exit_code.has_value()) << program << " does not end";
  result.exit_code = exit_code.value_or(-1);
  result.errors = process.Errors();
  return result;
}

}  // namespace gdpcache::test
