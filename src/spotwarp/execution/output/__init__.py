"""The command's output: through to the user, kept on the disk, read again from wherever it is."""
