"""Translates files of many lines with several workers, and continues after any stop.

- `inputs.py`: the input files, cut into shards of lines.
- `job.py`: the settings of a translation; translates a shard.
- `_manifest.py`: what an output folder holds; refuses another job's.
- `_output_folder.py`: shards and finished files, each whole or not there at all.
- `coordinator.py`: hands the missing shards to workers (`heed.processes.pool`) and joins the files.
"""
