#include "server/config/config.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/config/flags.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;

class ConfigTest : public ::testing::Test {
 protected:
  static Invocation Parse(const std::vector<std::string>& arguments) {
    const absl::FlagSaver saver;  // each command line starts from the defaults
    std::vector<const char*> pointers;
    for (const std::string& argument : arguments) pointers.push_back(argument.c_str());
    return ParseCommandLine(pointers);
  }

  static Config ParseOk(const std::vector<std::string>& arguments) {
    const Invocation invocation = Parse(arguments);
    EXPECT_TRUE(invocation.config.has_value()) << invocation.errors;
    EXPECT_EQ(invocation.errors, "");
    EXPECT_EQ(invocation.output, "");
    return invocation.config.value_or(Config());
  }

  static std::string ParseErrors(const std::vector<std::string>& arguments) {
    const Invocation invocation = Parse(arguments);
    EXPECT_FALSE(invocation.config.has_value());
    EXPECT_EQ(invocation.exit_code, 2);
    EXPECT_EQ(invocation.output, "");
    EXPECT_THAT(invocation.errors, ::testing::EndsWith("Try 'gdpcached --help'.\n"));
    return invocation.errors;
  }

  std::string WriteFile(const std::string& text) {
    const std::string path = directory_.path() + "/gdpcached.textproto";
    std::ofstream(path) << text;
    return path;
  }

  test::TemporaryDirectory directory_;
};

TEST_F(ConfigTest, DefaultsServeLoopbackAndAUnixSocket) {
  const Config config = ParseOk({});
  EXPECT_THAT(config.listen, ElementsAre("127.0.0.1:7411"));
  EXPECT_THAT(config.unix_path, MatchesRegex(".*/gdpcache.*\\.sock"));
  EXPECT_EQ(config.backend.choice, kernels::BackendChoice::kAuto);
  EXPECT_EQ(config.backend.cpu_threads, 0);
  EXPECT_EQ(config.state_memory_bytes, 0);
  EXPECT_EQ(config.staging_memory_bytes, std::int64_t{1} << 30);
  EXPECT_EQ(config.max_message_bytes, 16 << 20);
  EXPECT_EQ(config.default_session_ttl, absl::Seconds(60));
  EXPECT_EQ(config.log.level, observe::LogLevel::kInfo);
  EXPECT_EQ(config.snapshots.device_bytes, std::nullopt);
  EXPECT_EQ(config.snapshots.host_bytes, std::nullopt);
  EXPECT_EQ(config.snapshots.directory, "") << "nothing touches the disk";
  EXPECT_EQ(config.snapshots.write_policy, cache::WritePolicy::kWriteThrough);
}

TEST_F(ConfigTest, SnapshotsOnDiskPassThroughMemory) {
  EXPECT_THAT(ParseErrors({"--snapshot-directory=/d", "--snapshot-device-memory=0", "--snapshot-host-memory=0"}),
              HasSubstr("--snapshot-device-memory and --snapshot-host-memory are both 0"));
  EXPECT_EQ(ParseOk({"--snapshot-directory=/d", "--snapshot-device-memory=0", "--snapshot-host-memory=1MiB"})
                .snapshots.device_bytes,
            0);
  EXPECT_EQ(ParseOk({"--snapshot-device-memory=0"}).snapshots.device_bytes, 0);
}

