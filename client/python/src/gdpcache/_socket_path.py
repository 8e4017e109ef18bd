"""Whose Unix socket it is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_ADVICE = "use a directory that nobody else may write in"


def _is_shared(mode: int) -> bool:
    """As /tmp: everybody may put things there, and nobody may take away what is another's."""
    return bool(mode & stat.S_IWOTH and mode & stat.S_ISVTX)


def check(path: str) -> None:
    """PermissionError where another user may have put this socket there, or still could.

    What lies in a directory like /tmp must belong to this user, to root or to the directory's owner (the rule of
    Linux's fs.protected_symlinks), and what lies in that must not be open to everybody in turn. The C++ library does
    the same.
    """
    absolute = os.path.abspath(path)
    for form in dict.fromkeys((absolute, os.path.realpath(absolute))):  # and where links lead
        _check_components(Path(form))


def _check_components(path: Path) -> None:
    in_shared = False  # some directory above is shared
    above: os.stat_result | None = None
    for here in (*reversed(path.parents), path):
        try:
            info = here.lstat()
        except OSError:
            if above is not None and _is_shared(above.st_mode):
                raise PermissionError(f"{here} is not there, and everybody may put it there; {_ADVICE}") from None
            return
        if above is not None and _is_shared(above.st_mode):
            if info.st_uid not in (os.geteuid(), 0, above.st_uid):
                raise PermissionError(
                    f"{here} belongs to the user {info.st_uid}, not to this one ({os.geteuid()}), and everybody may put"
                    f" it there; {_ADVICE}"
                )
            in_shared = True
        if stat.S_ISLNK(info.st_mode):
            try:
                info = here.stat()
            except OSError:  # it leads nowhere
                return
        if in_shared and stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_IWOTH and not _is_shared(info.st_mode):
            raise PermissionError(f"everybody may write in {here}; {_ADVICE}")
        above = info
