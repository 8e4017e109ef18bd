#ifndef GDPCACHE_SERVER_ACCEPT_GUARD_H_
#define GDPCACHE_SERVER_ACCEPT_GUARD_H_

namespace gdpcache {

/// From now on who connects to a Unix socket as another user than the process's, or as root, is turned away, whatever
/// the file's mode. Thread-safe.
void LetInOwnUserAlone();

}  // namespace gdpcache

#endif  // GDPCACHE_SERVER_ACCEPT_GUARD_H_
