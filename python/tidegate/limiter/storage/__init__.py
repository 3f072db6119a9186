"""Creates a store from a storage URI and its options."""
