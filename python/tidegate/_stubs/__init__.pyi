"""Parts of the stubs of tidegate._core, by topic. Nothing is here when a program runs."""
