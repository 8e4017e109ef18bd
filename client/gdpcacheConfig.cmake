# The client library of gdpcache: gdpcache::client.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(Protobuf)
find_dependency(absl CONFIG)
find_dependency(gRPC CONFIG)
include(${CMAKE_CURRENT_LIST_DIR}/gdpcacheTargets.cmake)
