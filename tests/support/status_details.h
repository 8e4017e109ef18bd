#ifndef GDPCACHE_TESTS_SUPPORT_STATUS_DETAILS_H_
#define GDPCACHE_TESTS_SUPPORT_STATUS_DETAILS_H_

#include <grpcpp/support/status.h>

#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"

namespace gdpcache::test {

/// The one detail of an error, which must be a `Message`.
template <typename Message>
Message DetailOf(const grpc::Status& status) {
  google::rpc::Status wire;
  EXPECT_TRUE(wire.ParseFromString(status.error_details()));
  EXPECT_EQ(wire.code(), status.error_code());
  EXPECT_EQ(wire.message(), status.error_message());
  EXPECT_EQ(wire.details_size(), 1) << status.error_message();
  Message message;
  if (wire.details_size() == 1) {
    EXPECT_TRUE(wire.details(0).UnpackTo(&message)) << wire.details(0).type_url();
  }
  return message;
}

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_STATUS_DETAILS_H_
