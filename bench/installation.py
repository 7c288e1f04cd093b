"""An installation of Spark as conf/compile_pyspark.py leaves it, made of links to the real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import copyfile
from typing import Final

import pyspark

_COMPILER: Final = Path(__file__).parents[1] / "conf" / "compile_pyspark.py"


def compiled_installation(folder: Path) -> Path:
    """What `SPARK_HOME` names, below `folder`; the installation it links to stays as it is."""
    real, home = Path(pyspark.__file__).parent, folder / "spark"
    home.mkdir()
    for entry in real.iterdir():
        if entry.name != "python":
            (home / entry.name).symlink_to(entry)
    libraries = home / "python" / "lib"
    libraries.mkdir(parents=True)
    for entry in (real / "python" / "lib").iterdir():
        if entry.name == "pyspark.zip":
            copyfile(entry, libraries / entry.name)
        else:
            (libraries / entry.name).symlink_to(entry)
    command = [sys.executable, str(_COMPILER), str(libraries / "pyspark.zip")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return home
