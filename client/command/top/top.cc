// `gdpcache top`: a live view in a terminal, a snapshot per interval anywhere else.

#include <poll.h>

#include <array>
#include <csignal>
#include <iostream>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/command/subcommand.h"
#include "client/command/top/poller.h"
#include "client/command/top/render.h"
#include "client/command/top/signals.h"
#include "client/command/top/terminal.h"
#include "client/command/top/view_json.h"

namespace gdpcache::command {
namespace {

constexpr double kShortestInterval = 0.1;  // in seconds
constexpr double kLongestInterval = 86400;

struct TopOptions {
  ServerOptions server;
  double interval_seconds = 1;
  bool once = false;

  absl::Duration interval() const { return absl::Seconds(interval_seconds); }
};

std::string CheckInterval(const std::string& text) {
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds) && seconds >= kShortestInterval && seconds <= kLongestInterval) return "";
  return absl::StrCat("'", text, "' is not between ", kShortestInterval, " and ", kLongestInterval, " seconds");
}

void Print(const top::View& view, bool json, std::ostream& out) {
  if (json) {
    out << top::ToJson(view).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
  } else {
    out << top::PlainText(top::Render(view, {})) << std::endl;
  }
}

/// One snapshot per interval until nobody reads them.
absl::Status PrintSnapshots(const Client& client, const TopOptions& options) {
  top::Model model(client.address());
  const auto ask = [&] {
    absl::StatusOr<top::Answer> answer = top::Ask(client);
    if (!answer.ok()) return model.Failed(absl::Now(), answer.status());
    model.Answered(absl::Now(), *std::move(answer));
  };
  ask();  // rates need two
  while (std::cout) {
    absl::SleepFor(options.interval());
    ask();
    const top::View& view = model.view();
    if (options.once && view.outage.has_value()) return view.outage->error;
    Print(view, options.server.json, std::cout);
    if (options.once) return absl::OkStatus();
  }
  return absl::OkStatus();
}

/// The terminal's loop: draws what is new, until somebody quits.
void ShowLive(const Client& client, const TopOptions& options) {
  const top::Signals signals;
  top::Terminal terminal;
  const top::Poller poller(client, options.interval(), [&signals] { signals.Wake(); });
  const std::string footer = absl::StrCat("q quits; every ", options.interval_seconds, " s");
  while (true) {
    std::array<pollfd, 2> ready = {{{signals.descriptor(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}}};
    if (poll(ready.data(), ready.size(), -1) < 0) continue;  // a signal; its byte is there
    if (ready[1].revents != 0 && terminal.ReadQuit()) return;
    for (const int signal_number : signals.Take()) {
      switch (signal_number) {
        case SIGINT:
        case SIGTERM:
        case SIGHUP:
          return;
        case SIGTSTP:
          terminal.Leave();
          top::Signals::Suspend();
          terminal.Enter();  // before anything is drawn
          break;
        case SIGCONT:  // whoever stopped it may have changed the terminal
          terminal.Leave();
          terminal.Enter();
          break;
        default:
          break;
      }
    }
    const top::View view = poller.view();
    const top::Terminal::Size size = terminal.size();
    const bool is_known = view.answer.has_value() || view.outage.has_value();
    if (is_known && !terminal.Draw(top::Render(view, {.columns = size.columns, .rows = size.rows, .footer = footer}))) {
      return;
    }
  }
}

absl::Status RunTop(const TopOptions& options) {
  const absl::StatusOr<Client> client = Connect(options.server);
  if (!client.ok()) return client.status();
  if (options.once || options.server.json || !top::Terminal::IsPresent()) return PrintSnapshots(*client, options);
  ShowLive(*client, options);
  return absl::OkStatus();
}

}  // namespace

std::vector<Subcommand> AddTop(CLI::App* app) {
  auto options = std::make_shared<TopOptions>();
  CLI::App* parser = app->add_subcommand(
      "top",
      "Watch the server live: memory, caches, snapshots, rates and the busiest RPCs. Where there is no terminal, "
      "print a snapshot per interval.");
  options->server.timeout_seconds = 2;  // a server that hangs is shown as such
  AddServerOptions(parser, &options->server);
  parser
      ->add_option("--interval", options->interval_seconds, "Time between two looks at the server, which rates are of")
      ->type_name("SECONDS")
      ->check(CheckInterval)
      ->capture_default_str();
  parser->add_flag("--once", options->once, "Print one snapshot, after one interval, and end");
  return {{parser, [options] { return RunTop(*options); }}};
}

}  // namespace gdpcache::command
