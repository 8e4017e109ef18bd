#ifndef GDPCACHE_SERVER_GRPC_LOG_H_
#define GDPCACHE_SERVER_GRPC_LOG_H_

namespace gdpcache {

/// While it lives, what gRPC and Protobuf have to say goes to the server's log, in its format, ten lines a second at
/// most: clients cause some of it (handshakes that fail, strings that are no UTF-8). Before that, and with later
/// versions of them, which log through Abseil, it goes to stderr as it is.
class GrpcLog {
 public:
  GrpcLog();
  GrpcLog(const GrpcLog&) = delete;
  GrpcLog& operator=(const GrpcLog&) = delete;
  ~GrpcLog();
};

}  // namespace gdpcache

#endif  // GDPCACHE_SERVER_GRPC_LOG_H_
