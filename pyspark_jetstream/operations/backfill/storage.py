"""
One directory on any file system that Spark can write to, through Hadoop's FileSystem in the JVM.

Driver and executors need not share a disk: whatever Spark reaches by the path (`file:`, `hdfs:`,
`s3a:`) is listed, renamed and read here by the same path. Tested on `file:`.

What is relied on: a file that is closed and renamed is there as a whole, under its new name only.
HDFS and local disks promise that. An object store copies instead, which is slower, and a rename
that is cut off may leave two files; only one of them is ever named in the journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .faults import StorageError, from_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Hadoop(NamedTuple):
    """Hadoop's file systems, in a JVM, by a configuration."""

    jvm: Any
    configuration: Any

    @classmethod
    def of(cls, spark: SparkSession) -> Hadoop:
        """The session's."""
        context: Any = spark._jsc
        return cls(spark._jvm, context.hadoopConfiguration())


class Storage:
    """Files below one directory, by their paths relative to it."""

    def __init__(self, hadoop: Hadoop, root: str) -> None:
        with from_java(root):
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
        with from_java(self.path(directory)):
            path = self._path(directory)
            if not self._files.exists(path):
                return []
            return sorted(
                str(status.getPath().getName()) for status in self._files.listStatus(path)
            )

    def files(self, directory: str = "") -> dict[str, int]:
        """The bytes of all files below a directory, by their paths; nothing where there is none."""
        with from_java(self.path(directory)):
            path = self._path(directory)
            if not self._files.exists(path):
                return {}
            files, listing = {}, self._files.listFiles(path, True)
            while listing.hasNext():
                status = listing.next()
                name = str(status.getPath().toString())[len(self.root) + 1 :]
                files[name] = int(status.getLen())
            return files

    def read(self, name: str) -> bytes | None:
        """A file's content, None where there is none."""
        with from_java(self.path(name)):
            path = self._path(name)
            if not self._files.exists(path):
                return None
            stream = self._files.open(path)
            try:
                return bytes(self._io.toByteArray(stream))
            finally:
                stream.close()

    def write(self, name: str, content: bytes) -> None:
        """Writes a file; others may see half of it, so `move` gives it the name they look for."""
        with from_java(self.path(name)):
            stream = self._files.create(self._path(name), True)
            try:
                stream.write(bytearray(content))
            finally:
                stream.close()

    def move(self, name: str, to: str) -> None:
        """
        Gives a file another name, below directories that are made.

        Raises:
            StorageError: There is a file of that name, or it cannot be moved.
        """
        with from_java(self.path(to)):
            old, new = self._path(name), self._path(to)
            self._files.mkdirs(new.getParent())
            # A local disk would replace it; HDFS refuses in the rename itself.
            free = self._files.exists(old) and not self._files.exists(new)
            if not free or not self._files.rename(old, new):
                raise StorageError(
                    f"{self.path(to)}: cannot be written, or is there already; is another run of"
                    " this backfill at work?"
                )

    def delete(self, name: str) -> None:
        """Removes a file or a directory with all below it; fine when it is not there."""
        with from_java(self.path(name)):
            self._files.delete(self._path(name), True)

    def _path(self, name: str) -> Any:
        return self._paths(self.path(name))
