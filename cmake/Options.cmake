# Language, warnings, sanitizers and the compiler cache, for every target of the project.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

# Usage requirements of every target of ours (generated code gets gdpcache_build_flags only).
add_library(gdpcache_build_flags INTERFACE)
target_include_directories(gdpcache_build_flags INTERFACE ${PROJECT_SOURCE_DIR})
set(GDPCACHE_SANITIZER_FLAG "") # what the linker is told, also that of whoever links the installed library
if(GDPCACHE_SANITIZER STREQUAL "address")
  set(GDPCACHE_SANITIZER_FLAG -fsanitize=address,undefined)
  target_compile_options(gdpcache_build_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:${GDPCACHE_SANITIZER_FLAG};-fno-sanitize-recover=all;-fno-omit-frame-pointer>")
elseif(GDPCACHE_SANITIZER STREQUAL "thread")
  set(GDPCACHE_SANITIZER_FLAG -fsanitize=thread)
  target_compile_options(gdpcache_build_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:${GDPCACHE_SANITIZER_FLAG};-fno-omit-frame-pointer>")
elseif(GDPCACHE_SANITIZER)
  message(FATAL_ERROR "GDPCACHE_SANITIZER is '${GDPCACHE_SANITIZER}'; it may be empty, address or thread")
endif()
target_link_options(gdpcache_build_flags INTERFACE ${GDPCACHE_SANITIZER_FLAG})
if(GDPCACHE_BUILD_FUZZERS)
  target_compile_options(gdpcache_build_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

add_library(gdpcache_flags INTERFACE)
target_link_libraries(gdpcache_flags INTERFACE gdpcache_build_flags)
target_compile_options(gdpcache_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor;-Woverloaded-virtual;-Werror>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees overlapping copies inside std::string's operator+ (GCC bug 105651).
  target_compile_options(gdpcache_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13 AND
   CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  # GCC 13 sees the big numbers of fmt 9, with which spdlog formats, copied beyond their end.
  target_compile_options(gdpcache_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds;-Wno-stringop-overflow>")
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND GDPCACHE_SANITIZER STREQUAL "address")
  # GCC then no longer sees that std::regex sets its functions (GCC bug 105562).
  target_compile_options(gdpcache_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
endif()
