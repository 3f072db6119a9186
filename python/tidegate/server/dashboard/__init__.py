"""The dashboard: pages for operators, and JSON with which users see their own data."""