TEST_F(ConfigTest, EveryFlagArrives) {
  const Config config = ParseOk({"--listen=localhost:1,127.0.0.1:2",
                                 "--listen",
                                 "[::1]:3",
                                 "--unix=/run/x.sock",
                                 "--backend=cpu",
                                 "--device=3",
                                 "--threads=7",
                                 "--state-memory=8GiB",
                                 "--staging-memory",
                                 "64MiB",
                                 "--max-message-size=2MiB",
                                 "--max-caches=5",
                                 "--max-sessions=6",
                                 "--max-tenant-sessions=3",
                                 "--max-tenant-slots=40",
                                 "--max-calls=50",
                                 "--max-queue-wait=20ms",
                                 "--max-connection-calls=60",
                                 "--default-session-ttl=500ms",
                                 "--max-session-ttl=1h",
                                 "--snapshot-device-memory=3GiB",
                                 "--snapshot-host-memory=auto",
                                 "--snapshot-directory=/var/snapshots",
                                 "--snapshot-disk-size=1TiB",
                                 "--snapshot-device-watermarks=70:60",
                                 "--snapshot-host-watermarks=100:100",
                                 "--snapshot-disk-watermarks=50:0",
                                 "--snapshot-write=back",
                                 "--snapshot-tenant-quota=5GiB",
                                 "--snapshot-pin-budget=1GiB",
                                 "--max-pin-ttl=5m",
                                 "--snapshot-pending-timeout=7s",
                                 "--snapshot-flush-timeout=9s",
                                 "--drain-timeout=0s",
                                 "--log-level=error",
                                 "--log-format=json",
                                 "--slow-call=3s",
                                 "--admin=[::1]:9"});
  EXPECT_THAT(config.listen, ElementsAre("localhost:1", "127.0.0.1:2", "[::1]:3"));
  EXPECT_EQ(config.unix_path, "/run/x.sock");
  EXPECT_EQ(config.backend.choice, kernels::BackendChoice::kCpu);
  EXPECT_EQ(config.backend.cuda_device, 3);
  EXPECT_EQ(config.backend.cpu_threads, 7);
  EXPECT_EQ(config.state_memory_bytes, std::int64_t{8} << 30);
  EXPECT_EQ(config.staging_memory_bytes, 64 << 20);
  EXPECT_EQ(config.max_message_bytes, 2 << 20);
  EXPECT_EQ(config.max_caches, 5);
  EXPECT_EQ(config.max_sessions, 6);
  EXPECT_EQ(config.max_tenant_sessions, 3);
  EXPECT_EQ(config.max_tenant_slots, 40);
  EXPECT_EQ(config.max_calls, 50);
  EXPECT_EQ(config.max_queue_wait, absl::Milliseconds(20));
  EXPECT_EQ(config.max_connection_calls, 60);
  EXPECT_EQ(config.slow_call, absl::Seconds(3));
  EXPECT_EQ(config.admin, "[::1]:9");
  EXPECT_EQ(config.default_session_ttl, absl::Milliseconds(500));
  EXPECT_EQ(config.max_session_ttl, absl::Hours(1));
  EXPECT_EQ(config.snapshots.device_bytes, std::int64_t{3} << 30);
  EXPECT_EQ(config.snapshots.host_bytes, std::nullopt);
  EXPECT_EQ(config.snapshots.directory, "/var/snapshots");
  EXPECT_EQ(config.snapshots.disk_bytes, std::int64_t{1} << 40);
  EXPECT_EQ(config.snapshots.device_watermarks.high, 70);
  EXPECT_EQ(config.snapshots.device_watermarks.low, 60);
  EXPECT_EQ(config.snapshots.host_watermarks.low, 100);
  EXPECT_EQ(config.snapshots.disk_watermarks.high, 50);
  EXPECT_EQ(config.snapshots.write_policy, cache::WritePolicy::kWriteBack);
  EXPECT_EQ(config.snapshots.tenant_bytes, std::int64_t{5} << 30);
  EXPECT_EQ(config.snapshots.pin_bytes, std::int64_t{1} << 30);
  EXPECT_EQ(config.snapshots.max_pin_ttl, absl::Minutes(5));
  EXPECT_EQ(config.snapshots.pending_timeout, absl::Seconds(7));
  EXPECT_EQ(config.snapshots.flush_timeout, absl::Seconds(9));
  EXPECT_EQ(config.drain_timeout, absl::ZeroDuration());
  EXPECT_EQ(config.log.level, observe::LogLevel::kError);
  EXPECT_EQ(config.log.format, observe::LogFormat::kJson);
}

