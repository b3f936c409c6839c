"""SpotWarp side by side with restic, rclone and cp, on training workspaces made here. See `make bench`.

gen        writes the workspaces (its own program: it needs numpy and PyTorch)
workloads  the three states that each tool stores in turn          tools     how each tool is asked
measure    one command: wall, CPU, memory, the rest of the machine  trees     what lies where, and is it the same
slowdown   a pinned trainer with and without `spotwarp run`         trainer   that trainer
targets    what must hold                                           report    samples → table
"""
