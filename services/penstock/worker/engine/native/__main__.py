"""Build the native forward for every kind of processor that an image may come to run on."""

import platform

from penstock.worker.engine.native.compiler import PREBUILT_FOLDER, X86_TARGETS, build, library_name

if __name__ == "__main__" and platform.machine() == "x86_64":
    for target in X86_TARGETS:
        build(target, PREBUILT_FOLDER / library_name(target))
