// A client to be killed in the middle of a snapshot's transfer or while it watches. Prints "half" when it is there, and
// does nothing more.
//
//   hanging_snapshot_client read|write|watch ADDRESS KEY FILE
//
// The cache is "model"; FILE is what `write` sends half of.

#include <grpcpp/client_context.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "gdpcache/v1/state_cache.grpc.pb.h"
#include "tests/support/file_content.h"
#include "tests/support/server_process.h"

namespace {

void Hang() {
  std::puts("half");
  std::fflush(stdout);
  while (true) pause();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const std::string mode = argv[1];
  const auto stub = gdpcache::v1::StateCache::NewStub(gdpcache::test::Connect(argv[2]));
  grpc::ClientContext context;
  if (mode == "read") {
    gdpcache::v1::ReadSnapshotRequest request;
    request.set_cache("model");
    request.set_key(argv[3]);
    const auto stream = stub->ReadSnapshot(&context, request);
    gdpcache::v1::ReadSnapshotResponse response;
    if (stream->Read(&response)) Hang();
  } else if (mode == "write") {
    const std::string bytes = gdpcache::test::FileContent(argv[4]);
    gdpcache::v1::WriteSnapshotResponse response;
    const auto stream = stub->WriteSnapshot(&context, &response);
    gdpcache::v1::WriteSnapshotRequest frame;
    frame.mutable_header()->set_cache("model");
    frame.mutable_header()->set_size(static_cast<std::int64_t>(bytes.size()));
    bool sent = stream->Write(frame);
    for (std::size_t n = 0; sent && n < bytes.size() / 2; n += 1 << 20) {
      frame.set_payload(bytes.substr(n, 1 << 20));
      sent = stream->Write(frame);
    }
    if (sent) Hang();
  } else {
    gdpcache::v1::WatchSnapshotsRequest request;
    request.set_cache("model");
    request.set_existing(true);
    const auto stream = stub->WatchSnapshots(&context, request);
    gdpcache::v1::WatchSnapshotsResponse response;
    if (stream->Read(&response)) Hang();
  }
  return 1;
}
