"""Run folders: their files, their model, and how one starts."""
