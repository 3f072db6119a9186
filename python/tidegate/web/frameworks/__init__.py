"""The use of frameworks beyond their public interfaces:
docs/adr/0009-frameworks-private-parts.md."""
