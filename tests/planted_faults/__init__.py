"""Tests of the tests: faults that are planted one at a time, to see whether the nearest tests notice.

`python -m tests.planted_faults` plants them all; `fault.py` says what one is, `planting.py` how it is planted, and the
other files list them, one file a part of heed.
"""