TEST_F(ConfigTest, NamesMayHaveDashesOrUnderscores) {
  EXPECT_EQ(ParseOk({"--max_caches=5"}).max_caches, 5);
  EXPECT_EQ(ParseOk({"--max-caches=5"}).max_caches, 5);
}

TEST_F(ConfigTest, AnEmptyListenAddressTurnsTcpOff) {
  EXPECT_THAT(ParseOk({"--listen=", "--unix=/run/x.sock"}).listen, IsEmpty());
  EXPECT_THAT(ParseOk({"--listen", "", "--unix=/run/x.sock"}).listen, IsEmpty());
  EXPECT_EQ(ParseOk({"--unix="}).unix_path, "");
  EXPECT_THAT(ParseErrors({"--listen=", "--unix="}), HasSubstr("there is nothing to serve"));
}

TEST_F(ConfigTest, OtherThanLoopbackMustBeAllowed) {
  EXPECT_THAT(ParseErrors({"--listen=0.0.0.0:7411"}), HasSubstr("--listen is '0.0.0.0:7411', which other machines"));
  EXPECT_THAT(ParseErrors({"--listen=0.0.0.0:7411", "--noallow-insecure"}), HasSubstr("--allow-insecure"));
  EXPECT_THAT(ParseOk({"--listen=0.0.0.0:7411", "--allow-insecure"}).listen, ElementsAre("0.0.0.0:7411"));
  EXPECT_THAT(ParseOk({"--listen=[::]:7411", "--allow-insecure=true"}).listen, ElementsAre("[::]:7411"));
}

TEST_F(ConfigTest, WithTlsOtherAddressesNeedNoPermission) {
  const Config config =
      ParseOk({"--listen=0.0.0.0:7411", "--tls-certificate=/c", "--tls-key=/k", "--tls-client-ca=/a"});
  EXPECT_EQ(config.access.tls_certificate, "/c");
  EXPECT_EQ(config.access.tls_key, "/k");
  EXPECT_EQ(config.access.tls_client_ca, "/a");
  EXPECT_THAT(ParseErrors({"--tls-certificate=/c"}), HasSubstr("--tls-certificate is given and --tls-key is not"));
  EXPECT_THAT(ParseErrors({"--tls-key=/k"}), HasSubstr("--tls-key is given and --tls-certificate is not"));
  EXPECT_THAT(ParseErrors({"--tls-client-ca=/a"}), HasSubstr("--tls-client-ca is given and --tls-certificate is not"));
}

TEST_F(ConfigTest, TokensDoNotTravelInClearText) {
  const std::string path = WriteFile("identities { name: \"engine\" tenant: \"chat\" permissions: DATA }");
  const Config config = ParseOk({"--config=" + path, "--token-file=/t", "--listen=127.0.0.1:7411"});
  EXPECT_EQ(config.access.token_file, "/t");
  ASSERT_EQ(config.access.identities.size(), 1u);
  EXPECT_EQ(config.access.identities[0].tenant(), "chat");
  EXPECT_THAT(ParseErrors({"--config=" + path, "--token-file=/t", "--listen=0.0.0.0:7411", "--allow-insecure"}),
              HasSubstr("tokens would travel there in clear text"));
  ParseOk({"--config=" + path, "--token-file=/t", "--listen=0.0.0.0:7411", "--tls-certificate=/c", "--tls-key=/k"});
  EXPECT_THAT(ParseErrors({"--token-file=/t"}), HasSubstr("the configuration file has no identities"));
  EXPECT_THAT(ParseErrors({"--config=" + path}), HasSubstr("give --token-file or --tls-client-ca"));
}

