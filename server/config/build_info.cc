#include "server/config/build_info.h"

#include <google/protobuf/stubs/common.h>
#include <grpcpp/grpcpp.h>
#include <spdlog/version.h>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gdpcache::config {
namespace {

std::string Compiler() {
#if defined(__clang__)
  return absl::StrCat("Clang ", __clang_major__, ".", __clang_minor__, ".", __clang_patchlevel__);
#else
  return absl::StrCat("GCC ", __GNUC__, ".", __GNUC_MINOR__, ".", __GNUC_PATCHLEVEL__);
#endif
}

}  // namespace

BuildInfo ThisBuild() {
  return {.version = GDPCACHE_VERSION,
          .commit = GDPCACHE_COMMIT,
          .compiler = Compiler(),
          .libraries = {absl::StrCat("gRPC ", grpc::Version()),
                        absl::StrCat("Protobuf ", google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION)),
                        absl::StrCat("Abseil ", ABSL_LTS_RELEASE_VERSION),
                        absl::StrCat("spdlog ", SPDLOG_VER_MAJOR, ".", SPDLOG_VER_MINOR, ".", SPDLOG_VER_PATCH)}};
}

std::string VersionText() {
  const BuildInfo build = ThisBuild();
  return absl::StrCat("gdpcached ", build.version, "\ncommit ", build.commit, "\n", build.compiler, "\n",
                      absl::StrJoin(build.libraries, "\n"), "\n");
}

}  // namespace gdpcache::config
