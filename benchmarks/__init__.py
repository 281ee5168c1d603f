"""Benchmarks: one module per claim, run as ``python -m benchmarks.NAME``.

Each prints what it does and, as its last line, one JSON object with its arguments, the
machine and one record per method, data set and metric.
"""
