"""Writes what a wheel is made from, as CycloneDX 1.5, after a look at what it links.

    python scripts/bill_of_materials.py WHEEL [SOURCES] >tidegate.cdx.json

The releases are those that cmake/ pins; where SOURCES has what scripts/debian-sources.sh unpacked,
those of Debian. Ends with 1 if the wheel links a library that no component has.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]

# What FetchContent names, what its package is called, and its license. Tests and benchmarks are not
# in a wheel.
_PINNED = {
    "absl": ("abseil-cpp", "Apache-2.0"),
    "hiredis": ("hiredis", "BSD-3-Clause"),
    "llhttp": ("llhttp", "MIT"),
    "nghttp2": ("nghttp2", "MIT"),
    "protozero": ("protozero", "BSD-2-Clause"),
    "simdjson": ("simdjson", "Apache-2.0"),
    "xxhash": ("xxhash", "BSD-2-Clause"),
}
_FOR_TESTS = {"googletest", "benchmark"}
# Of each component that may be a shared library, how the library's name begins.
_LIBRARIES = {
    "absl": "libabsl_",
    "hiredis": "libhiredis",
    "llhttp": "libllhttp",
    "nghttp2": "libnghttp2",
    "simdjson": "libsimdjson",
    "openssl": "libssl libcrypto",
    "zlib": "libz.",
}
_SYSTEM = re.compile(
    r"(libc|libm|libgcc_s|libstdc\+\+|libpthread|libdl|librt|libatomic|ld-[\w-]+|libc\.musl-\w+)\.so"
)


class Component(NamedTuple):
    name: str
    """The name that cmake has for it."""
    package: str
    license: str
    version: str | None
    """None where it is one of the system's."""
    url: str | None
    sha256: str | None


def components(sources: Path | None = None, openssl: str | None = None) -> list[Component]:
    """Returns all that a build of all components links."""
    texts = [
        (ROOT / "cmake" / name).read_text()
        for name in ("Dependencies.cmake", "ServerDependencies.cmake")
    ]
    pinned = re.findall(
        r'tidegate_fetch\((\w+) [^()]*?"\s+(https://\S+)\s+(\w{64})', "\n".join(texts)
    )
    unpacked = {
        name: (version, sha256)
        for name, _, version, sha256 in re.findall(
            r'"(\w+) +(\w+) +([\d.]+) +(\w{64})"',
            (ROOT / "scripts" / "debian-sources.sh").read_text(),
        )
        if sources is not None and (sources / name / ".complete").exists()
    }
    found = []
    for name, url, sha256 in pinned:
        if name in _FOR_TESTS:
            continue
        package, license = _PINNED[name]
        (version,) = re.findall(r"[/v](\d[\d.]*\d)\.tar\.gz$", url)
        if name in unpacked and unpacked[name] != (version, sha256):
            found.append(Component(name, package, license, unpacked[name][0], None, None))
        else:
            found.append(Component(name, package, license, version, url, sha256))
    (pybind11,) = re.findall(
        r"^pybind11==(\S+)", (ROOT / "python" / "requirements.txt").read_text(), re.MULTILINE
    )
    found.append(Component("pybind11", "pybind11", "BSD-3-Clause", pybind11, None, None))
    found.append(Component("openssl", "openssl", "Apache-2.0", openssl, None, None))
    found.append(Component("zlib", "zlib", "Zlib", None, None, None))
    return sorted(found)


def needed(library: Path) -> list[str]:
    """Returns the names of the shared libraries that a library asks the loader for."""
    said = subprocess.run(
        ["readelf", "-d", str(library)], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", said)


def owner_of(library: str) -> str | None:
    """Returns the component that has a shared library; "" for those of every system."""
    if _SYSTEM.match(library):
        return ""
    for name, begins in _LIBRARIES.items():
        if library.startswith(tuple(begins.split())):
            return name
    return None


def bill_of(version: str, found: list[Component]) -> dict[str, Any]:
    """Returns the document."""

    def shown(each: Component) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "type": "library",
            "name": each.package,
            "licenses": [{"license": {"id": each.license}}],
        }
        if each.version is not None:
            entry["version"] = each.version
        else:
            entry["description"] = "The library of the system."
        if each.url is not None:
            entry["hashes"] = [{"alg": "SHA-256", "content": each.sha256}]
            entry["externalReferences"] = [{"type": "distribution", "url": each.url}]
        return entry

    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {"type": "library", "name": "tidegate", "version": version},
        },
        "components": [shown(each) for each in found],
    }


def main(wheel: str, sources: str | None = None) -> int:
    openssl = None
    unknown = set()
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        for library in sorted(Path(folder).rglob("*.so*")):
            unknown |= {name for name in needed(library) if owner_of(name) is None}
            if library.name.startswith("libcrypto"):
                version = re.search(rb"OpenSSL (\d+\.\d+\.\d+\w*)", library.read_bytes())
                openssl = version[1].decode() if version else None
    if unknown:
        print(f"no component has {', '.join(sorted(unknown))}; expected one", file=sys.stderr)
        return 1
    found = components(Path(sources) if sources else None, openssl)
    print(json.dumps(bill_of(Path(wheel).name.split("-")[1], found), indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
