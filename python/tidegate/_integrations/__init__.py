"""What frameworks need beyond their public interface: docs/adr/0009-frameworks-private-parts.md."""
