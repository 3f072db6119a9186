"""From a request to a decision, for every web framework; nothing here knows one."""
