"""Decides on requests, for every web framework. This package does not depend on any of them."""
