"""The commands: arguments in, a stage called, an exit code out."""
