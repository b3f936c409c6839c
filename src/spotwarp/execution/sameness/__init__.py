"""Is this the job that the run is about: its command, its path, its processes and GPUs?"""
