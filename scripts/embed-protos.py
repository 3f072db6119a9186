"""Writes cpp/server/checks/descriptors.cc: the descriptors of proto/tidegate/v1 for reflection.

Needs grpcio-tools. Run it after a change of the proto; where grpcio-tools is installed, a test
compares the two.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "cpp" / "server" / "checks" / "descriptors.cc"
PROTO = "tidegate/v1/ratelimit.proto"
WIDTH = 24

HEAD = """// Written by scripts/embed-protos.py from proto/tidegate/v1/ratelimit.proto.
// clang-format off
#include "server/checks/descriptors.h"

namespace tidegate::server {

namespace {

"""


def descriptors() -> list[tuple[str, bytes]]:
    """The serialized files by name; files that others import come first."""
    from google.protobuf import descriptor_pb2
    from grpc_tools import protoc

    include = str(Path(protoc.__file__).parent / "_proto")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        arguments = ["protoc", f"-I{ROOT / 'proto'}", f"-I{include}", f"-o{out}"]
        if protoc.main([*arguments, "--include_imports", PROTO]) != 0:
            raise SystemExit("protoc failed")
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    return [(file.name, file.SerializeToString(deterministic=True)) for file in files.file]


def source() -> str:
    lines = [HEAD]
    names = []
    for name, raw in descriptors():
        constant = "k" + "".join(
            part.capitalize() for part in Path(name).stem.replace("-", "_").split("_")
        )
        names.append(constant)
        lines.append(f"constexpr unsigned char {constant}[] = {{\n")
        for start in range(0, len(raw), WIDTH):
            numbers = ",".join(map(str, raw[start : start + WIDTH]))
            lines.append(f"    {numbers},\n")
        lines.append("};\n\n")
    lines.append("template <size_t kSize>\n")
    lines.append("std::string_view View(const unsigned char (&raw)[kSize]) {\n")
    lines.append("  return {reinterpret_cast<const char*>(raw), kSize};\n}\n\n}  // namespace\n\n")
    views = ", ".join(f"View({name})" for name in names)
    lines.append("std::vector<std::string_view> CheckDescriptors() {\n")
    lines.append(f"  return {{{views}}};\n}}\n\n}}  // namespace tidegate::server\n")
    return "".join(lines)


if __name__ == "__main__":
    if sys.argv[1:]:
        raise SystemExit("expected no arguments")
    TARGET.write_text(source(), encoding="utf-8")
