"""The bill of materials of a wheel names what is really linked."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import bill_of_materials as bill  # noqa: E402

EXTENSIONS = ("tidegate._core", "tidegate.tuning._logs", "tidegate.server._native")
CMAKE = [ROOT / each / "CMakeLists.txt" for each in ("cpp", "python/bindings")]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads ELF files")


def built() -> list[Path]:
    """The extensions that the tests have."""
    specs = [importlib.util.find_spec(module) for module in EXTENSIONS]
    found = [Path(each.origin) for each in specs if each is not None and each.origin]
    if len(found) < len(EXTENSIONS):
        pytest.skip("not all extensions were built")
    return found


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel of the extensions that the tests have."""
    path = tmp_path / "tidegate-1.2.3-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for extension in built():
            archive.write(extension, extension.name)
    return path


def test_the_bill_has_what_cmake_links_and_nothing_else() -> None:
    text = "\n".join(path.read_text() for path in CMAKE)
    targets = set(re.findall(r"\b(absl|OpenSSL|ZLIB|pybind11)::", text))
    targets |= set(re.findall(r"\btidegate_(hiredis|llhttp|nghttp2|protozero|simdjson)\b", text))
    if "XXHASH_INCLUDE_DIR" in text:
        targets.add("xxhash")
    assert {each.name for each in bill.components()} == {each.lower() for each in targets}


def test_a_wheel_links_what_its_bill_has(wheel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bill.main(str(wheel)) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    assert document["metadata"]["component"]["version"] == "1.2.3"
    by_name = {each["name"]: each for each in document["components"]}
    owners = {bill.owner_of(name) for path in built() for name in bill.needed(path)}
    named = {each.name: each.package for each in bill.components()}
    assert {named[owner] for owner in owners if owner} <= by_name.keys()
    assert {"openssl", "zlib"} <= owners, "the tests' extensions link those of the system"
    for name in ("nghttp2", "llhttp", "abseil-cpp"):
        pinned = by_name[name]
        assert pinned["version"] in pinned["externalReferences"][0]["url"]
        assert len(pinned["hashes"][0]["content"]) == 64


def test_a_library_that_the_bill_lacks_is_named(
    wheel: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(bill._LIBRARIES, "zlib")
    assert bill.main(str(wheel)) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "no component has libz.so.1; expected one\n"


def test_a_release_that_debian_has_otherwise_is_named_by_its_version(
    tmp_path: Path,
) -> None:
    for name in ("hiredis", "nghttp2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".complete").touch()
    found = {each.name: each for each in bill.components(tmp_path)}
    assert (found["hiredis"].version, found["hiredis"].url) == ("0.14.1", None)
    assert found["nghttp2"].url is not None, "Debian has the same, to the byte"
    assert found["simdjson"] == {each.name: each for each in bill.components()}["simdjson"]


def test_libraries_of_every_system_belong_to_no_component() -> None:
    names = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2")
    assert {bill.owner_of(name) for name in names} == {""}
    assert bill.owner_of("libcrypto-b2d5e1c3.so.3") == "openssl"
    assert bill.owner_of("libcurl.so.4") is None
