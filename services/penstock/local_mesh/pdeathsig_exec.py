"""Run as a script between fork and program: `child.py PARENT_PID PROGRAM ARGUMENT ...`.

Has the kernel send SIGTERM to the program when the command that started it dies, however it dies (Linux). It is a
program of its own because code run between fork and exec in a process with gRPC's threads may deadlock.

A Python module is started with SIGTERM held back, which its life begins with letting in: a tier that is asked to end
while it is still importing would die of the signal otherwise, as if it had failed.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before we asked
            sys.exit(1)
    if "-m" in program[1:-1]:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    os.execv(program[0], program)  # noqa: S606  # that is what this is for


if __name__ == "__main__":
    main()
