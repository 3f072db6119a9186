"""The service that `tidegate serve` runs."""
