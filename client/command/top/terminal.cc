#include "client/command/top/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gdpcache::command::top {
namespace {

// Another screen, no cursor, no wrapping of what comes too close to the edge; and back.
constexpr absl::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l";
constexpr absl::string_view kLeave = "\x1b[?7h\x1b[?25h\x1b[?1049l";
constexpr absl::string_view kHome = "\x1b[H";
constexpr absl::string_view kClearLine = "\x1b[K";
constexpr absl::string_view kClearBelow = "\x1b[J";
constexpr absl::string_view kPlain = "\x1b[0m";
constexpr char kEndOfInput = 4;  // Ctrl-D

absl::string_view Sequence(Style style) {
  switch (style) {
    case Style::kPlain:
      return "";
    case Style::kTitle:
      return "\x1b[1m";
    case Style::kHeading:
      return "\x1b[7m";
    case Style::kLabel:
      return "\x1b[36m";
    case Style::kGood:
      return "\x1b[32m";
    case Style::kWarning:
      return "\x1b[33m";
    case Style::kBad:
      return "\x1b[31m";
    case Style::kDim:
      return "\x1b[2m";
  }
  return "";
}

bool WriteAll(absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd ready = {STDOUT_FILENO, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool IsSet(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

}  // namespace

bool Terminal::IsPresent() {
  const char* const kind = std::getenv("TERM");
  const bool dumb = kind == nullptr || absl::string_view(kind).empty() || absl::string_view(kind) == "dumb";
  return !dumb && isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
}

Terminal::Terminal() : colour_(!IsSet("NO_COLOR")) { Enter(); }

void Terminal::Enter() {
  if (entered_ || tcgetattr(STDIN_FILENO, &before_) != 0) return;
  entered_ = true;
  termios keys = before_;
  keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  keys.c_cc[VMIN] = 0;  // reading never waits
  keys.c_cc[VTIME] = 0;
  tcsetattr(STDIN_FILENO, TCSANOW, &keys);
  WriteAll(kEnter);
}

void Terminal::Leave() {
  if (!entered_) return;
  entered_ = false;
  WriteAll(absl::StrCat(kPlain, kLeave));
  tcsetattr(STDIN_FILENO, TCSAFLUSH, &before_);
}

Terminal::Size Terminal::size() const {
  winsize window = {};
  Size size;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 && window.ws_row > 0) {
    size = {window.ws_col, window.ws_row};
  }
  return size;
}

bool Terminal::Draw(absl::Span<const Line> lines) const {
  std::string screen(kHome);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) screen += "\r\n";
    for (const Run& run : lines[i]) {
      const absl::string_view sequence = colour_ ? Sequence(run.style) : "";
      absl::StrAppend(&screen, sequence, run.text, sequence.empty() ? "" : kPlain);
    }
    absl::StrAppend(&screen, kClearLine);
  }
  absl::StrAppend(&screen, kClearBelow);
  return WriteAll(screen);
}

bool Terminal::ReadQuit() const {
  std::array<char, 64> keys = {};
  const ssize_t count = read(STDIN_FILENO, keys.data(), keys.size());
  if (count <= 0) return !(count < 0 && (errno == EINTR || errno == EAGAIN));
  const absl::string_view typed(keys.data(), static_cast<std::size_t>(count));
  return typed.find_first_of("qQ") != absl::string_view::npos || typed.find(kEndOfInput) != absl::string_view::npos;
}

}  // namespace gdpcache::command::top
