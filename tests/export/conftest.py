"""One finished tiny run for all tests that only read it."""

from tests.seq2seq.conftest import finished_run  # noqa: F401
