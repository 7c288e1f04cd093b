"""Compiled modules in an archive, as the guide to deployment packs it (`--py-files`)."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from py_compile import PycInvalidationMode

from ..kits.places import ROOT

IMPORTS = """
import zipimport

def refused(pathname, source):
    raise AssertionError(f"{pathname} is compiled anew")

zipimport._compile_source = refused
import pyspark_jetstream.errors
import pyspark_jetstream.options
print(pyspark_jetstream.options.__file__)
"""


def test_python_takes_the_compiled_modules_of_an_archive(tmp_path: Path) -> None:
    """Those beside the sources, whatever the archive says of their times."""
    package = "pyspark_jetstream"
    shutil.copytree(
        ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
    )
    unchecked = PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(
        tmp_path / package, quiet=2, legacy=True, invalidation_mode=unchecked, maxlevels=9
    )
    archive = tmp_path / f"{package}.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for module in sorted((tmp_path / package).rglob("*.py*")):
            file.write(module, module.relative_to(tmp_path))

    done = subprocess.run(
        [sys.executable, "-P", "-c", IMPORTS],
        env={**os.environ, "PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(archive / package / "options.pyc")
