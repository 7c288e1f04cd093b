"""Files below one directory, on any file system that Hadoop's FileSystem reaches in a JVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class StorageError(Exception):
    """A file or directory could not be read."""


class Hadoop(NamedTuple):
    """Hadoop's file systems, in a JVM, by a configuration."""

    jvm: Any
    configuration: Any


class Storage:
    """Files below one directory, by their paths relative to it."""

    def __init__(self, hadoop: Hadoop, root: str) -> None:
        with _from_java(root):
            self._paths = hadoop.jvm.org.apache.hadoop.fs.Path
            self._io = hadoop.jvm.org.apache.commons.io.IOUtils
            path = self._paths(root)
            self._files = path.getFileSystem(hadoop.configuration)
            self.root: str = self._files.makeQualified(path).toString().rstrip("/")

    def __repr__(self) -> str:
        return f"<Storage {self.root}>"

    def path(self, name: str) -> str:
        """The whole path, as Spark takes it."""
        return f"{self.root}/{name}" if name else self.root

    def names(self, directory: str = "") -> list[str]:
        """Names in a directory itself; none where there is no directory."""
        with _from_java(self.path(directory)):
            path = self._paths(self.path(directory))
            if not self._files.exists(path):
                return []
            return sorted(
                str(status.getPath().getName()) for status in self._files.listStatus(path)
            )

    def read(self, name: str) -> bytes | None:
        """A file's content, None where there is none."""
        with _from_java(self.path(name)):
            path = self._paths(self.path(name))
            if not self._files.exists(path):
                return None
            stream = self._files.open(path)
            try:
                return bytes(self._io.toByteArray(stream))
            finally:
                stream.close()


@contextmanager
def _from_java(what: str) -> Iterator[None]:
    """Errors of the JVM's file systems, in one line."""
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

    try:
        yield
    except Py4JError as error:
        is_java = isinstance(error, Py4JJavaError)
        text = str(error.java_exception.toString() if is_java else error) or type(error).__name__
        raise StorageError(f"{what}: {text.splitlines()[0]}") from error
