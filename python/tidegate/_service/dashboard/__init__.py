"""The dashboard: pages for operators, and JSON for users about themselves."""
