"""A snapshot comes back into a workspace, and what a dead attempt left there is put right."""
