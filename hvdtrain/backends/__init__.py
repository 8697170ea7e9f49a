"""How bytes move: one protocol, one file per engine."""
