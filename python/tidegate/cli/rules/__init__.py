"""``tidegate rules``: documents of rules, checked, explained, compared and tested."""
