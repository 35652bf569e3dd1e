"""Builds the native forward pass for all types of x86 processors, for an image."""

import platform

from penstock.worker.engine.native.compiler import PREBUILT_FOLDER, X86_TARGETS, build, library_name

if __name__ == "__main__" and platform.machine() == "x86_64":
    for target in X86_TARGETS:
        build(target, PREBUILT_FOLDER / library_name(target))
