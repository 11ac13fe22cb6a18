"""Checks the tag and the contents of a wheel: python .ci/check_wheel.py WHEEL."""

import re
import sys
import zipfile
from pathlib import Path

FOLDERS = ("heed/", "heed_attention-")  # the package and its metadata
DATA = (
    "heed/py.typed",
    "heed/include/heed.h",
    "heed/inspect/_page_files/page.html",
    "heed/inspect/_page_files/page.js",
)
LIBRARIES = {"heed/_lib/libheed_core.so", "heed/_lib/libheed_tf.so", "heed/_lib/libheed_xla.so"}


def problems(wheel: Path) -> list[str]:
    """Returns the problems of the wheel, as sentences."""
    found = []
    tag = re.fullmatch(r"heed_attention-[^-]+-py3-none-manylinux_2_(\d+)_x86_64\.whl", wheel.name)
    if tag is None:
        found.append(f"{wheel.name} is not tagged py3-none-manylinux_2_*_x86_64")
    elif int(tag[1]) > 34:
        found.append(f"{wheel.name} needs a glibc newer than 2.34, of 2021")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        descriptions = [name for name in names if name.endswith(".dist-info/WHEEL")]
        text = "".join(archive.read(name).decode() for name in descriptions)
    if "Tag: py3-none-manylinux" not in text or "Root-Is-Purelib: false" not in text:
        found.append(f"its WHEEL file says: {text}")
    libraries = {name for name in names if ".so" in name}
    if libraries != LIBRARIES:
        found.append(f"its libraries are {sorted(libraries)}")
    found += [f"{name} does not belong there" for name in names if not name.startswith(FOLDERS)]
    found += [f"{name} is missing" for name in DATA if name not in names]
    return found


if __name__ == "__main__":
    wrong = problems(Path(sys.argv[1]))
    print("\n".join(wrong) or f"{Path(sys.argv[1]).name}: tag and contents are right")
    sys.exit(bool(wrong))
