# SPDX-License-Identifier: Apache-2.0
"""Hashes of files, for identities: of content, never of a path.

A hash is kept as long as the file's times, size and inode stay the same, so that asking again costs
microseconds. A shared library that was replaced since it was loaded has no hash: what runs is no
longer what the file says.
"""

import functools
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

# A file that was written less than this ago may be written again with the same times.
_SETTLED_NS = 2_000_000_000

_Stamp = tuple[int, int, int, int]


class UnknownIdentity(Exception):
    """Something that decides a result can't be known; the text says what it is."""


_digests: dict[str, tuple[_Stamp, str]] = {}


def file_digest(path: str) -> str:
    """Return a hash of a file's content.

    Raises:
        UnknownIdentity: The file can't be read.
    """
    try:
        stamp = _stamp(path)
        kept = _digests.get(path)
        if kept is not None and kept[0] == stamp:
            return kept[1]
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise UnknownIdentity(f"the file {path}, which can't be read ({error.strerror})") from error
    if time.time_ns() - max(stamp[:2]) > _SETTLED_NS:
        _digests[path] = stamp, digest
    return digest


def library_digest(path: str) -> str:
    """Return a hash of the content of a shared library.

    Raises:
        UnknownIdentity: The file can't be read, or isn't the one that this process has loaded.
    """
    kept = _digests.get(path)
    digest = file_digest(path)
    if kept is None or kept is not _digests.get(path):
        inodes = {inode for mapped, inode in _mapped() if mapped == os.path.realpath(path)}
        if inodes and os.stat(path).st_ino not in inodes:
            _digests.pop(path, None)
            raise UnknownIdentity(f"the library {path}, which was replaced since it was loaded")
    return digest


def libraries_that_mention(text: str) -> list[str]:
    """Return the loaded libraries that hold a text, those of torch and of the system left out."""
    needle = text.encode()
    paths = {path for path, _ in _mapped() if not path.startswith(_not_ours())}
    return sorted(path for path in paths if _holds(path, needle))


_searched: dict[tuple[str, bytes], tuple[_Stamp, bool]] = {}


def _holds(path: str, needle: bytes) -> bool:
    try:
        stamp = _stamp(path)
        kept = _searched.get((path, needle))
        if kept is None or kept[0] != stamp:
            kept = stamp, needle in Path(path).read_bytes()
            _searched[path, needle] = kept
    except OSError:
        return False
    return kept[1]


def _stamp(path: str) -> _Stamp:
    facts = os.stat(path)
    return facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, facts.st_ino


def _mapped() -> Iterator[tuple[str, int]]:
    """Yield path and inode of each shared library in the memory of this process."""
    try:
        with open("/proc/self/maps") as maps:
            lines = list(maps)
    except OSError:  # not Linux
        return
    for line in lines:
        fields = line.rstrip("\n").split(maxsplit=5)
        if len(fields) == 6 and ".so" in fields[5]:
            yield fields[5].removesuffix(" (deleted)"), int(fields[4])


@functools.cache
def _not_ours() -> tuple[str, ...]:
    import sysconfig

    import torch

    folders = ["/lib", "/usr/lib", os.path.dirname(torch.__file__)]
    folders.append(os.path.join(sysconfig.get_path("platstdlib"), "lib-dynload"))
    return tuple(os.path.realpath(folder) + os.sep for folder in folders)
