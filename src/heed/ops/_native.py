"""What the native kernels can run here, and if not, why not."""

from __future__ import annotations


def unsupported_reasons() -> list[str]:
    """Why the native implementation cannot run, as sentences for a person; empty if it can."""
    return ["this build of heed contains no native library"]