TEST_F(ConfigTest, OneIdentityMayBeTheServersOwnUserOnTheUnixSocket) {
  const auto identity = [](const std::string& name, uid_t uid) {
    return absl::StrCat("identities { name: '", name, "' tenant: 't' permissions: DATA uid: ", uid, " }\n");
  };
  const uid_t own = geteuid();
  const std::string path = WriteFile(identity("own", own));
  EXPECT_EQ(ParseOk({"--config=" + path}).access.identities.at(0).uid(), own) << "needs no other way to show it";
  EXPECT_THAT(ParseErrors({"--config=" + path, "--unix="}),
              HasSubstr("identities[0].uid is given and --unix is empty"));
  EXPECT_THAT(ParseErrors({"--config=" + WriteFile(identity("a", own) + identity("b", own))}),
              HasSubstr(absl::StrCat("identities[1].uid is ", own, ", as another one's is")));
  EXPECT_THAT(ParseErrors({"--config=" + WriteFile(identity("other", own + 1))}),
              HasSubstr(absl::StrCat("identities[0].uid is ", own + 1,
                                     "; the Unix socket lets in the server's own user, which is ", own)));
}

TEST_F(ConfigTest, IdentitiesAreChecked) {
  const std::string path = WriteFile(R"(token_file: "/t"
    identities { name: "" tenant: "t" permissions: READ }
    identities { name: "a" tenant: "" permissions: READ }
    identities { name: "a" tenant: "t" permissions: READ }
    identities { name: "b" tenant: "t t" permissions: READ }
    identities { name: "c" tenant: "t" }
    identities { name: "d" tenant: "t" permissions: PERMISSION_UNSPECIFIED }
    identities { name: "e" tenant: "t" permissions: [READ, 7] }
  )");
  const std::string errors = ParseErrors({"--config=" + path});
  for (const char* error :
       {"identities[0].name has 0 bytes; it must have 1 to 253", "identities[1].tenant has 0 bytes",
        "identities[2].name is 'a', as another one's is", "identities[3].tenant is 't t'; it may have",
        "identities[4].permissions must be one or more of READ, DATA and ADMIN", "identities[5].permissions must be",
        "identities[6].permissions must be"}) {
    EXPECT_THAT(errors, HasSubstr(error));
  }
}

TEST_F(ConfigTest, EveryMistakeIsReportedAtOnceWithNameAndValue) {
  const std::string errors =
      ParseErrors({"--threads=many", "--state-memory=5GB", "--nonsense=1", "stray", "--backend=tpu", "--listen=nowhere",
                   "--max-caches=0", "--max-message-size=3", "--default-session-ttl=2h", "--max-session-ttl=1h",
                   "--drain-timeout=-1s", "--log-level=loud", "--allow-insecure=maybe", "--device"});
  EXPECT_THAT(errors, HasSubstr("--threads is 'many'; it must be a whole number\n"));
  EXPECT_THAT(errors, HasSubstr("--state-memory is '5GB'; it must be a number of bytes, or"));
  EXPECT_THAT(errors, HasSubstr("there is no flag '--nonsense'\n"));
  EXPECT_THAT(errors, HasSubstr("'stray' is not a flag\n"));
  EXPECT_THAT(errors, HasSubstr("--backend is 'tpu'; it must be auto or cpu or cuda\n"));
  EXPECT_THAT(errors, HasSubstr("--listen is 'nowhere'; it must be HOST:PORT or [IPV6]:PORT\n"));
  EXPECT_THAT(errors, HasSubstr("--max-caches is 0; it must be from 1 to"));
  EXPECT_THAT(errors, HasSubstr("--max-message-size is 3; it must be from 1MiB to 1GiB\n"));
  EXPECT_THAT(errors, HasSubstr("--default-session-ttl is 2h; it must be from 100ms to 1h\n"));
  EXPECT_THAT(errors, HasSubstr("--drain-timeout is -1s; it must be from 0 to"));
  EXPECT_THAT(errors, HasSubstr("--log-level is 'loud'; it must be debug or info or warning or error\n"));
  EXPECT_THAT(errors, HasSubstr("--allow-insecure is 'maybe'; it must be true or false\n"));
  EXPECT_THAT(errors, HasSubstr("--device needs a value\n"));
}

