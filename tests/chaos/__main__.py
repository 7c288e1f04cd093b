"""Runs cells of the matrix under random faults; exit status 1 if one of them failed."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import tempfile
from pathlib import Path

from ..tools import starts
from .cases import Case, find
from .faults import FAULTS
from .run import Plan, Result, run


def main() -> int:
    """Runs what the arguments ask for."""
    arguments = _arguments()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    starts.start_fast()
    cases = find(arguments.case)
    if arguments.list:
        print("\n".join(each.name for each in cases))
        for each in FAULTS.values():
            print(each.name)
        return 0
    if arguments.only:
        cases = [case for case in cases if any(FAULTS[each].fits(case) for each in arguments.only)]
    if not cases:
        print(f"no cell has all of {arguments.case}, and these faults")
        return 2
    first = arguments.seed if arguments.seed is not None else random.randrange(10**6)
    results: list[Result] = []
    for seed in range(first, first + arguments.runs):
        drawn = _cell(cases, seed)
        plan = Plan(drawn, seed, arguments.faults, tuple(arguments.only))
        print(f"{drawn.name} seed {seed}")
        if arguments.home is not None:
            arguments.home.mkdir(parents=True, exist_ok=True)
        home = Path(tempfile.mkdtemp(prefix=f"{drawn.name}-{seed}-", dir=arguments.home))
        result = asyncio.run(run(plan, home))
        with arguments.results.open("a") as file:
            file.write(json.dumps(result.as_dict()) + "\n")
        results.append(result)
        print(result.told())
        if result.failures:
            print(f"what is left of it: {home}")
    faults = sum(len(each.faults) for each in results)
    failed = sum(bool(each.failures) for each in results)
    print(f"{len(results)} runs, {faults} faults, {failed} runs failed")
    return 1 if failed else 0


def _cell(cases: list[Case], seed: int) -> Case:
    """That of a seed: as many seeds as there are cells, one after the other, have each once."""
    turn, place = divmod(seed, len(cases))
    return random.Random(f"cells {turn}").sample(cases, len(cases))[place]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the first run; the next ones count up")
    parser.add_argument("--faults", type=int, default=40, help="of each run (%(default)s)")
    parser.add_argument("--runs", type=int, default=1, help="how many (%(default)s)")
    parser.add_argument(
        "--case", default="", help="words of cells, such as streams,limits,1; drawn from all"
    )
    parser.add_argument("--only", action="append", default=[], metavar="FAULT", choices=FAULTS)
    parser.add_argument("--results", type=Path, default=Path("chaos-results.jsonl"))
    parser.add_argument("--home", type=Path, help="where the files of failed runs stay")
    parser.add_argument("--list", action="store_true", help="name cells and faults")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
