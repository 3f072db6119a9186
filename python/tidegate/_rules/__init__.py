"""Rules: which limits apply to which requests, from a document to the compiled rule set."""
