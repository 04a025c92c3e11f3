"""One file per launcher: which rank sits on which node, and as which local rank."""
