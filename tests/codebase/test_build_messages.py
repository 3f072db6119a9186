"""A build that lacks something says what to install."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CMAKE = shutil.which("cmake")

pytestmark = pytest.mark.skipif(CMAKE is None, reason="there is no cmake")


def configure(build: Path, *options: str, **environment: str) -> str:
    """The error message of CMake, in one line."""
    command = [
        str(CMAKE),
        "-S",
        str(ROOT),
        "-B",
        str(build),
        "-DFETCHCONTENT_FULLY_DISCONNECTED=ON",
        "-DTIDEGATE_IPO=OFF",  # to try it takes a fifth of the time
    ]
    if shutil.which("ninja"):  # as most builds, and quicker than make
        command += ["-G", "Ninja"]
    done = subprocess.run(
        [*command, *options],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
    )
    assert done.returncode != 0, done.stdout
    return " ".join(done.stdout.split())


def test_a_build_without_a_compiler_says_what_to_install(tmp_path: Path) -> None:
    said = configure(tmp_path, CXX="/there/is/none")
    assert "No C++ compiler was found" in said
    assert "Install g++ 12 or newer" in said


@pytest.mark.parametrize(
    ("library", "problem", "package"),
    [
        ("OpenSSL", "OpenSSL 1.1.1 or newer was not found with its headers", "libssl-dev"),
        ("absl", "Abseil: downloading and building", "libabsl-dev"),
    ],
)
def test_a_build_without_a_library_names_its_package(
    tmp_path: Path, library: str, problem: str, package: str
) -> None:
    said = configure(tmp_path, f"-DCMAKE_DISABLE_FIND_PACKAGE_{library}=ON")
    assert problem in said
    assert package in said


@pytest.mark.skipif(sys.platform != "linux", reason="the server of checks is for Linux")
def test_a_build_without_zlib_names_its_package(tmp_path: Path) -> None:
    said = configure(tmp_path, "-DTIDEGATE_BUILD_TESTS=ON", "-DCMAKE_DISABLE_FIND_PACKAGE_ZLIB=ON")
    assert "zlib was not found with its headers" in said
    assert "zlib1g-dev" in said


def test_without_what_reads_json(tmp_path: Path) -> None:
    said = configure(
        tmp_path, "-DTIDEGATE_BUILD_TESTS=ON", "-DCMAKE_DISABLE_FIND_PACKAGE_simdjson=ON"
    )
    assert "simdjson: downloading and building" in said
    assert "libsimdjson-dev" in said


@pytest.mark.skipif(sys.platform != "linux", reason="the server of checks is for Linux")
@pytest.mark.parametrize(
    ("variables", "library", "package"),
    [
        (["NGHTTP2_LIBRARY"], "nghttp2", "libnghttp2-dev"),
        (["LLHTTP_LIBRARY", "LLHTTP_SOURCES"], "llhttp", "node-llhttp"),
        (["PROTOZERO_INCLUDE_DIR"], "protozero", "libprotozero-dev"),
    ],
)
def test_without_what_the_server_speaks_with(
    tmp_path: Path, variables: list[str], library: str, package: str
) -> None:
    said = configure(
        tmp_path, "-DTIDEGATE_BUILD_TESTS=ON", *(f"-D{each}=OFF" for each in variables)
    )
    assert f"{library}: downloading and building" in said
    assert package in said


@pytest.mark.parametrize(
    ("part", "problem", "advice"),
    [
        ("Python", "Python.h was not found", "python3-dev"),
        ("pybind11", "pybind11 2.13 or newer was not found", "python/requirements.txt"),
    ],
)
def test_without_a_part_of_python(tmp_path: Path, part: str, problem: str, advice: str) -> None:
    said = configure(
        tmp_path,
        "-DTIDEGATE_BUILD_PYTHON=ON",
        "-DSKBUILD_PROJECT_VERSION_FULL=0",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-DCMAKE_DISABLE_FIND_PACKAGE_{part}=ON",
    )
    assert problem in said
    assert advice in said
