# Everything the project uses, from the distribution's packages.

find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)
find_package(absl REQUIRED CONFIG)
find_package(gRPC REQUIRED CONFIG)
find_package(OpenSSL REQUIRED)
find_package(spdlog REQUIRED CONFIG)
find_package(hwy REQUIRED CONFIG)
find_package(nlohmann_json REQUIRED CONFIG)
find_package(CLI11 REQUIRED CONFIG)
find_package(prometheus-cpp REQUIRED CONFIG)
# The distributions package xxHash without a CMake configuration; the target's name is that of xxHash's own.
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
find_library(XXHASH_LIBRARY xxhash REQUIRED)
add_library(xxHash::xxhash UNKNOWN IMPORTED)
set_target_properties(xxHash::xxhash PROPERTIES
  IMPORTED_LOCATION ${XXHASH_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${XXHASH_INCLUDE_DIR})
if(GDPCACHE_BUILD_TESTS)
  find_package(GTest REQUIRED CONFIG)
endif()
if(GDPCACHE_BUILD_BENCHMARKS)
  find_package(benchmark REQUIRED CONFIG)
  set(BLA_VENDOR OpenBLAS)
  find_package(BLAS REQUIRED) # the yardstick of the kernel benchmark
endif()

find_program(GDPCACHE_GRPC_PLUGIN grpc_cpp_plugin REQUIRED)

if(NOT GDPCACHE_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(GDPCACHE_HAVE_CUDA ON)
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES OFF) # kernels/cuda sets them per library
    endif()
    enable_language(CUDA)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
      # Debian 12's CMake stumbles over the absence of a library that CUDA 13 no longer has; nothing here uses it.
      add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
    endif()
    find_package(CUDAToolkit REQUIRED)
  elseif(GDPCACHE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "GDPCACHE_CUDA is ON and no nvcc was found (looked in PATH and CUDACXX)")
  endif()
endif()