TEST_F(ConfigTest, OfASizeBeyondAllMeasureNothingIsDerived) {
  for (const std::string flag : {"--max-message-size", "--staging-memory"}) {
    for (const std::string size : {"2305843009213693952", "4611686018427387904", "9223372036854775807"}) {
      const std::string errors = ParseErrors({absl::StrCat(flag, "=", size)});
      EXPECT_THAT(errors, HasSubstr(absl::StrCat("gdpcached: ", flag, " is ")));
      EXPECT_THAT(errors, Not(HasSubstr("--rpc-memory"))) << flag << " " << size;
    }
  }
}

TEST_F(ConfigTest, ValuesOutOfRangeAreRefused) {
  for (const std::string& argument : {std::string("--threads=-1"),
                                      std::string("--threads=4097"),
                                      std::string("--device=-1"),
                                      std::string("--device=4294967296"),
                                      std::string("--staging-memory=0"),
                                      std::string("--max-message-size=2GiB"),
                                      std::string("--max-sessions=-1"),
                                      std::string("--max-tenant-sessions=-1"),
                                      std::string("--max-tenant-slots=-1"),
                                      std::string("--max-calls=1"),
                                      std::string("--max-queue-wait=0s"),
                                      std::string("--max-connection-calls=0"),
                                      std::string("--max-connection-calls=4294967296"),
                                      std::string("--slow-call=-1s"),
                                      std::string("--admin=0.0.0.0:1"),
                                      std::string("--admin=nowhere"),
                                      std::string("--max-session-ttl=inf"),
                                      std::string("--drain-timeout=inf"),
                                      std::string("--default-session-ttl=0s"),
                                      std::string("--snapshot-device-memory=-1"),
                                      std::string("--snapshot-host-memory=9999999TiB"),
                                      std::string("--snapshot-disk-size=1KiB"),
                                      std::string("--snapshot-device-watermarks=80"),
                                      std::string("--snapshot-device-watermarks=80:90"),
                                      std::string("--snapshot-host-watermarks=101:90"),
                                      std::string("--snapshot-disk-watermarks=90:-1"),
                                      std::string("--snapshot-disk-watermarks=0:0"),
                                      std::string("--snapshot-write=sideways"),
                                      std::string("--snapshot-tenant-quota=many"),
                                      std::string("--snapshot-pin-budget=-5"),
                                      std::string("--max-pin-ttl=0s"),
                                      std::string("--snapshot-pending-timeout=1ms"),
                                      std::string("--snapshot-flush-timeout=-1s"),
                                      "--unix=/" + std::string(104, 'x')}) {
    const std::string name = argument.substr(0, argument.find('='));
    EXPECT_THAT(ParseErrors({argument}), HasSubstr("gdpcached: " + name)) << argument;
  }
}

TEST_F(ConfigTest, FlagsOfLibrariesAreNotOurs) {
  EXPECT_THAT(ParseErrors({"--flagfile=x"}), HasSubstr("there is no flag '--flagfile'"));
}

TEST_F(ConfigTest, HelpExplainsEveryFlagAndItsDefault) {
  for (const char* flag : {"--help", "-h"}) {
    const Invocation invocation = Parse({"--nonsense", flag});
    EXPECT_FALSE(invocation.config.has_value());
    EXPECT_EQ(invocation.exit_code, 0);
    EXPECT_EQ(invocation.errors, "");
    for (const FlagGroup& group : FlagGroups()) {
      for (const FlagEntry& entry : group.flags) {
        std::string name(entry.name);
        std::replace(name.begin(), name.end(), '_', '-');
        EXPECT_THAT(invocation.output, HasSubstr("  --" + name + (entry.value.empty() ? "\n" : "=")));
      }
    }
    EXPECT_THAT(invocation.output, HasSubstr("(default: 127.0.0.1:7411)"));
    EXPECT_THAT(invocation.output, HasSubstr("(default: 16MiB)"));
    EXPECT_THAT(invocation.output, HasSubstr("(default: auto)"));
  }
}

