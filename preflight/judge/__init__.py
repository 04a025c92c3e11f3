"""Judging: runs every check over the evidence and gives the answer."""
