"""Executes a program that receives SIGTERM when its parent dies: `pdeathsig_exec.py PARENT_PID PROGRAM ARGUMENT ...`.

With `--user NAME` before the program, it runs as this user, which takes root.

The kernel sends the signal however the parent dies (Linux). This is a separate program because code between fork and
exec may deadlock in a process with gRPC's threads.

A Python module starts with SIGTERM blocked, and unblocks it when it can drain. Otherwise a tier that is stopped while
it imports its modules would die by the signal, as if it had failed.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if program[0] == "--user":
        become_user(program[1])  # first, because it clears the signal that is set below
        program = program[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent has died already
            sys.exit(1)
    if "-m" in program[1:-1]:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    os.execv(program[0], program)  # noqa: S606  # the purpose of this program


def become_user(name: str) -> None:
    import pwd  # noqa: PLC0415  # only here

    user = pwd.getpwnam(name)
    os.setgroups([])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)


if __name__ == "__main__":
    main()
