"""Reports: for people, for programs, for Prometheus."""
