"""
Runs the fuzzer: `python -m tests.fuzz --frames 1e6 --seed 7 --kinds deliveries replies`.

A round makes a pool of frames, long sound streams of them and short broken ones; its seed is that
of the run, the kind and a number. A case that fails is made small and written as a file, which
`--case` runs again.
"""

from __future__ import annotations

import argparse
import logging
import random
import signal
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import FrameType

from . import KINDS
from .cases import Case, Fault, Sound, shrunk

_SHARES = {"deliveries": 62, "acks": 20, "replies": 15, "frames": 3, "lanes": 1, "api": 1}
"""Of the frames, in percent."""

_SOUND = {"deliveries": 12, "acks": 5, "replies": 50, "frames": 10, "lanes": 1, "api": 1}
_BROKEN = {"deliveries": 60, "acks": 150, "replies": 150, "frames": 300, "lanes": 40, "api": 200}
"""Long and short streams of a round."""

_WILD = 16
"""Of so many rounds one has nothing but frames of hostile publishers."""

_MOST_FAULTS = 10
"""Then the run ends."""

_SHRUNK_BYTES = 200_000
"""Larger cases are written as they are."""

_CPU_S = 300.0
"""A round that takes so much of the processor hangs."""


class Run:
    """The rounds of one run, and what they found."""

    def __init__(self, seed: int, out: Path, short: bool = False) -> None:
        self.seed, self._out, self._short = seed, out, short
        self.frames: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self.cases: Counter[str] = Counter()
        self.faults: list[str] = []
        self._rounds: Counter[str] = Counter()

    def round(self, kind: str) -> None:
        """One more of this kind."""
        self._rounds[kind] += 1
        name = f"{self.seed} {kind} {self._rounds[kind]}"
        rng, module = random.Random(name), KINDS[kind]
        signal.setitimer(signal.ITIMER_VIRTUAL, _CPU_S)
        pool = module.Pool(rng, self._rounds[kind] % _WILD == 2)
        for _ in range(1 if self._short else _SOUND[kind]):
            for sound in module.sound(rng, pool):
                self._try(name, sound.case, sound)
                self.frames[kind] += sound.frames
        for _ in range(_BROKEN[kind] * (2 if self._short else 1)):
            case = module.broken(rng, pool)
            count = self._try(name, case)
            self.frames[kind] += count
            self.broken[kind] += count
            self.cases[kind] += 1

    def _try(self, name: str, case: Case, sound: Sound | None = None) -> int:
        try:
            if sound is None:
                return int(KINDS[case.kind].check(case))
            sound.check()
        except Exception as error:
            self._found(name, case, error)
        return 0

    def _found(self, name: str, case: Case, error: Exception) -> None:
        why = f"{type(error).__name__}: {error}"[:300]
        self.faults.append(f"{name}: {why}")
        print(f"FAULT in round {name}: {why}", flush=True)
        if len(self.faults) > _MOST_FAULTS:
            print("too many faults", flush=True)
            sys.exit(1)

        def fails(other: Case) -> bool:
            try:
                KINDS[other.kind].check(other)
            except Exception as again:
                return type(again) is type(error)
            return False

        if len(case.stream) < _SHRUNK_BYTES and fails(case):
            case = shrunk(case, fails)
        path = self._out / f"{name.replace(' ', '-')}-{len(self.faults)}.json"
        case.write(path, why)
        print(f"  written to {path}, {len(case.stream)} bytes", flush=True)

    def told(self) -> str:
        """The frames by kind."""
        return ", ".join(
            f"{kind} {self.frames[kind]:,} ({self.broken[kind]:,} in {self.cases[kind]:,} broken"
            " streams)"
            for kind in self.frames
        )


def _hangs(number: int, frame: FrameType | None) -> None:
    raise Fault(f"a round takes more than {_CPU_S:.0f}s of the processor")


def main(arguments: list[str]) -> int:
    """Runs it; 1 where anything differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--frames", type=float, default=2e6, help="about so many in total")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=list(_SHARES))
    parser.add_argument("--out", type=Path, default=Path("fuzz-cases"), help="where faults go")
    parser.add_argument(
        "--short", action="store_true", help="two rounds of each kind, with few long streams"
    )
    parser.add_argument("--case", type=Path, nargs="+", help="files to run again, and no others")
    options = parser.parse_args(arguments)
    for path in options.case or ():
        case = Case.load(path)
        print(f"{path}: {KINDS[case.kind].check(replace(case))} frames, as the reference")
    if options.case:
        return 0
    print(f"seed {options.seed}, {options.frames:,.0f} frames of {', '.join(options.kinds)}")
    run = Run(options.seed, options.out, options.short)
    before = signal.signal(signal.SIGVTALRM, _hangs)
    wanted = sum(_SHARES[kind] for kind in options.kinds)
    goals = {kind: options.frames * _SHARES[kind] / wanted for kind in options.kinds}
    said = 0.0
    if options.short:
        for kind in 2 * options.kinds:
            run.round(kind)
    while not options.short and run.frames.total() < options.frames:
        run.round(min(goals, key=lambda kind: run.frames[kind] / goals[kind]))
        if run.frames.total() >= said + options.frames / 20:
            said = run.frames.total()
            print(f"{said:,}: {run.told()}; {len(run.faults)} faults", flush=True)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)
    print(f"seed {run.seed}: {run.frames.total():,} frames, {len(run.faults)} faults: {run.told()}")
    return bool(run.faults)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    sys.exit(main(sys.argv[1:]))
