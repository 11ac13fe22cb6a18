"""Other processes of a program, on this machine and on several.

- `child`: a Python process with a message channel and signs of life, which ends with its parent.
- `pool`: children that take items one by one, each replaced when it dies.
- `supervise`: a fixed group of children, all stopped and started again when one fails.
- `cluster`, `meeting`: workers on several machines, as TF_CONFIG describes them, meet before they begin.
- `signals`: the signals that ask a program to end.
"""
