"""The file of the history, for those who read it with queries of their own: what opens it stands in preflight/report/history_file.py, where the programs of a node, which load nothing of fleet/, find it too."""

from preflight.report.history_file import reading, writing

__all__ = ["reading", "writing"]
