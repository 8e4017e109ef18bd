# Which commit is built, for the server to tell: GDPCACHE_COMMIT, to be given where the source is no git checkout.

if(NOT GDPCACHE_COMMIT)
  set(GDPCACHE_COMMIT unknown)
  find_package(Git QUIET)
  if(GIT_FOUND AND EXISTS ${PROJECT_SOURCE_DIR}/.git)
    execute_process(COMMAND ${GIT_EXECUTABLE} describe --always --dirty --abbrev=12 --exclude=*
      WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE GDPCACHE_COMMIT
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    # Every commit and checkout writes there; the next build then configures anew.
    execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --path-format=absolute --git-path logs/HEAD
      WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE git_log OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(EXISTS "${git_log}")
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${git_log})
    endif()
  endif()
  if(NOT GDPCACHE_COMMIT)
    set(GDPCACHE_COMMIT unknown)
  endif()
endif()
