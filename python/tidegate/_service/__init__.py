"""The service: what stands beside the native front of ``tidegate serve``."""
