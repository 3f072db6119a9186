"""The server of checks: HTTP/2, HTTP/1.1 and gRPC without Python."""
