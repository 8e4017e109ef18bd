// gdpcache top against the real server: figures, a restart, and a terminal's behaviour.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/command_support.h"
#include "tests/integration/snapshot_support.h"
#include "tests/support/raw_call.h"
#include "tests/support/server_process.h"

namespace gdpcache::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

nlohmann::json Top(const std::string& address) { return RunJson(address, {"top", "--once", "--interval=0.1"}); }

/// Of the method, or null.
nlohmann::json RpcOf(const nlohmann::json& top, const std::string& method) {
  for (const nlohmann::json& rpc : top["rpcs"]) {
    if (rpc["method"] == method) return rpc;
  }
  return nullptr;
}

TEST(TopCommandTest, CountsWhatWasDone) {
  const ServerProcess server;
  SnapshotModel model(server.unix_address());
  const std::int64_t slot = model.AcquireSlot();
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    ASSERT_TRUE(model.PrefillLayer(layer, slot, 1, 0, 32).ok());
    ASSERT_TRUE(model.PrefillLayer(layer, slot, 1, 32, 48, {}, Transport::kStream).ok());
  }
  ASSERT_TRUE(model.session().SaveSnapshots({{slot, Key(1)}}).ok());
  ASSERT_TRUE(model.client().LookupPrefix("model", {Key(1), Key(2)}).ok());
  ASSERT_TRUE(model.client().LookupPrefix("model", {Key(3)}).ok());
  ASSERT_FALSE(model.session().AcquireSlots(100).ok());

  const nlohmann::json top = Top(server.unix_address());
  ASSERT_TRUE(top.is_object());
  EXPECT_EQ(top["reachable"], true);
  EXPECT_EQ(top["backend"], "cpu");
  EXPECT_EQ(top["draining"], false);
  EXPECT_EQ(top["sessions"], 1);
  EXPECT_EQ(top["caches"][0]["held_slots"], 1);
  EXPECT_EQ(top["queue"]["running"], 0);
  EXPECT_EQ(top["queue"]["waiting"], 0);
  EXPECT_EQ(top["snapshot_tiers"][0]["snapshots"], 1);
  const nlohmann::json& prefills = top["totals"]["prefills"];
  EXPECT_EQ(prefills["calls"], 4);
  EXPECT_EQ(prefills["tokens"], 2 * 48);
  EXPECT_EQ(prefills["sequences"], 4);
  const nlohmann::json& snapshots = top["totals"]["snapshots"];
  EXPECT_EQ(snapshots["stored"], 1);
  EXPECT_EQ(snapshots["lookup_hits"], 1);
  EXPECT_EQ(snapshots["lookup_misses"], 1);
  EXPECT_EQ(snapshots["hit_rate"], 0.5);
  EXPECT_EQ(snapshots["hit_tokens"], 48);
  EXPECT_EQ(RpcOf(top, "Prefill")["totals"]["calls"], 2);
  EXPECT_EQ(RpcOf(top, "PrefillStream")["totals"]["calls"], 2);
  EXPECT_EQ(RpcOf(top, "AcquireSlots")["totals"]["calls"], 2);
  EXPECT_EQ(RpcOf(top, "AcquireSlots")["totals"]["errors"], 1);
  EXPECT_EQ(top["totals"]["errors"], 1);
  EXPECT_GT(top["rates"]["rpcs"], 0);  // its own
  EXPECT_EQ(top["rates"]["prefills"]["tokens"], 0);
  EXPECT_EQ(RpcOf(top, "GetServerStats")["active"], 1);
}

TEST(TopCommandTest, RatesAreThoseOfTheInterval) {
  const ServerProcess server;
  SnapshotModel model(server.unix_address());
  const std::int64_t slot = model.AcquireSlot();
  ASSERT_TRUE(model.PrefillLayer(0, slot, 1, 0, 16).ok());
  Process top(GDPCACHE_COMMAND, {"top", "--json", "--interval=0.2", "--server", server.unix_address()});
  ASSERT_TRUE(top.ReadLine().has_value());  // it has seen what was before
  ASSERT_TRUE(model.PrefillLayer(0, slot, 1, 16, 48).ok());
  double tokens = 0;  // in the intervals since
  double calls = 0;
  while (tokens == 0 || calls == 0) {
    const std::optional<std::string> line = top.ReadLine();
    ASSERT_TRUE(line.has_value());
    const nlohmann::json rates = nlohmann::json::parse(*line)["rates"];
    tokens += rates["prefills"]["tokens"].get<double>() * rates["seconds"].get<double>();
    calls += rates["prefills"]["calls"].get<double>() * rates["seconds"].get<double>();
  }
  EXPECT_NEAR(tokens, 32, 1e-6);
  EXPECT_NEAR(calls, 1, 1e-6);
}

