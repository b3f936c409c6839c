"""Processes: the training command's tree, and SpotWarp's own short programs."""
