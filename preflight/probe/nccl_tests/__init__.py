"""The output of nccl-tests as evidence: read from files, run by run (`files`, `text`, `document`), then made into families of comparable runs (`families`). Needs no torch."""
