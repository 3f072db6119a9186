"""The implementation of `tidegate.tuning`."""
