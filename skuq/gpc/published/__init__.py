"""The bounds of the paper as it states them: slow, and what the fast ones are compared with."""
