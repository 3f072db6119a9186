"""Writes the descriptors of gRPC's own services, which the server of checks embeds.

It takes them from the packages grpcio-health-checking and grpcio-reflection, so that the build
needs no protoc:

    python scripts/descriptors.py > cpp/server/grpc/descriptors.inc
"""

from __future__ import annotations

import textwrap

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2


def descriptors() -> dict[str, bytes]:
    """The bytes by their name in C++."""
    alpha = _canonical(reflection_pb2.DESCRIPTOR.serialized_pb)
    return {
        "kHealth": _canonical(health_pb2.DESCRIPTOR.serialized_pb),
        "kReflection": _released(alpha),
        "kReflectionAlpha": alpha,
    }


def _canonical(data: bytes) -> bytes:
    """The file under the name that gRPC's own repository has for it."""
    file = FileDescriptorProto.FromString(data)
    file.name = file.name.replace("grpc_", "grpc/")
    return file.SerializeToString(deterministic=True)


def _released(alpha: bytes) -> bytes:
    """The file of v1, whose messages are those of v1alpha."""
    file = FileDescriptorProto.FromString(alpha)
    file.name = file.name.replace("v1alpha", "v1")
    file.package = file.package.replace("v1alpha", "v1")
    for message in file.message_type:
        for field in message.field:
            field.type_name = field.type_name.replace("v1alpha", "v1")
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace("v1alpha", "v1")
            method.output_type = method.output_type.replace("v1alpha", "v1")
    return file.SerializeToString(deterministic=True)


def text() -> str:
    """The file descriptors.inc."""
    parts = ["// Written by scripts/descriptors.py.\n"]
    for name, data in descriptors().items():
        numbers = textwrap.fill(", ".join(str(byte) for byte in data), 96)
        body = textwrap.indent(numbers, "    ")
        parts.append(f"constexpr unsigned char {name}[] = {{\n{body},\n}};\n")
    return "".join(parts)


if __name__ == "__main__":
    print(text(), end="")
