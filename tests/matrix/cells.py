"""What is run: ways to deploy, versions of Spark, Python and Java."""

from __future__ import annotations

from dataclasses import dataclass

PYTHONS = ("3.11", "3.12", "3.13")
SPARKS = ("4.3.0", "4.2.1", "4.1.4")
JAVAS = ("17", "21", "25")

DEPLOYMENTS = {
    "local": "`local[*]`, no pandas",
    "killed": "`local[2]`, the driver killed four times with `kill -9`",
    "standalone": "standalone master and two workers, `spark-submit`",
    "local-cluster": "`local-cluster`, two executors, `spark-submit`",
    "archives": "`--archives` with a packed environment, on two standalone workers",
    "py-files": "`--py-files` with a zip and `register()`, on two standalone workers",
    "py-files-wheel": "`--py-files` with a wheel: `register()` refuses it",
    "connect": "Spark Connect, its server started by the program (`local`)",
    "connect-server": "Spark Connect to a server of its own, the client `pyspark-client` alone",
    "pipelines": "Declarative Pipelines (`spark-pipelines run`)",
}
"""Each in the words of the table."""


@dataclass(frozen=True)
class Cell:
    """One row of the table."""

    deployment: str
    spark: str
    python: str
    java: str

    @property
    def name(self) -> str:
        return f"{self.deployment}/spark-{self.spark}/python-{self.python}/java-{self.java}"

    @property
    def words(self) -> str:
        return DEPLOYMENTS[self.deployment]


def _cells() -> list[Cell]:
    """Every deployment with each Spark; every Python and Java with each Spark on one machine."""
    found = [Cell("local", s, p, JAVAS[0]) for s in SPARKS for p in PYTHONS]
    found += [Cell("local", s, PYTHONS[0], j) for s in SPARKS for j in JAVAS[1:]]
    found.append(Cell("local", SPARKS[0], PYTHONS[-1], JAVAS[-1]))
    found += [
        Cell(name, s, PYTHONS[0], JAVAS[0]) for name in DEPLOYMENTS if name != "local"
        for s in SPARKS
    ]  # fmt: skip
    return found


CELLS = _cells()