TEST_F(ConfigTest, VersionNamesTheReleaseAndWhatItWasMadeOf) {
  const Invocation invocation = Parse({"--version"});
  EXPECT_EQ(invocation.exit_code, 0);
  EXPECT_THAT(invocation.output,
              MatchesRegex("gdpcached [0-9]+\\.[0-9]+\\.[0-9]+\ncommit [0-9a-z-]+\n(GCC|Clang) "
                           "[0-9.]+\ngRPC [0-9.]+\nProtobuf [0-9.]+\nAbseil [0-9]+\nspdlog [0-9.]+\n"));
}

TEST_F(ConfigTest, AFileSetsAnyFlagAndTheCommandLineOverridesIt) {
  const std::string path = WriteFile(R"(
    # comment
    listen: "127.0.0.1:1"
    listen: "[::1]:2"
    unix: ""
    backend: "cpu"
    device: 1
    threads: 3
    state_memory: "2GiB"
    staging_memory: "128MiB"
    max_message_size: "4MiB"
    max_caches: 9
    max_sessions: 10
    max_tenant_sessions: 4
    max_tenant_slots: 5
    max_calls: 6
    max_queue_wait: "7s"
    max_connection_calls: 8
    slow_call: "9s"
    admin: "127.0.0.1:10"
    default_session_ttl: "5s"
    max_session_ttl: "10s"
    snapshot_device_memory: "1GiB"
    snapshot_host_memory: "2GiB"
    snapshot_directory: "/d"
    snapshot_disk_size: "3GiB"
    snapshot_device_watermarks: "91:81"
    snapshot_host_watermarks: "92:82"
    snapshot_disk_watermarks: "93:83"
    snapshot_write: "back"
    snapshot_tenant_quota: "4GiB"
    snapshot_pin_budget: "auto"
    max_pin_ttl: "2h"
    snapshot_pending_timeout: "3s"
    snapshot_flush_timeout: "4s"
    drain_timeout: "1s"
    log_level: "debug"
    log_format: "json"
    allow_insecure: true
    caches { name: "model" geometry { layers: 2 slots: 4 } ephemeral: true }
  )");
  const Config config = ParseOk({"--threads=5", "--config", path});
  EXPECT_THAT(config.listen, ElementsAre("127.0.0.1:1", "[::1]:2"));
  EXPECT_EQ(config.unix_path, "");
  EXPECT_EQ(config.backend.choice, kernels::BackendChoice::kCpu);
  EXPECT_EQ(config.backend.cuda_device, 1);
  EXPECT_EQ(config.backend.cpu_threads, 5) << "the flag's";
  EXPECT_EQ(config.state_memory_bytes, std::int64_t{2} << 30);
  EXPECT_EQ(config.staging_memory_bytes, 128 << 20);
  EXPECT_EQ(config.max_message_bytes, 4 << 20);
  EXPECT_EQ(config.max_caches, 9);
  EXPECT_EQ(config.max_sessions, 10);
  EXPECT_EQ(config.max_tenant_sessions, 4);
  EXPECT_EQ(config.max_tenant_slots, 5);
  EXPECT_EQ(config.max_calls, 6);
  EXPECT_EQ(config.max_queue_wait, absl::Seconds(7));
  EXPECT_EQ(config.max_connection_calls, 8);
  EXPECT_EQ(config.slow_call, absl::Seconds(9));
  EXPECT_EQ(config.admin, "127.0.0.1:10");
  EXPECT_EQ(config.default_session_ttl, absl::Seconds(5));
  EXPECT_EQ(config.max_session_ttl, absl::Seconds(10));
  EXPECT_EQ(config.snapshots.device_bytes, std::int64_t{1} << 30);
  EXPECT_EQ(config.snapshots.host_bytes, std::int64_t{2} << 30);
  EXPECT_EQ(config.snapshots.directory, "/d");
  EXPECT_EQ(config.snapshots.disk_bytes, std::int64_t{3} << 30);
  EXPECT_EQ(config.snapshots.device_watermarks.high, 91);
  EXPECT_EQ(config.snapshots.host_watermarks.high, 92);
  EXPECT_EQ(config.snapshots.disk_watermarks.low, 83);
  EXPECT_EQ(config.snapshots.write_policy, cache::WritePolicy::kWriteBack);
  EXPECT_EQ(config.snapshots.tenant_bytes, std::int64_t{4} << 30);
  EXPECT_EQ(config.snapshots.pin_bytes, std::nullopt);
  EXPECT_EQ(config.snapshots.max_pin_ttl, absl::Hours(2));
  EXPECT_EQ(config.snapshots.pending_timeout, absl::Seconds(3));
  EXPECT_EQ(config.snapshots.flush_timeout, absl::Seconds(4));
  EXPECT_EQ(config.drain_timeout, absl::Seconds(1));
  EXPECT_EQ(config.log.level, observe::LogLevel::kDebug);
  EXPECT_EQ(config.log.format, observe::LogFormat::kJson);
  ASSERT_EQ(config.caches.size(), 1u);
  EXPECT_EQ(config.caches[0].name(), "model");
  EXPECT_EQ(config.caches[0].geometry().slots(), 4);
}

