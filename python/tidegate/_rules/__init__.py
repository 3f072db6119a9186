"""Rules: who gets how much, from a document to what the core matches requests against."""
