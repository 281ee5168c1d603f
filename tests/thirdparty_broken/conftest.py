"""This distribution is installed by test_imports.py; nothing in it is a test."""

collect_ignore_glob = ["*"]