TEST_F(ConfigTest, MistakesInAFileAreReportedWithThoseOfTheCommandLine) {
  const std::string values = WriteFile("state_memory: \"lots\"\nmax_caches: -3\n");
  std::string errors = ParseErrors({"--config=" + values, "--threads=x"});
  EXPECT_THAT(errors, HasSubstr("state_memory in " + values + " is 'lots'; it must be"));
  EXPECT_THAT(errors, HasSubstr("gdpcached: max_caches in " + values + " is -3; it must be from 1"));
  EXPECT_THAT(errors, HasSubstr("--threads is 'x'"));

  const std::string syntax = WriteFile("threads: 1\ncolour: \"blue\"\nthreads: \"two\"\n");
  errors = ParseErrors({"--config=" + syntax});
  EXPECT_THAT(errors, HasSubstr(syntax + ":2:"));
  EXPECT_THAT(errors, HasSubstr("colour"));
}

TEST_F(ConfigTest, AFileThatCannotBeReadIsAMistake) {
  EXPECT_THAT(ParseErrors({"--config=" + directory_.path() + "/absent"}), HasSubstr("No such file or directory"));
  EXPECT_THAT(ParseErrors({"--config=" + directory_.path()}), HasSubstr("is not a regular file"));
}

TEST_F(ConfigTest, AFileThatOthersMayChangeIsAMistake) {
  const std::string path = WriteFile("threads: 2\n");
  const std::string link = directory_.path() + "/link";  // as Kubernetes mounts configuration
  ASSERT_EQ(symlink(path.c_str(), link.c_str()), 0);
  for (const mode_t mode : {0400, 0644, 0664, 0660}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    EXPECT_EQ(ParseOk({"--config=" + link}).backend.cpu_threads, 2) << std::oct << mode;
  }
  ASSERT_EQ(chmod(path.c_str(), 0666), 0);
  EXPECT_THAT(ParseErrors({"--config=" + link}),
              HasSubstr("--config: the configuration file '" + link + "' is not safe: its mode is 0666"));
  if (geteuid() != 0) return;  // only root can give files away
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  ASSERT_EQ(chown(path.c_str(), 1'000, 1'000), 0);
  EXPECT_THAT(ParseErrors({"--config=" + link}), HasSubstr("it belongs to user 1000"));
}

}  // namespace
}  // namespace gdpcache::config
