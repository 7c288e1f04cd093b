#!/usr/bin/env python3
"""
Puts compiled modules into Spark's own `pyspark.zip`, beside their sources.

    $PYSPARK_PYTHON conf/compile_pyspark.py [path of pyspark.zip]

Spark's Python processes import PySpark from that archive, which holds sources only, and Python
keeps no compiled copy of what it imports from an archive: each new process compiles PySpark again,
for about 0.4 s of CPU. Run this once in every installation or image, with the Python of the
workers; another Python finds nothing of its own in it, and compiles as before. Without an argument
it takes the archive of `SPARK_HOME` or of the PySpark that is installed. The archive is replaced at
once, so processes that start meanwhile see the old one or the new one. Processes that run know by
number where each source stands in it, and import more later: so what is compiled comes behind, and
what was there stays in its place. It has 16 MB then: what is compiled is stored as it is, since
unpacking it took each process 30 ms more.

Risk: who patches a module in the archive afterwards has to run this again; Spark's own upgrades
replace the archive.
"""

from __future__ import annotations

import os
import py_compile
import shutil
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory


def installed() -> Path:
    """The archive of this host's Spark."""
    home = os.environ.get("SPARK_HOME")
    if home is None:
        found = find_spec("pyspark")
        if found is None or found.origin is None:
            sys.exit("neither SPARK_HOME nor pyspark is there; name the archive")
        home = str(Path(found.origin).parent)
    return Path(home, "python", "lib", "pyspark.zip")


def compile_into(archive: Path) -> int:
    """Puts each source's compiled module behind what the archive has; returns how many."""
    draft = archive.with_suffix(".draft")
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    count = 0
    shutil.copyfile(archive, draft)
    with zipfile.ZipFile(draft, "a") as new, TemporaryDirectory() as scratch:
        for entry in new.infolist().copy():
            if not entry.filename.endswith(".py") or "/tests/" in entry.filename:
                continue
            content = new.read(entry)
            source, made = Path(scratch, "source.py"), Path(scratch, "made.pyc")
            source.write_bytes(content)
            shown = f"{archive}/{entry.filename}"
            py_compile.compile(str(source), str(made), shown, True, invalidation_mode=unchecked)
            count += 1
            there = new.NameToInfo.get(f"{entry.filename}c")
            if there is not None:
                if new.read(there) == made.read_bytes():
                    continue
                new.filelist.remove(there)  # of the list; its bytes stay
                del new.NameToInfo[there.filename]
            new.write(made, f"{entry.filename}c", zipfile.ZIP_STORED)  # each process reads it
    draft.chmod(archive.stat().st_mode)
    draft.replace(archive)
    return count


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else installed()
    sys.stdout.write(f"{compile_into(where)} modules compiled into {where}\n")
