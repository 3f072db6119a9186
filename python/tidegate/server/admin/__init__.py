"""The admin API: rules, users, tokens and the audit log over HTTP."""
