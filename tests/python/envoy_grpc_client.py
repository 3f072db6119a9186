"""Calls an Envoy rate limit service over gRPC with requests from its input, one on each line.

Run in an environment with grpcio and xds-protos, see envoy_tools.py.
"""

from __future__ import annotations

import json
import sys

import grpc
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from google.protobuf import json_format


def main() -> None:
    with grpc.insecure_channel(sys.argv[1]) as channel:
        stub = rls_pb2_grpc.RateLimitServiceStub(channel)
        for line in sys.stdin:
            request = rls_pb2.RateLimitRequest()
            json_format.Parse(line, request)
            try:
                answer = stub.ShouldRateLimit(request, timeout=20)
                told = json_format.MessageToDict(answer)
            except grpc.RpcError as error:
                told = {"error": error.code().name, "reason": error.details()}
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
