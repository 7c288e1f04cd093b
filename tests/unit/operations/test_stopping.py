"""Programs that run until they are told to end do end, whenever they are told."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

_PROGRAM = """
import signal, sys
from pyspark_jetstream.operations.stopping import Stop

number = getattr(signal, sys.argv[1])

for line in range(1, 40):
    stop, left = Stop(), [line]

    def trace(frame, event, _):
        if event == "line":
            left[0] -= 1
            if not left[0]:
                signal.raise_signal(number)
        return trace

    sys.settrace(trace)
    stop.wait(0.01)
    sys.settrace(None)
    assert stop() is (left[0] <= 0), line
print("ended")
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_amid_the_wait_ends_it(name):
    """At whichever line of the wait, its library's included, the signal comes."""
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM, name], capture_output=True, text=True, timeout=60
    )

    assert (run.stdout, run.stderr, run.returncode) == ("ended\n", "", 0)


def test_the_second_one_ends_the_program():
    """Also where nobody looks whether the first has come."""
    program = "from pyspark_jetstream.operations.stopping import Stop; import os, signal\n"
    program += "Stop()\nfor _ in range(2): os.kill(os.getpid(), signal.SIGTERM)\nprint('late')"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (run.stdout, run.returncode) == ("", -signal.SIGTERM)
