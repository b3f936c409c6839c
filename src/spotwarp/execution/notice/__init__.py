"""Preemption notices: who announces the end of this machine, watched; and the file that tells the command.

    platform   where we run, from the environment and the firmware's words
    choosing   the sources to watch
    watching   one thread for each of them
    course     pure: what follows from one look at a source
    source     what a source is, and what it can say; aws, gcp, azure, file, command, url: one each
    deadline   pure: from what was said to seconds left
    exchange   one bounded HTTP request
    telling    the notice file for the command

Decides nothing about the run: what a notice means is the supervisor's. Must never delay a run's start or its end, and
never end a run because a source is broken.
"""
