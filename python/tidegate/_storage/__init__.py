"""From a storage URI and its options to a store."""