TEST(TopCommandTest, MadeUpMethodsAreOfOneKind) {
  const ServerProcess server;
  const std::shared_ptr<grpc::Channel> channel = Connect(server.unix_address());
  for (const std::string& method :
       {std::string("/gdpcache.v1.StateCache/Absent"), std::string("/made.Up/Method"), "/" + std::string(1000, 'x')}) {
    EXPECT_EQ(CallRaw(channel, method, "").status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  }
  EXPECT_EQ(CheckHealth(channel, ""), 1);
  const nlohmann::json top = Top(server.unix_address());
  EXPECT_EQ(RpcOf(top, "other")["totals"]["errors"], 3);
  EXPECT_EQ(RpcOf(top, "Check")["totals"]["calls"], 1);
  EXPECT_TRUE(RpcOf(top, "Absent").is_null());
  EXPECT_TRUE(RpcOf(top, "Method").is_null());
}

TEST(TopCommandTest, PrintsTextWhereThereIsNoTerminal) {
  const ServerProcess server;
  const ProgramResult result = RunClient(server.tcp_address(), {"top", "--once", "--interval=0.1"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("at " + server.tcp_address()));
  EXPECT_THAT(result.output, HasSubstr("GetServerStats"));
  EXPECT_THAT(result.output, Not(HasSubstr("\x1b")));
}

TEST(TopCommandTest, SurvivesARestartOfTheServer) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/socket";
  std::optional<ServerProcess> server;
  server.emplace(std::vector<std::string>{"--unix=" + path});
  Process top(GDPCACHE_COMMAND, {"top", "--json", "--interval=0.1", "--server", "unix:" + path});
  const auto next = [&top] {
    const std::optional<std::string> line = top.ReadLine();
    return line.has_value() ? nlohmann::json::parse(*line, nullptr, false) : nlohmann::json();
  };
  const auto read_until = [&next](const std::function<bool(const nlohmann::json&)>& wanted) {
    nlohmann::json line = next();
    while (line.is_object() && !wanted(line)) line = next();
    return line;
  };
  const std::string started = next()["started"];
  server->process().Signal(SIGKILL);
  server->process().Wait();
  const nlohmann::json gone = read_until([](const nlohmann::json& line) { return line["reachable"] == false; });
  ASSERT_TRUE(gone.is_object());
  EXPECT_THAT(gone["error"].get<std::string>(), HasSubstr(path));
  server.emplace(std::vector<std::string>{"--unix=" + path});
  const nlohmann::json back = read_until([](const nlohmann::json& line) { return line["reachable"] == true; });
  ASSERT_TRUE(back.is_object());
  EXPECT_NE(back["started"], started);
  EXPECT_TRUE(back["rates"].is_null());
  EXPECT_TRUE(next()["rates"].is_object());
}

TEST(TopCommandTest, NobodyThereIsAnError) {
  const ProgramResult result = RunClient("unix:/nobody", {"top", "--once"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr("gdpcache top: UNAVAILABLE: server unix:/nobody"));
}

TEST(TopCommandTest, RefusesIntervalsThatMakeNoSense) {
  for (const char* interval : {"0", "-1", "nan", "1e9", "soon"}) {
    EXPECT_EQ(RunClient("unix:/nobody", {"top", "--interval", interval}).exit_code, 2) << interval;
  }
}

/// `gdpcache top` in a terminal of its own, 90 columns wide and 24 high.
class TerminalProcess {
 public:
  explicit TerminalProcess(const std::string& address, const std::vector<std::string>& environment = {}) {
    master_ = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    EXPECT_EQ(grantpt(master_), 0);
    EXPECT_EQ(unlockpt(master_), 0);
    terminal_ = open(ptsname(master_), O_RDWR | O_NOCTTY | O_CLOEXEC);
    Resize(90, 24);
    EXPECT_EQ(tcgetattr(terminal_, &before_), 0);
    pid_ = fork();
    if (pid_ != 0) return;
    setsid();
    ioctl(terminal_, TIOCSCTTY, 0);
    for (const int descriptor : {0, 1, 2}) dup2(terminal_, descriptor);
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    for (const std::string& variable : environment) setenv(variable.c_str(), "1", 1);
    execl(GDPCACHE_COMMAND, GDPCACHE_COMMAND, "top", "--interval=0.1", "--server", address.c_str(), nullptr);
    _exit(127);
  }
  TerminalProcess(const TerminalProcess&) = delete;
  TerminalProcess& operator=(const TerminalProcess&) = delete;
  ~TerminalProcess() {
    kill(pid_, SIGKILL);
    if (!ended_) waitpid(pid_, nullptr, 0);
    close(terminal_);
    close(master_);
  }

  void Resize(unsigned short columns, unsigned short rows) const {
    const winsize size = {rows, columns, 0, 0};
    EXPECT_EQ(ioctl(terminal_, TIOCSWINSZ, &size), 0);  // sends SIGWINCH
  }

  /// Reads what is shown until `text` has come; what came before it is dropped. False after a minute.
  bool Shows(const std::string& text) {
    const absl::Time deadline = absl::Now() + absl::Minutes(1);
    while (!absl::StrContains(shown_, text)) {
      pollfd ready = {master_, POLLIN, 0};
      if (absl::Now() > deadline) return false;
      if (poll(&ready, 1, 100) <= 0) continue;
      std::array<char, 4096> bytes = {};
      const ssize_t count = read(master_, bytes.data(), bytes.size());
      if (count <= 0) return false;
      shown_.append(bytes.data(), static_cast<std::size_t>(count));
    }
    seen_ += shown_.substr(0, shown_.find(text) + text.size());
    shown_.erase(0, shown_.find(text) + text.size());
    return true;
  }

  void Type(const std::string& keys) const {
    EXPECT_EQ(write(master_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }

  void Signal(int number) const { kill(pid_, number); }

  /// Whether the process has been stopped, as by Ctrl-Z.
  bool IsStopped() const {
    int status = 0;
    return waitpid(pid_, &status, WUNTRACED) == pid_ && WIFSTOPPED(status);
  }

  /// Its exit code.
  int Wait() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    ended_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  /// Whether keys are handled as before the program began.
  bool IsRestored() const {
    termios now = {};
    return tcgetattr(terminal_, &now) == 0 && now.c_lflag == before_.c_lflag;
  }

  /// All that Shows has gone past.
  const std::string& seen() const { return seen_; }

 private:
  int master_ = -1;
  int terminal_ = -1;
  pid_t pid_ = -1;
  bool ended_ = false;
  termios before_ = {};
  std::string shown_;
  std::string seen_;
};

constexpr char kEnter[] = "\x1b[?1049h";
constexpr char kLeave[] = "\x1b[?1049l";

TEST(TopTerminalTest, DrawsUntilAKeyOrASignalAndLeavesTheTerminalAsItWas) {
  const ServerProcess server;
  for (const std::string& end : {std::string("q"), std::string("\x03"), std::string("\x04"), std::string("TERM")}) {
    TerminalProcess top(server.unix_address());
    ASSERT_TRUE(top.Shows(kEnter));
    ASSERT_TRUE(top.Shows("serving, up"));
    ASSERT_TRUE(top.Shows("q quits; every 0.1 s"));
    EXPECT_FALSE(top.IsRestored());
    if (end == "TERM") {
      top.Signal(SIGTERM);
    } else {
      top.Type(end);
    }
    EXPECT_TRUE(top.Shows(kLeave));
    EXPECT_EQ(top.Wait(), 0);
    EXPECT_TRUE(top.IsRestored());
  }
}

TEST(TopTerminalTest, FollowsTheTerminalsSize) {
  const ServerProcess server;
  TerminalProcess top(server.unix_address());
  ASSERT_TRUE(top.Shows("q quits"));
  EXPECT_THAT(top.seen(), Not(HasSubstr("LAYERSxHxKxV")));
  top.Resize(130, 40);
  EXPECT_TRUE(top.Shows("LAYERSxHxKxV"));
}

TEST(TopTerminalTest, CanBeSuspended) {
  const ServerProcess server;
  TerminalProcess top(server.unix_address());
  ASSERT_TRUE(top.Shows("q quits"));
  top.Type("\x1a");
  EXPECT_TRUE(top.Shows(kLeave));
  EXPECT_TRUE(top.IsStopped());
  EXPECT_TRUE(top.IsRestored());
  top.Signal(SIGCONT);
  EXPECT_TRUE(top.Shows(kEnter));
  EXPECT_TRUE(top.Shows("q quits"));
}

TEST(TopTerminalTest, HasNoColourWhereNoneIsWanted) {
  const ServerProcess server;
  TerminalProcess colourful(server.unix_address());
  ASSERT_TRUE(colourful.Shows("q quits"));
  EXPECT_THAT(colourful.seen(), HasSubstr("\x1b[32m"));
  TerminalProcess plain(server.unix_address(), {"NO_COLOR"});
  ASSERT_TRUE(plain.Shows("q quits"));
  EXPECT_THAT(plain.seen(), Not(testing::ContainsRegex("\x1b\\[[0-9]+m")));
}

TEST(TopTerminalTest, ShowsThatTheServerIsGone) {
  ServerProcess server;
  TerminalProcess top(server.unix_address());
  ASSERT_TRUE(top.Shows("q quits"));
  server.process().Signal(SIGKILL);
  EXPECT_TRUE(top.Shows("unreachable since"));
  EXPECT_TRUE(top.Shows("reconnecting"));
  top.Type("q");
  EXPECT_TRUE(top.Shows(kLeave));
  EXPECT_EQ(top.Wait(), 0);
}

}  // namespace
}  // namespace gdpcache::test
