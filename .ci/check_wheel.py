"""Checks the tag, the contents and the dynamic links of a wheel: python .ci/check_wheel.py WHEEL."""

import io
import re
import sys
import zipfile
from pathlib import Path

FOLDERS = ("heed/", "heed_attention-")  # the package and its metadata
DATA = (
    "heed/py.typed",
    "heed/inspect/_page_files/page.html",
    "heed/inspect/_page_files/page.js",
)
HEADERS = ("heed/include/heed.h", "heed/include/heed_decoder.h")
LIBRARIES = {"heed/_lib/libheed_core.so", "heed/_lib/libheed_tf.so", "heed/_lib/libheed_xla.so"}
# With TensorFlow's loader beside it, a library may need these and nothing else.
SYSTEM_LIBRARIES = re.compile(r"lib(c|m|dl|pthread|gcc_s)\.so\.\d+|ld-linux-.*|libheed_core\.so")
PLATFORMS = r"manylinux_2_(?P<glibc>\d+)_(x86_64|aarch64)|macosx_\d+_\d+_arm64|any"


def problems(wheel: Path) -> list[str]:
    """Return the problems of the wheel, as sentences."""
    found = []
    tag = re.fullmatch(rf"heed_attention-[^-]+-py3-none-(?P<platform>{PLATFORMS})\.whl", wheel.name)
    if tag is None:
        return [f"{wheel.name} is not tagged py3-none for manylinux_2_*, macOS arm64 or any system"]
    platform = tag["platform"]
    native = platform != "any"
    if tag["glibc"] and int(tag["glibc"]) > 34:
        found.append(f"{wheel.name} needs a glibc newer than 2.34, of 2021")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        descriptions = [name for name in names if name.endswith(".dist-info/WHEEL")]
        text = "".join(archive.read(name).decode() for name in descriptions)
    if f"-{platform}" not in text or f"Root-Is-Purelib: {str(not native).lower()}" not in text:
        found.append(f"its WHEEL file says: {text}")
    libraries = {name for name in names if ".so" in name}
    if libraries != (LIBRARIES if native else set()):
        found.append(f"its libraries are {sorted(libraries)}")
    found += [f"{name} does not belong there" for name in names if not name.startswith(FOLDERS)]
    wanted = (*DATA, *HEADERS) if native else DATA
    found += [f"{name} is missing" for name in wanted if name not in names]
    return found


def link_problems(name: str, data: bytes) -> list[str]:
    """Return what ties an ELF library to one Python, or to libraries that a system may lack."""
    from elftools.elf.elffile import ELFFile

    library = ELFFile(io.BytesIO(data))
    dynamic = library.get_section_by_name(".dynamic")
    needed = [entry.needed for entry in dynamic.iter_tags("DT_NEEDED")]
    symbols = [one.name for one in library.get_section_by_name(".dynsym").iter_symbols()]
    python = [one for one in symbols if re.match(r"_?Py[A-Z_]", one)]
    return [
        *(f"{name} needs {one}" for one in needed if not SYSTEM_LIBRARIES.fullmatch(one)),
        *(f"{name} uses {one} of Python" for one in python[:1]),
    ]


def main(wheel: Path) -> int:
    """Print the problems of the wheel, or that it has none; return the exit status."""
    wrong = problems(wheel)
    if not wrong and "linux" in wheel.name:
        with zipfile.ZipFile(wheel) as archive:
            for name in LIBRARIES:
                wrong += link_problems(name, archive.read(name))
    print("\n".join(wrong) or f"{wheel.name}: tag, contents and links are right")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
