"""Discovery: one file per source of facts; read, then parse."""
