"""Somebody who is not watching is told: when, what, and by whom it is delivered."""
