"""The CPU quota of a container, from files of control groups, versions 1 and 2."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native import core

HERE = Path(__file__).resolve().parent
COMPILER = shutil.which("c++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")

OWN = "proc/self/cgroup"
V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/cpu"
QUOTA, PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"
NONE = math.inf
HYBRID = "9:name=systemd:/\n4:cpu,cpuacct:/a\n1:cpuset:/b\n0::/\n"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("quota") / "quota"
    native = HERE.parents[1] / "native"
    command = [COMPILER, "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{native}"]
    subprocess.run([*command, str(HERE / "quota.cc"), "-o", str(made)], check=True)
    return made


@pytest.mark.parametrize(
    ("expected", "files"),
    [
        (NONE, {}),
        (NONE, {OWN: "0::/\n"}),
        (1.5, {OWN: "0::/\n", f"{V2}/cpu.max": "150000 100000\n"}),
        (0.25, {OWN: "0::/\n", f"{V2}/cpu.max": "25000 100000"}),
        (NONE, {OWN: "0::/\n", f"{V2}/cpu.max": "max 100000\n"}),
        # The process' own group, and those above it: the least holds.
        (2, {OWN: "0::/a/b\n", f"{V2}/a/b/cpu.max": "200000 100000\n"}),
        (
            1,
            {
                OWN: "0::/a/b\n",
                f"{V2}/a/b/cpu.max": "200000 100000\n",
                f"{V2}/a/cpu.max": "50000 50000\n",
                f"{V2}/cpu.max": "max 100000\n",
            },
        ),
        # A container without a namespace of its own names a group that it does not see.
        (3, {OWN: "0::/docker/0123\n", f"{V2}/cpu.max": "300000 100000\n"}),
        # A name may hold a colon, and a path may lead out of the namespace.
        (2, {OWN: "0::/a:b\n", f"{V2}/a:b/cpu.max": "200000 100000\n"}),
        (2, {OWN: "0::/../c\n", f"{V2}/cpu.max": "200000 100000\n"}),
        # Version 1.
        (
            2.5,
            {OWN: "4:cpu,cpuacct:/\n", f"{V1}/{QUOTA}": "250000\n", f"{V1}/{PERIOD}": "100000\n"},
        ),
        (2, {OWN: HYBRID, f"{V1}/a/{QUOTA}": "200000\n", f"{V1}/a/{PERIOD}": "100000\n"}),
        (NONE, {OWN: HYBRID, f"{V1}/{QUOTA}": "-1\n", f"{V1}/{PERIOD}": "100000\n"}),
        (NONE, {OWN: "2:cpuacct:/\n", f"{V1}/{QUOTA}": "200000\n", f"{V1}/{PERIOD}": "100000\n"}),
        # Files that are not what they should be.
        (NONE, {OWN: "0::/\n", f"{V2}/cpu.max": ""}),
        (NONE, {OWN: "0::/\n", f"{V2}/cpu.max": "much\n"}),
        (NONE, {OWN: "0::/\n", f"{V2}/cpu.max": "100000\n"}),
        (NONE, {OWN: "0::/\n", f"{V2}/cpu.max": "100000 0\n"}),
        (NONE, {OWN: "0::/\n", f"{V2}/cpu.max": "0 100000\n"}),
        (NONE, {OWN: "0::/\n", f"{V2}/cpu.max": "-5 100000\n"}),
        (NONE, {OWN: "0::/\n", f"{V2}/cpu.max": "nan inf\n"}),
        (NONE, {OWN: "4:cpu:/\n", f"{V1}/{QUOTA}": "200000\n"}),
        (NONE, {OWN: "\n::\n:\ncpu\n4:cpu\n0:", f"{V2}/cpu.max": "100000 100000"}),
    ],
)
def test_the_quota_is_that_of_the_files(
    program: Path, tmp_path: Path, expected: float, files: dict[str, str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    printed = subprocess.run([program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert float(printed.stdout) == expected


@pytest.mark.skipif(
    core.LIBRARY is None or not hasattr(os, "sched_getaffinity"),
    reason="needs the library and Linux",
)
def test_threads_are_those_of_affinity_and_quota(program: Path) -> None:
    printed = subprocess.run([program, ""], capture_output=True, text=True, check=True)
    own, quota = os.sched_getaffinity(0), float(printed.stdout)
    available = core.load(core.LIBRARY).heed_available_threads
    assert available() == min(len(own), math.ceil(quota) if quota < math.inf else len(own))
    os.sched_setaffinity(0, [min(own)])
    try:
        assert available() == 1
    finally:
        os.sched_setaffinity(0, own)
