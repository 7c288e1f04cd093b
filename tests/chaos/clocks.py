"""
Wall clocks that are off.

nats-server is linked statically and asks the kernel, so no library (libfaketime either) reaches its
clock: it is the queries' that are off. libfaketime 0.9.10 breaks waits of Python 3.11 and of the
JVM, so a few lines of C do it, where there is a compiler.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

COMPILER: Final = shutil.which("cc")

_SOURCE: Final = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long off(void) { const char *by = getenv("CLOCK_OFF"); return by ? atol(by) : 0; }
int clock_gettime(clockid_t clock, struct timespec *to) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, to);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) to->tv_sec += off();
    return failed;
}
int gettimeofday(struct timeval *to, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    to->tv_sec = now.tv_sec;
    to->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to) *to = now.tv_sec;
    return now.tv_sec;
}
"""


def environment(seconds: int, home: Path) -> dict[str, str]:
    """What gives a process a clock that is off by this; nothing for the true one."""
    if not seconds or COMPILER is None:
        return {}
    library = home / "clock.so"
    if not library.exists():
        words = [COMPILER, "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-ldl"]
        subprocess.run(words, input=_SOURCE.encode(), check=True, timeout=60)
    return {"LD_PRELOAD": str(library), "CLOCK_OFF": str(seconds)}
