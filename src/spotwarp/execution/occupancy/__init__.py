"""Who else is at work in this directory: on this machine, on another one, or left over from before."""
